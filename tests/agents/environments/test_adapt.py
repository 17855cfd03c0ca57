"""What a user of another library has, and the adapter that it gets."""

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from agents.environments.adapt import as_environment
from agents.environments.dm_env import DmEnvBatch
from agents.environments.gymnasium import GymnasiumEnvironment
from tests.agents.environments.stepping import check_next_step_reset, collect
from toy_envs.base import DmEnv
from toy_envs.catch import Catch


def make_cart_pole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def make_catch(seed: int = 0) -> dm_env.Environment:
    return DmEnv(Catch(rows=3), seed)


@pytest.mark.parametrize(
    ("make", "kind", "num_envs"),
    [
        (make_catch, DmEnvBatch, 1),
        (lambda: [make_catch(0), make_catch(1)], DmEnvBatch, 2),
        (lambda: (make_catch(0), make_catch(1)), DmEnvBatch, 2),
        (make_cart_pole, GymnasiumEnvironment, 1),
        (lambda: SyncVectorEnv([make_cart_pole] * 2), GymnasiumEnvironment, 2),
    ],
)
def test_each_library_has_its_adapter(make, kind, num_envs):
    environment = as_environment(make())
    assert type(environment) is kind and environment.num_envs == num_envs
    assert as_environment(environment) is environment
    steps = collect(environment, np.ones((12, num_envs)))
    check_next_step_reset(steps)
    assert np.all(np.any(steps.discount == 0, axis=0))
    environment.close()


def test_a_single_environment_of_gymnasium_is_named_in_errors():
    for environment, name in (
        (gymnasium.make("Pendulum-v1"), "Pendulum-v1"),
        (TimeLimit(PendulumEnv(), 5), "PendulumEnv"),
    ):
        with pytest.raises(ValueError, match=f"environment '{name}' is not supported"):
            as_environment(environment)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "environment is None, expected"),
        (make_cart_pole, "environment is a function, expected"),
        ([make_catch(), make_cart_pole()], "environment is a list, expected"),
        (np.random.default_rng(0), "environment is a numpy.random._generator.Generator, expected"),
    ],
)
def test_anything_else_is_refused(wrong, message):
    with pytest.raises(TypeError, match=message) as error:
        as_environment(wrong)
    assert "\n" not in str(error.value)
    for name in ("frodo.Environment", "dm_env.Environment", "gymnasium.vector.VectorEnv", "gymnasium.Env"):
        assert name in str(error.value)


def test_no_environment_at_all_is_refused():
    with pytest.raises(ValueError, match="environments has the length 0, expected at least 1"):
        as_environment([])
