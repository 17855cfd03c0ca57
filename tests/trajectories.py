"""Random trajectories with every kind of episode end inside, for tests."""

import numpy as np

from agents.types import Trajectory


def random_trajectory(
    seed: int, *shape: int, num_actions: int = 3, observation: tuple[int, ...] = (2, 2)
) -> Trajectory:
    """Draw a trajectory [..., T, B] in float64, T and B at least 5 and 3.

    Column 0 terminates at step 1, column 1 is truncated at step 2 and has its reset step at 3, column 2 is truncated
    at step 0 with a successor that is unknown, and terminates at the last step.
    """
    rng = np.random.default_rng(seed)
    *leading, num_steps, batch_size = shape
    discount, truncated, valid = np.ones(shape), np.zeros(shape, bool), np.ones(shape, bool)
    is_first = np.zeros((*leading, num_steps + 1, batch_size), bool)
    discount[..., 1, 0] = 0.0
    is_first[..., 2, 0] = True
    truncated[..., 2, 1] = True
    valid[..., 3, 1] = False
    is_first[..., 4, 1] = True
    truncated[..., 0, 2] = True
    is_first[..., 1, 2] = True
    discount[..., -1, 2] = 0.0
    is_first[..., -1, 2] = True
    return Trajectory(
        observation=rng.normal(size=(*leading, num_steps + 1, batch_size, *observation)),
        is_first=is_first,
        action=rng.integers(num_actions, size=shape).astype(np.int32),
        reward=rng.normal(size=shape) * valid,
        discount=discount,
        truncated=truncated,
        valid=valid,
        behaviour_logits=rng.normal(size=(*shape, num_actions)),
        core_state=(),
    )
