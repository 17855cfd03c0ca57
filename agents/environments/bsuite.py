"""The environments of bsuite, by their ids; they speak `dm_env`."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import dm_env

MNIST = Path("/tmp/mnist")  # where bsuite and gymnax look for its files, and else download them to
MNIST_FILES = tuple(
    f"{part}-ubyte.gz" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)


def make_bsuite(bsuite_id: str, seed: int) -> dm_env.Environment:
    """Make one environment of bsuite with the settings of its id, seeded if bsuite lets it be.

    Raises:
      ValueError: if it needs the files of MNIST, and one is missing: nothing is downloaded.
    """
    from bsuite import bsuite, sweep

    settings = dict(sweep.SETTINGS[bsuite_id])
    experiment, _ = bsuite.unpack_bsuite_id(bsuite_id)
    if experiment.startswith("mnist"):
        check_mnist(f"bsuite/{bsuite_id}")
    if "seed" in inspect.signature(bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT[experiment]).parameters:
        settings["seed"] = seed
    return bsuite.load(experiment, settings)


def check_mnist(name: str) -> None:
    """Raise a ValueError where an environment that shows MNIST lacks one of its files."""
    for file in MNIST_FILES:
        if not (MNIST / file).is_file():
            raise ValueError(
                f"{name} needs the file {MNIST / file}, which is missing: download it from "
                f"https://storage.googleapis.com/cvdf-datasets/mnist/{file}"
            )


def bsuite_ids() -> Sequence[str]:
    """Return the ids of all environments that bsuite has, as 'catch/0'."""
    from bsuite import sweep

    return sweep.SWEEP
