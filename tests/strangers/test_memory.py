"""What a run needs of memory is known before it begins, in programs and in the library, and is told in a line."""

import jax
import numpy as np
import pytest

import frodo
from agents.acting.replay import ReplayConfig
from agents.networks.agent import NetworkConfig
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.runs import memory
from frodo.settings import presets
from toy_envs.catch import Catch

SMALL = dict(num_steps=1e15, key=jax.random.key(0), batch_size=4, unroll=5, network=NetworkConfig("mlp", (8,)))
TOO_LARGE = [
    (dict(batch_size=2_000_000_000), "batch_size"),
    (dict(unroll=2_000_000_000), "unroll"),
    (dict(num_updates=2_000_000_000, is_acting_interleaved=False), "num_updates"),
    (
        dict(network=NetworkConfig("mlp", (2_000_000_000,))),
        r"the network \(network.hidden, core, channels or action_mo",
    ),
    (dict(network=NetworkConfig("mlp", (8,), core=2_000_000_000)), "the network"),
    (dict(replay=ReplayConfig(2_000_000_000, 32), is_acting_interleaved=False), "replay.capacity"),
]


@pytest.mark.parametrize("settings, name", TOO_LARGE, ids=lambda x: x if isinstance(x, str) else "")
def test_a_life_that_does_not_fit_is_refused_before_anything_is_allocated(settings, name):
    with pytest.raises(ValueError, match=f"^at least .* bytes of memory are needed, and .* are there: make {name}"):
        frodo.discover_online(Catch(), "impala", **SMALL | settings)


def test_on_the_host_too():
    import gymnasium

    environment = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(ValueError, match="make unroll smaller$"):
        frodo.discover_online(environment, "impala", **SMALL | dict(batch_size=2, unroll=2_000_000_000))


def test_a_population_that_does_not_fit_is_refused():
    how = dict(num_meta_steps=1, key=jax.random.key(0), batch_size=4)
    with pytest.raises(ValueError, match="are there: make the network"):
        frodo.discover([Catch(), Catch()], "frodo", network=NetworkConfig("mlp", (2_000_000_000,)), **how)


@pytest.mark.parametrize(
    "setting, name",
    [
        ("batch_size=2000000000", "batch_size"),
        ("network.hidden=2000000000", "the network"),
        ("network.hidden=300000,300000", "the network"),
        ("rule.lstm=2000000000", "the networks of the rule"),
    ],
)
def test_a_program_says_so_and_writes_nothing(start, tmp_path, setting, name):
    run = start("experiments.online", f"--config.{setting}", f"--out={tmp_path}/run")
    assert run.returncode == 2 and len(run.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())
    assert run.stderr.startswith("error: at least ") and f"are there: make {name}" in run.stderr


@pytest.mark.parametrize("setting", ["num_lanes=2000000000", "lane.capacity=2000000000", "lane.batch_size=2000000000"])
def test_a_search_too(start, tmp_path, setting):
    run = start("experiments.evolve", f"--config.{setting}", f"--out={tmp_path}/run")
    assert run.returncode == 2 and "bytes of memory are needed" in run.stderr and not list(tmp_path.iterdir())


def test_seeds_have_a_state_each(start, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 20_000_000)
    settings = ("--rule=impala", "--config.network.hidden=64,64", "--config.batch_size=4", "--steps=100")
    run = start("experiments.online", *settings, "--seeds=0-9999", f"--out={tmp_path}/run")
    assert run.returncode == 2 and "bytes of memory are needed, and 20M are there" in run.stderr


@pytest.mark.parametrize("rule", ["impala", "frodo"])
def test_the_estimate_is_the_state_and_what_is_acted(rule):
    """State and trajectories as they are, to the byte."""
    config = presets.for_observations(Catch().observation_shape, np.float32, rule)
    config = config.replace(batch_size=4, unroll=5, validation_unroll=5, is_acting_interleaved=False)
    learner = build_learner(config, 3, False)
    program = make_online_program(learner, Catch())
    state = jax.jit(program.init)(jax.random.key(0))
    agent = learner.setup.agent
    parts = memory.needs(config, agent, Catch(), learner.is_meta, state)
    trajectories = config.schedule(learner.is_meta).num_trajectories * [5] + [5] * learner.is_meta
    of_state = sum(
        jax.random.key_data(x).nbytes if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x.nbytes
        for x in jax.tree.leaves(state)
    )
    of_step = 4 * (4 + 4 + 4 + 1 + 1 + 3 * 4)  # action, reward, discount, truncated, valid, logits of three actions
    of_observation = 4 * (int(np.prod(Catch().observation_shape)) * 4 + 1)  # and whether it is a first one
    acted = sum(length * of_step + (length + 1) * of_observation for length in trajectories)
    assert sum(parts.values()) == of_state + acted


def test_what_fits_to_the_byte_is_let_through(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 100)
    memory.check({"a": 60, "b": 40})
    with pytest.raises(
        ValueError, match="^at least 101 bytes of memory are needed, and 100 are there: make a smaller$"
    ):
        memory.check({"a": 61, "b": 40})


def test_a_containers_limit_counts(monkeypatch):
    monkeypatch.setattr(memory, "_limits_of_container", lambda: [12_345, 10**30])
    assert memory.available() == 12_345


@pytest.mark.parametrize("learning_rate", [float("inf"), float("nan"), 1e300])
@pytest.mark.parametrize("name", ["optimizer", "meta_optimizer"])
def test_a_learning_rate_that_is_no_number_is_refused_in_the_library(name, learning_rate):
    optimizer = frodo.OptimizerConfig(learning_rate=learning_rate)
    with pytest.raises(ValueError, match=rf"^{name}.learning_rate is .*, expected a"):
        frodo.discover_online(Catch(), "impala", **SMALL | {name: optimizer})
