"""The published rule's weights, Disco103: the file a person names, the one in the cache, or else a download.

Source: Oh et al. 2025; github.com/google-deepmind/disco_rl (Apache-2.0).
"""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from frodo import archives
from frodo.files import cache_folder, write
from frodo.logs import note
from meta.targets import disco103

URL = (
    "https://raw.githubusercontent.com/google-deepmind/disco_rl/9059a29f7121d60948f25ef165e08e050e9399c8"
    "/disco_rl/update_rules/weights/disco_103.npz"
)
SHA256 = "dac840a15b81e8805326363458c33979626172618f620d9e6e170315388530aa"
NO_FILE = "names no file: give the path of the published weights, disco_103.npz"
TIMEOUT_SECONDS = 30.0  # without an answer, or without a further byte


def find(path: str = "") -> Path:
    """Return the file of the weights: `path`, else that of DISCO103_WEIGHTS, else that in the cache, else a download.

    A file that a person names is taken as it is; one in the cache, or downloaded into it, has the published digest.

    Args:
      path: of a file; "" for the places that are known.
    Raises:
      ValueError: if a place that is named holds no file, or the download fails: where to put the file by hand.
      DiskError: if the cache cannot be written.
    """
    for prefix, name in (("", path), ("DISCO103_WEIGHTS=", os.environ.get("DISCO103_WEIGHTS", ""))):
        if name:
            if not os.path.isfile(name):
                raise ValueError(f"{prefix}{name} {NO_FILE}")
            return Path(name)
    cached = cache_folder() / "disco_103.npz"
    by_hand = f"download {URL} by hand to {cached}, or name the file with DISCO103_WEIGHTS"
    try:
        digest = hashlib.sha256(cached.read_bytes()).hexdigest()
    except FileNotFoundError:
        note(f"there is no {cached}: downloading {URL}")
    except OSError as error:
        raise ValueError(f"cannot read {cached}: {error.strerror}; {by_hand}") from None
    else:
        if digest == SHA256:
            return cached
        note(f"{cached} is damaged, as its SHA-256 is {digest}, expected {SHA256}: downloading {URL}")
    try:
        data = _download()
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        reason = " ".join(str(reason).split()) or type(error).__name__
        raise ValueError(f"cannot download Disco103's weights: {reason}; {by_hand}") from None
    write(cached, data)
    return cached


def read(path: Path) -> dict[str, np.ndarray]:
    """Read the published .npz file.

    Raises:
      ValueError: naming the file and the first key that is missing, unknown, or of another shape or dtype.
    """
    try:
        with archives.opened(path) as archive:
            return archive.read_all(disco103.expected_shapes(), "Disco103")
    except FileNotFoundError:
        raise ValueError(f"{path} {NO_FILE}") from None


def _download() -> bytes:
    """Return what the URL holds.

    Raises:
      OSError: without an answer, or if it is an error, or has another digest.
      HTTPException: if the answer is not HTTP, or ends early.
    """
    with urllib.request.urlopen(URL, timeout=TIMEOUT_SECONDS) as response:
        data = response.read()
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256:
        raise OSError(f"the SHA-256 of what came is {digest}, expected {SHA256}")
    return data
