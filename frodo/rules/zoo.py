"""Rules that others have found, with their cards: on a hub, or in a folder that stands for one.

A rule of the name owner/name has three files there: rule.npz, card.json (`frodo.rules.cards`) and README.md. What comes
is checked before it is read: its sizes, its SHA-256 against the card's, and, as of any file, its arrays. The hub is
Hugging Face's, whose library is an extra; the environment variable FRODO_ZOO names a folder instead.
"""

import abc
import contextlib
import hashlib
import os
import queue
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from frodo import files
from frodo.logs import note
from frodo.rules import cards
from frodo.rules.cards import Card

PREFIX = "hub:"  # of names that `load_rule` takes
TAG = "frodo-rl"  # of a hub's models that are rules
RULE, CARD, PAGE = "rule.npz", "card.json", "README.md"
MAX_BYTES = {RULE: 2**26, CARD: 2**20, PAGE: 2**20}
TIMEOUT_SECONDS = 30.0
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w.-]{1,100})?", re.ASCII)


class Hub(abc.ABC):
    """Where rules are; errors are ValueErrors of one line."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Return the names of all rules, owner/name."""

    @abc.abstractmethod
    def label(self, name: str) -> str:
        """Return what messages call a rule."""

    @abc.abstractmethod
    def sizes(self, name: str) -> Mapping[str, int]:
        """Return the bytes of a rule's files by their names."""

    @abc.abstractmethod
    def read(self, name: str, file: str) -> bytes:
        """Return what one of its files holds."""


class Folder(Hub):
    """A folder that has for each rule a folder owner/name."""

    def __init__(self, root: Path):
        self.root = root

    def names(self) -> list[str]:
        return sorted(f"{x.parent.parent.name}/{x.parent.name}" for x in self.root.glob(f"*/*/{CARD}"))

    def label(self, name: str) -> str:
        return str(self.root / name)

    def sizes(self, name: str) -> Mapping[str, int]:
        return {x.name: x.stat().st_size for x in (self.root / name).glob("*") if x.is_file()}

    def read(self, name: str, file: str) -> bytes:
        with _refusing(f"{self.root / name / file} cannot be read"):
            return (self.root / name / file).read_bytes()


class HuggingFace(Hub):
    """Models of the hub of huggingface.co, or of that which the environment variable HF_ENDPOINT names."""

    def __init__(self) -> None:
        try:
            import huggingface_hub
            from huggingface_hub.utils import logging
        except ImportError:
            raise ValueError(
                "rules of a hub need huggingface_hub: pip install 'frodo-rl[hub]'; or name a folder by FRODO_ZOO"
            ) from None
        logging.set_verbosity_error()  # it tells of each retry
        self._api = huggingface_hub.HfApi(os.environ.get("HF_ENDPOINT") or None)
        self._revisions: dict[str, str] = {}  # of what was found, which all files are read from

    def names(self) -> list[str]:
        note(f"asking {self._api.endpoint} for models with the tag {TAG}")
        with _refusing(f"{self._api.endpoint} did not answer"):
            return _within(TIMEOUT_SECONDS, lambda: sorted(x.id for x in self._api.list_models(filter=TAG)))

    def label(self, name: str) -> str:
        return f"{PREFIX}{name}"

    def sizes(self, name: str) -> Mapping[str, int]:
        model, _, revision = name.partition("@")
        note(f"asking {self._api.endpoint} for {name}")
        with _refusing(f"{self.label(name)} cannot be found at {self._api.endpoint}"):
            how: dict[str, Any] = dict(files_metadata=True, timeout=TIMEOUT_SECONDS)
            found = self._api.model_info(model, revision=revision or None, **how)
            self._revisions[name] = found.sha or revision
            return {x.rfilename: -1 if x.size is None else x.size for x in found.siblings or ()}

    def read(self, name: str, file: str) -> bytes:
        model, _, named = name.partition("@")
        revision = self._revisions.get(name, named)
        with tempfile.TemporaryDirectory() as folder, _refusing(f"{file} of {self.label(name)} cannot be downloaded"):
            how: dict[str, Any] = dict(local_dir=folder, etag_timeout=TIMEOUT_SECONDS)
            return Path(self._api.hf_hub_download(model, file, revision=revision or None, **how)).read_bytes()


