"""The repository of this package: which revision is here, and the packages as they were at another one."""

import contextlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from frodo.runs.errors import UsageError

ROOT = Path(__file__).parents[2]


def describe() -> str | None:
    """Return the commit that is here, with "-dirty" if files differ from it; None outside of a repository."""
    with contextlib.suppress(UsageError):
        return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").decode().strip()
    return None


def check_out(revision: str, folder: Path) -> str:
    """Write the packages as they were at a revision to a folder, and see that they are imported from there.

    Returns:
      the commit.
    Raises:
      UsageError: if there is no such revision, or no repository, or the revision does not install.
    """
    try:
        commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
        archive = _git("archive", "--format=tar", commit)
    except UsageError as error:
        raise UsageError(f"--against={revision}: {str(error) or 'there is no such revision'}") from None
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    trial = subprocess.run(
        [sys.executable, "-P", "-c", "import experiments.online, frodo; print(frodo.__file__)"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = (trial.stderr if trial.returncode else trial.stdout).strip().splitlines() or ["it said nothing"]
    if trial.returncode:
        raise UsageError(f"--against={revision}: the revision does not install here: {said[-1]}")
    if not Path(said[-1]).resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--against={revision}: the revision does not install here: frodo is that of {said[-1]}")
    return commit


def _git(*arguments: str) -> bytes:
    """Return what git says of the repository; a UsageError has the last line of its error, which may be empty."""
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
    except OSError as error:
        raise UsageError(f"git cannot be run: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        raise UsageError((error.stderr.decode().strip().splitlines() or [""])[-1]) from None
