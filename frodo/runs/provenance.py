"""Where numbers come from: the versions of packages, the git revision, the device and its precision."""

import contextlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("frodo-rl", "jax", "jaxlib", "dm-haiku", "optax", "rlax", "chex", "numpy", "envpool")


def versions() -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def provenance() -> dict[str, Any]:
    """Return what config.json has of the machine; the git revision is None outside of a repository.

    `matmul_precision` is that of JAX_DEFAULT_MATMUL_PRECISION, None for the device's own.
    """
    devices = jax.devices()
    return {
        "versions": {"python": sys.version.split()[0], **versions()},
        "git_revision": git_revision(),
        "device": f"{len(devices)} x {devices[0].platform} {devices[0].device_kind}",
        "matmul_precision": matmul_precision(),
    }


def git_revision(num_digits: int = 40) -> str | None:
    """Return the revision of this package's repository, with -dirty where files differ; None outside of one.

    An installed package may lie in a folder of another repository.
    """
    here, describe = Path(__file__), ["describe", "--always", "--dirty", f"--abbrev={num_digits}", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for command in (["ls-files", "--error-unmatch", here.name], describe):
            done = subprocess.run(["git", *command], cwd=here.parent, capture_output=True, text=True, check=True)
        return done.stdout.strip() or None
    return None


def matmul_precision() -> str | None:
    return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
