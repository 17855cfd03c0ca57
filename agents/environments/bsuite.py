"""The environments of bsuite, by their ids; they speak `dm_env`."""

import inspect
from collections.abc import Sequence

import dm_env


def make_bsuite(bsuite_id: str, seed: int) -> dm_env.Environment:
    """Make one environment of bsuite with the settings of its id, seeded if bsuite lets it be."""
    from bsuite import bsuite, sweep

    settings = dict(sweep.SETTINGS[bsuite_id])
    experiment, _ = bsuite.unpack_bsuite_id(bsuite_id)
    if "seed" in inspect.signature(bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT[experiment]).parameters:
        settings["seed"] = seed
    return bsuite.load(experiment, settings)


def bsuite_ids() -> Sequence[str]:
    """Return the ids of all environments that bsuite has, as 'catch/0'."""
    from bsuite import sweep

    return sweep.SWEEP
