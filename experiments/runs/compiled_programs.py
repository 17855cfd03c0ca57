"""Compiled programs, kept in the user's cache folder from one run to the next by JAX's own cache.

A folder holds those of one version of JAX and one kind of processor: JAX's keys do not tell processors apart. In the
environment, JAX_COMPILATION_CACHE_DIR names another folder, and JAX_ENABLE_COMPILATION_CACHE=false keeps nothing.
"""

import contextlib
import glob
import hashlib
import os
import platform
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax

from frodo.files import cache_folder
from frodo.logs import note

MAX_BYTES = 2 * 2**30  # of all folders together
MIN_SECONDS = 0.2  # to compile: what takes less is not kept


def keep() -> None:
    """Let JAX keep what it compiles, and read what it kept; old programs go where there are more than MAX_BYTES.

    A folder that cannot be written is said in one line, and nothing is kept then; so is an entry that cannot be read or
    written, which is ignored, and removed with those of its name. Nothing else goes from a folder that is named.
    """
    if not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = Path(named or "the cache folder")
    try:
        root = Path(named) if named else cache_folder() / "compiled"
        folder = root if named else root / f"jax-{jax.__version__}-{_processor()}"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        if not named:
            _remove_oldest(root, MAX_BYTES)
    except (OSError, RuntimeError) as error:  # there may be no home
        note(f"compiled programs are not kept: {folder}: {getattr(error, 'strerror', None) or error}")
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    show = warnings.showwarning

    def show_in_one_line(message: Any, *args: Any, **kwargs: Any) -> None:
        found = re.match(r"Error (read|writ)ing persistent compilation cache entry for '(.*?)': ([^\n]*)", str(message))
        if not found:
            return show(message, *args, **kwargs)
        if found[1] == "read":
            digest = "[0-9a-f]" * 64
            for path in folder.glob(f"{glob.escape(found[2])}-{digest}-cache"):  # JAX would leave it, for the next run
                with contextlib.suppress(OSError):
                    path.unlink()
        what = {"read": "read", "writ": "written"}[found[1]]
        note(f"{found[2]}: the compiled program in {folder} cannot be {what}, and is ignored: {found[3]}")

    warnings.showwarning = show_in_one_line


def _processor() -> str:
    """Return a name for the processors that run the same programs: a digest of what the system says of this one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        said = sorted(set(re.findall(r"^(?:model name|flags|Features|CPU part)\s*: (.*)$", text, re.MULTILINE)))
    except OSError:
        said = [platform.processor()]
    return f"{platform.machine()}-{hashlib.sha256(repr(said).encode()).hexdigest()[:8]}"


def _remove_oldest(root: Path, max_bytes: int) -> None:
    """Remove what has not been used for longest, until the files under `root` have at most so many bytes."""
    stats = {}
    for path in root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process removes, too
            if path.is_file():
                stats[path] = path.stat()
    size = sum(stat.st_size for stat in stats.values())
    for path in sorted(stats, key=lambda path: max(stats[path].st_atime, stats[path].st_mtime)):
        if size <= max_bytes:
            return
        path.unlink(missing_ok=True)
        size -= stats[path].st_size
