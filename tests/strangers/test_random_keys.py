"""No random key is used twice: every regime, tiny, under `jax_debug_key_reuse`."""

import jax
import pytest

import frodo
from agents.networks.agent import NetworkConfig
from toy_envs.bandit import Bandit
from toy_envs.base import DmEnv
from toy_envs.catch import Catch
from toy_envs.changing import Changing
from toy_envs.rule_room import RuleRoom
from toy_envs.trials import Trials

pytestmark = pytest.mark.slow  # each compiles a regime

TINY = dict(batch_size=4, unroll=4, network=NetworkConfig("mlp", (4,)))
REPLAY = dict(replay=frodo.ReplayConfig(capacity=8, batch_size=4, fresh=0.5))
MINIBATCHES = dict(epochs=2, minibatches=2)


@pytest.fixture(autouse=True)
def checked():
    with jax.debug_key_reuse(True):
        yield


def live(environment, rule, **settings):
    return frodo.discover_online(environment, rule, num_steps=240, key=jax.random.key(0), **TINY | settings)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("frodo", dict(num_updates=1, validation_unroll=4) | REPLAY),
        ("ppo", MINIBATCHES),
        ("dqn", dict(replay=frodo.ReplayConfig(capacity=8, batch_size=4, fresh=0.0))),
    ],
)
def test_an_online_lifetime(rule, settings):
    live(Catch(4, 3), rule, **settings)


@pytest.mark.parametrize(
    "environment",
    [
        Changing(Bandit(2), "rewards", 5),
        Trials(RuleRoom("main"), 3, 1),
    ],
    ids=lambda environment: type(environment).__name__,
)
def test_toys_that_draw(environment):
    live(environment, "impala")


def test_a_lifetime_on_the_host():
    live([DmEnv(Catch(4, 3), seed) for seed in range(4)], "impala")
    live("bsuite/catch/0", "impala")


@pytest.mark.long
def test_trials_with_tasks_that_are_chosen():
    rooms = Trials(RuleRoom("main"), 1)
    settings = TINY | dict(unroll=rooms.horizon, curriculum=frodo.CurriculumConfig("plr"))
    result = frodo.discover_online(rooms, "impala", num_steps=256, key=jax.random.key(0), **settings)
    room = RuleRoom("main")
    tasks = frodo.held_out_tasks(room, 2)
    frodo.returns_by_trial(result.learner, result.params, room, tasks, jax.random.key(1), num_trials=1)


@pytest.mark.long
@pytest.mark.parametrize("environment", [Catch(4, 3), "bsuite/catch/0"], ids=["pure", "host"])
def test_a_population(environment):
    settings = TINY | dict(budgets=(100,), num_updates=1, validation_unroll=4, is_acting_interleaved=False) | REPLAY
    frodo.discover([environment] * 2, "frodo", num_meta_steps=1, key=jax.random.key(0), **settings)
