"""Stepping a host environment, and what holds in every one with next-step reset."""

import numpy as np

from toy_envs.base import TimeStep


def collect(environment, actions) -> TimeStep:
    """Reset, then take the actions [T, B]: every field [T + 1, B, ...], with the dtypes of the contract."""
    steps = [environment.reset(), *(environment.step(np.asarray(action, np.int32)) for action in actions)]
    copies = [step.observation.copy() for step in steps]
    environment.step(np.asarray(actions[-1], np.int32))
    for step, copy in zip(steps, copies, strict=True):  # buffers are not used again
        np.testing.assert_array_equal(step.observation, copy)
        assert (step.reward.dtype, step.discount.dtype) == (np.float32, np.float32)
        assert (step.truncated.dtype, step.valid.dtype, step.is_first.dtype) == (bool, bool, bool)
        assert step.observation.dtype == environment.observation_dtype
        assert step.observation.shape == (environment.num_envs, *environment.observation_shape)
        assert all(field.shape == (environment.num_envs,) for field in step[1:])
    return TimeStep(*(np.stack(field) for field in zip(*steps, strict=True)))


def check_next_step_reset(steps: TimeStep):
    """What holds for every host environment, whatever happens in it."""
    is_over = (steps.discount == 0) | steps.truncated
    np.testing.assert_array_equal(steps.is_first[0], True)
    np.testing.assert_array_equal(steps.is_first[1:], is_over[:-1])
    np.testing.assert_array_equal(steps.valid, ~steps.is_first)
    for field, value in ((steps.reward, 0), (steps.discount, 1), (steps.truncated, False)):
        np.testing.assert_array_equal(field[steps.is_first], value)
    assert not np.any(steps.truncated & (steps.discount == 0))