def hub() -> Hub:
    """Return the folder that FRODO_ZOO names, else Hugging Face's hub.

    Raises:
      ValueError: if there is no such folder, or huggingface_hub is not installed.
    """
    if not (named := os.environ.get("FRODO_ZOO")):
        return HuggingFace()
    if not Path(named).is_dir():
        raise ValueError(f"FRODO_ZOO={named} names no folder: give one that has rules as owner/name/{RULE}")
    return Folder(Path(named))


def find(name: str) -> Path:
    """Return the file of a rule, checked: from a folder, or from the cache, else a download into it.

    Args:
      name: owner/name, which may begin with `PREFIX`; on a hub with @revision, if a certain one is meant.
    Raises:
      ValueError: naming the rule and what is wrong, in one line; nothing is left in the cache then.
      DiskError: if the cache cannot be written.
    """
    path = _cached(checked_name(name))
    if os.environ.get("FRODO_ZOO") or not path.is_dir():
        return pull(name)
    try:
        read(path.name, Folder(path.parent))
    except ValueError as error:
        note(f"{error}: pulling it again")
        return pull(name)
    return path / RULE


def pull(name: str) -> Path:
    """Download a rule into the cache, where `find` finds it; returns its file. Errors are those of `find`.

    One of a folder stays where it is.
    """
    name, where = checked_name(name), hub()
    _, arrived = read(name, where)
    if isinstance(where, Folder):
        return where.root / name / RULE
    for file in (CARD, PAGE, RULE):
        files.write(_cached(name) / file, arrived[file])
    return _cached(name) / RULE


def page(name: str) -> str:
    """Return the page of a rule's card, made of its numbers, of a zoo or the cache; errors are those of `find`."""
    return cards.to_markdown(card_of(find(name).parent))


def card_of(folder: Path) -> Card:
    """Return the card in a folder; a ValueError if it is none, or too large."""
    path = folder / CARD
    with _refusing(f"{path} cannot be read"):
        if (size := path.stat().st_size) > MAX_BYTES[CARD]:
            raise ValueError(f"it has {size:,} bytes, expected at most {MAX_BYTES[CARD]:,}")
        data = path.read_bytes()
    return cards.from_json(data, str(path))


def read(name: str, where: Hub) -> tuple[Card, dict[str, bytes]]:
    """Return a rule's card and its three files, of which the rule's has the digest that the card names.

    Raises:
      ValueError: naming the first file that is missing, too large, damaged, or not what the card says.
    """
    label, sizes = where.label(name), where.sizes(name)
    _check_sizes(label, sizes)
    arrived = {file: where.read(name, file) for file in (CARD, PAGE, RULE)}
    for file, data in arrived.items():
        if len(data) != sizes[file]:
            raise ValueError(f"{file} of {label} came with {len(data):,} bytes, expected {sizes[file]:,}")
    card = cards.from_json(arrived[CARD], f"{CARD} of {label}")
    if (digest := hashlib.sha256(arrived[RULE]).hexdigest()) != card.sha256:
        raise ValueError(f"{RULE} of {label} has the SHA-256 {digest}, expected {card.sha256}, as in its card")
    return card, arrived


def checked_name(name: str) -> str:
    """Return the name of a rule in a zoo without `PREFIX`; a ValueError where it is none."""
    own = name.removeprefix(PREFIX)
    if not _NAME.fullmatch(own):
        raise ValueError(f"{name!r} is no name in a zoo, expected {PREFIX}owner/name")
    return own


def _check_sizes(label: str, sizes: Mapping[str, int]) -> None:
    for file, most in MAX_BYTES.items():
        if file not in sizes:
            raise ValueError(f"{label} is no rule: it has no {file}")
        if sizes[file] < 0:
            raise ValueError(f"{file} of {label} has no known size")
        if sizes[file] > most:
            raise ValueError(f"{file} of {label} has {sizes[file]:,} bytes, expected at most {most:,}")


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """Return what a function returns, if it does so in time; else a TimeoutError. It may go on in a thread."""
    found: queue.Queue = queue.Queue()

    def run() -> None:
        try:
            found.put((ask(), None))
        except Exception as error:  # which the caller raises
            found.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer in {seconds:g} seconds") from None
    if error:
        raise error
    return value


def _cached(name: str) -> Path:
    return files.cache_folder() / "zoo" / name


@contextlib.contextmanager
def _refusing(reason: str) -> Iterator[None]:
    """Turn what a hub's library, or the disk, raises into a ValueError of one line."""
    try:
        with files.refusing(reason):
            yield
    except FileNotFoundError as error:
        raise ValueError(f"{reason}: {error.strerror or error}") from None
