"""Training on toys and on hosts: what it writes, how it goes on, and when it stops."""

import dataclasses
import json
import signal

import jax.numpy as jnp
import numpy as np
import pytest

from agents.acting.on_host import HostActor
from agents.acting.replay import ReplayConfig
from agents.environments.host import HostEnvironment, NotFiniteError, first_step
from agents.environments.names import make_environment
from agents.networks.agent import NetworkConfig
from experiments.runs import loaded_agent, training
from frodo.regimes import in_jax, on_host
from frodo.runs.errors import UsageError
from frodo.runs.run import Run
from frodo.settings import presets
from frodo.settings.config import make_setup
from tests.experiments.runs.small_runs import CLOCKS, options, rows, small_catch

LONG = pytest.mark.long


def small_cart_pole(rule="frodo"):
    config = presets.for_rule("envpool/CartPole-v1", rule)
    if rule == "frodo":
        config = config.replace(rule=config.rule.replace(lstm=8))
    return config.replace(batch_size=2, unroll=5, validation_unroll=5, network=NetworkConfig("mlp", (16,)))


def small_trials():
    config = presets.for_rule("trials/2/toy/rule_room/easy", "impala")
    return config.replace(batch_size=2, network=NetworkConfig("mlp", (4,), core=4))


def small_muesli():
    config = presets.for_rule("toy/catch/4x3", "muesli")
    return config.replace(
        batch_size=2,
        unroll=4,
        validation_unroll=4,
        rule=config.rule.replace(max_value=3, model_steps=2),
        replay=ReplayConfig(capacity=8, batch_size=4, fresh=0.25),
        network=NetworkConfig("mlp", (8,), action_model=8),
    )


@pytest.mark.parametrize(
    "make", [small_catch, *(pytest.param(x, marks=LONG) for x in (small_trials, presets.random_walk, small_muesli))]
)
def test_a_resumed_toy_run_is_bit_for_bit_one_that_never_stopped(make, tmp_path, monkeypatch):
    config = make()
    per_iteration = config.batch_size * (config.num_updates * config.unroll + config.validation_unroll)
    train = lambda folder, **others: training.train(
        config, options(tmp_path / folder, 100 * per_iteration, **others), experiment="e", name="n"
    )
    whole = train("whole")
    interrupt_at_the_third_row(monkeypatch)
    with pytest.raises(SystemExit):
        train("parts")
    monkeypatch.undo()
    assert len(rows(tmp_path / "parts")) == 3 * 2
    parts = train("parts", resume=True)
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")
    assert len(rows(tmp_path / "whole")) == 20 * 2
    for name in set(whole) - {*CLOCKS, "steps_per_cpu_second"}:
        np.testing.assert_array_equal(whole[name], parts[name], err_msg=name)
    with np.load(tmp_path / "whole/last_iterations.npz") as x, np.load(tmp_path / "parts/last_iterations.npz") as y:
        assert {*x} == {*y}
        for name in x:
            np.testing.assert_array_equal(x[name], y[name], err_msg=name)


@pytest.mark.parametrize(
    ("config", "seeds", "expected"),
    [
        (presets.catch(), (0,), True),
        (presets.vector_observations("toy/grid_world/0"), (3,), True),
        (presets.random_walk(), (0, 1), False),  # seeds share the cores
        (presets.for_rule("toy/catch/8x8", "disco"), (0,), False),  # large products
        (small_cart_pole(), (0,), False),  # the actor has a thread
    ],
)
def test_one_thread_runs_one_seed_of_a_small_toy(config, seeds, expected, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(training, "use_one_thread", lambda: calls.append("one thread"))

    def load_teacher(config):
        calls.append("teacher")  # which starts JAX
        raise ValueError("far enough")

    monkeypatch.setattr(training, "load_teacher", load_teacher)
    with pytest.raises(ValueError, match="far enough"):
        training.train(config, options(tmp_path, 100, seeds), experiment="e", name="n")
    assert calls == ["one thread"] * expected + ["teacher"]


@pytest.mark.parametrize("rule", ["frodo", "impala"])
def test_a_host_run_goes_through_its_seeds_and_goes_on_in_the_second(rule, tmp_path, monkeypatch):
    config = small_cart_pole(rule)
    train = lambda steps, **others: training.train(
        config, options(tmp_path / "run", steps, **others), experiment="e", name="n"
    )
    interrupt_in_second_seed(monkeypatch)
    with pytest.raises(SystemExit):
        train(1200)
    monkeypatch.undo()
    begun = rows(tmp_path / "run", without=())
    assert [row["seed"] for row in begun][-1] == "1" and int(begun[-1]["env_steps"]) < 1200
    summary = train(1200, resume=True)
    logged = rows(tmp_path / "run", without=())
    assert logged[: len(begun)] == begun
    for seed in ("0", "1"):
        steps = [int(row["env_steps"]) for row in logged if row["seed"] == seed]
        assert steps == sorted(set(steps)) and 1200 <= steps[-1] < 1400
        assert sum(float(row["episodes"]) for row in logged if row["seed"] == seed) > 5
    assert np.isfinite(summary["return"]).all() and ("target_difference" in summary) == (rule == "frodo")
    with pytest.raises(UsageError, match="--steps=1800, more than the 1200 of .*, and its first seeds are done"):
        train(1800, resume=True)
    checkpoints = [int(path.stem) for path in (tmp_path / "run/checkpoints").iterdir()]
    assert len(checkpoints) == 2, "one at the interrupt, one at the end"


class Counting(HostEnvironment):
    """Shows who it is, and how many steps it has taken; episodes do not end."""

    observation_shape, observation_dtype, num_actions = (4,), np.dtype(np.float32), 2  # as CartPole

    def __init__(self, number, num_envs):
        self.number, self.num_envs, self.num_steps = number, num_envs, 0

    def _observation(self):
        return np.full((self.num_envs, 4), (self.number, self.num_steps, 0, 0), np.float32)

    def reset(self):
        return first_step(self._observation())

    def step(self, actions):
        self.num_steps += 1
        begun = first_step(self._observation())
        return begun._replace(is_first=np.zeros(self.num_envs, bool), valid=np.ones(self.num_envs, bool))

    def close(self):
        pass


def test_actors_take_turns_and_no_step_is_lost_also_where_a_run_goes_on(tmp_path, monkeypatch):
    config = small_cart_pole("impala").replace(num_actors=2, num_updates=2)
    handed, seeds = [], []

    class Watched(HostActor):
        def get(self, *of):
            acted = super().get(*of)
            handed.append(np.asarray(acted.trajectories.observation)[:, :-1, 0])  # [M, T, 2]
            return acted

    def make(name, num_envs, seed):
        seeds.append(seed)
        return Counting(len(seeds) - 1, num_envs)

    monkeypatch.setattr(on_host, "HostActor", Watched)
    train = lambda **others: training.train(
        config, options(tmp_path, 7 * 20, (0,), **others), experiment="e", name="n", make=make
    )
    with monkeypatch.context() as patch:
        interrupt_at_the_third_row(patch)
        with pytest.raises(SystemExit):
            train()
    train(resume=True)
    # The first environment of each part shows its shapes alone. The fourth iteration is the second actor's.
    assert [int(x[0, 0, 0]) for x in handed] == [1, 2, 1, 5, 4, 5, 4]
    for number in (1, 2, 4, 5):
        own = np.concatenate([x[..., 1].ravel() for x in handed if x[0, 0, 0] == number])
        np.testing.assert_array_equal(own, np.arange(len(own)))
    assert len({seeds[i] for i in (1, 2, 4, 5)}) == 4
    logged = rows(tmp_path, without=())
    assert [int(row["env_steps"]) for row in logged] == [20 * i for i in range(1, 8)]
    assert all(0 <= float(row[name]) <= 1.01 for row in logged for name in ("learner_waiting", "actors_waiting"))
    assert loaded_agent.load(tmp_path).seed == 0


def test_actors_take_turns_where_several_iterations_are_handed_over(tmp_path, monkeypatch):
    handed, made = [], []

    class Watched(HostActor):
        def get(self, *of):
            acted = super().get(*of)
            handed.append(np.asarray(acted.trajectories.observation)[..., 0].ravel())
            return acted

    def make(name, num_envs, seed):
        made.append(Counting(len(made), num_envs))
        return made[-1]

    monkeypatch.setattr(on_host, "HostActor", Watched)
    config = presets.for_rule("envpool/CartPole-v1", "dqn").replace(num_actors=2, network=NetworkConfig("mlp", (8,)))
    training.train(config, options(tmp_path, 800, (0,)), experiment="e", name="n", make=make)
    assert len(handed) == 800 // 4 and all(np.ptp(x) == 0 for x in handed)  # a row is of four steps
    assert [int(x[0]) for x in handed] == [1, 2] * 100


class Recorded(HostEnvironment):
    """Keeps the actions that it was given, and all that it has shown."""

    def __init__(self, environment, seed):
        self._environment, self.seed, self.actions, self.shown = environment, seed, [], []
        self.observation_shape, self.observation_dtype = environment.observation_shape, environment.observation_dtype
        self.num_actions, self.num_envs = environment.num_actions, environment.num_envs

    def _shown(self, step):
        self.shown.append(step.observation.copy())
        return step

    def reset(self):
        return self._shown(self._environment.reset())

    def step(self, actions):
        self.actions.append(np.array(actions))
        return self._shown(self._environment.step(actions))

    def close(self):
        self._environment.close()


@pytest.mark.long
def test_two_actors_hand_all_frames_of_pong_to_the_learner_in_order_each_from_its_own_seed(tmp_path, monkeypatch):
    config = presets.for_rule("atari/Pong", "impala")
    network = dataclasses.replace(config.network, hidden=(8,))
    config = config.replace(batch_size=2, unroll=5, num_actors=2, network=network)
    made, handed = [], []

    class Watched(HostActor):
        def get(self, *of):
            acted = super().get(*of)
            handed.append(np.asarray(acted.trajectories.observation)[:, :-1])  # [M, T, B, ...]
            return acted

    def make(name, num_envs, seed):
        made.append(Recorded(make_environment(name, num_envs, seed), seed))
        return made[-1]

    monkeypatch.setattr(on_host, "HostActor", Watched)
    per_iteration = 2 * 5 * config.num_updates
    train = lambda: training.train(
        config, options(tmp_path, 8 * per_iteration, (0,)), experiment="e", name="n", make=make
    )
    assert train()["env_steps"] == 8 * per_iteration
    actors = [one for one in made if one.actions]
    assert len(actors) == 2 and actors[0].seed != actors[1].seed
    prepare = make_setup(config, 6).agent.prepare
    for number, actor in enumerate(actors):
        own = np.concatenate([x.reshape(-1, *x.shape[2:]) for x in handed[number::2]])
        assert len(own) == 4 * per_iteration // 2
        np.testing.assert_array_equal(own, [prepare(x) for x in actor.shown[: len(own)]])
        again = make_environment("atari/Pong", 2, actor.seed)
        steps = [again.reset(), *(again.step(actions) for actions in actor.actions[: len(own) - 1])]
        np.testing.assert_array_equal(own, [prepare(step.observation) for step in steps])
        again.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small_catch(num_actors=2), "num_actors is 2, expected 1 for toy/catch, whose environments are not stepped on"),
        (small_cart_pole().replace(num_actors=0), "num_actors is 0, expected at least 1$"),
    ],
)
def test_numbers_of_actors_that_cannot_be(config, message, tmp_path):
    with pytest.raises(ValueError, match=f"^{message}"):
        training.train(config, options(tmp_path, 100), experiment="e", name="n")


def interrupt_at_the_third_row(monkeypatch):
    log, logged = Run.log, []

    def log_and_interrupt(run, new_rows):
        log(run, new_rows)
        logged.append(new_rows)
        if len(logged) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "log", log_and_interrupt)


def interrupt_in_second_seed(monkeypatch):
    """As if Ctrl-C were pressed after some rows of the second seed."""
    log = Run.log

    def log_and_interrupt(run, new_rows):
        log(run, new_rows)
        if new_rows[0]["seed"] == 1 and new_rows[0]["env_steps"] > 300:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "log", log_and_interrupt)


def test_ten_bad_meta_gradients_in_a_row_end_the_run(tmp_path):
    config = small_catch()
    config = config.replace(meta_optimizer=dataclasses.replace(config.meta_optimizer, learning_rate=1e38))
    with pytest.raises(NotFiniteError, match="10 meta-gradients in a row were not finite"):
        training.train(config, options(tmp_path, 10**6), experiment="e", name="n")
    assert not (tmp_path / "summary.json").exists()


def test_an_agent_whose_parameters_are_not_finite_ends_the_run(tmp_path):
    config = presets.with_rule(small_catch(), "a2c")
    config = config.replace(optimizer=dataclasses.replace(config.optimizer, learning_rate=1e38))
    with pytest.raises(NotFiniteError, match="the agent's parameters are not finite"):
        training.train(config, options(tmp_path, 10**6), experiment="e", name="n")


def test_a_rule_that_only_predicts_does_not_act(tmp_path):
    config = presets.with_rule(small_catch(), "td_lambda")
    with pytest.raises(ValueError, match="is of the kind 'prediction', expected one that acts: there are 3 actions"):
        training.train(config, options(tmp_path / "run", 1000), experiment="e", name="n")
    assert not (tmp_path / "run").exists()


def test_what_the_network_cannot_take_is_refused_before_anything_is_written(tmp_path):
    config = small_cart_pole().replace(network=NetworkConfig("conv", (16,)))
    with pytest.raises(ValueError, match=r"network.torso 'conv' needs images .* got shape \(4,\)"):
        training.train(config, options(tmp_path / "run", 100), experiment="e", name="n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("written", [None, 2, 4])
def test_a_run_of_another_version_is_refused_in_one_line(written, tmp_path):
    record = {"format": written, "experiment": "e", "name": "n", "seeds": [0, 1], "steps": 100, "config": {}}
    (tmp_path / "config.json").write_text(json.dumps({key: x for key, x in record.items() if x is not None}))
    message = "holds a run of another version, which alone can go on with it: a rule.npz in it is read by this version"
    with pytest.raises(UsageError, match=f"--resume: {tmp_path} {message}") as error:
        training.train(small_catch(), options(tmp_path, 100, resume=True), experiment="e", name="n")
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=f"^{tmp_path} {message}"):
        loaded_agent.load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("make", [small_catch, lambda: small_cart_pole("a2c")])
def test_a_life_with_one_of_several_learning_rates_is_that_with_it_alone(make, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_is_quick", lambda *_: False)  # another optimisation of programs rounds otherwise
    config = make()
    steps, rates = 20 * config.num_env_steps(config.rule.entry.is_learned), (1e-3, 1e-2)
    train = lambda config, folder, **others: training.train(
        config, options(tmp_path / folder, steps, **others), experiment="e", name="n"
    )
    both = train(config, "both", learning_rates=rates)
    assert both["learning_rates"] == list(rates) and len(both["return"]) == 4
    together = rows(tmp_path / "both")
    for rate in rates:
        train(config.replace(optimizer=dataclasses.replace(config.optimizer, learning_rate=rate)), f"{rate}")
        more = {"learning_rate": str(rate), "is_finite": "1"}
        alone = [row | more for row in rows(tmp_path / f"{rate}")]
        own = [row for row in together if float(row["learning_rate"]) == rate]
        if config.env.startswith("toy/"):  # an actor thread is never quite the same twice
            assert own == alone
        assert [row["seed"] for row in own] == [row["seed"] for row in alone]


def test_seeds_at_a_time_change_nothing_but_how_sums_are_rounded(tmp_path, monkeypatch):
    num_at_once = lambda num, floats: in_jax.num_at_once({"w": jnp.zeros((num, floats))})
    assert [num_at_once(10, floats) for floats in (10, 60_000, 150_000, 400_000)] == [10, 5, 2, 1]
    assert [num_at_once(num, 150_000) for num in (3, 4, 5, 7)] == [3, 2, 5, 1]
    config, found = presets.with_rule(small_catch(vmap_seeds=True), "impala"), []
    for num in (1, 2):
        monkeypatch.setattr(in_jax, "num_at_once", lambda params, num=num: num)
        how = options(tmp_path / f"{num}", 20 * config.num_env_steps(False), (0, 1, 2, 3))
        training.train(config, how, experiment="e", name="n")
        found.append([[float(x) for x in row.values()] for row in rows(tmp_path / f"{num}")])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_a_life_whose_parameters_are_not_finite_says_so_and_the_others_go_on(tmp_path):
    config = small_catch().replace(optimizer=presets.adam(1e-3))
    training.train(config, options(tmp_path, 12_000, seeds=(0,), learning_rates=(1e-3, 1e38)), experiment="e", name="n")
    found = {(row["learning_rate"], row["is_finite"]) for row in rows(tmp_path)}
    assert ("0.001", "1") in found and ("1e+38", "0") in found and ("0.001", "0") not in found


def test_a_run_leaves_out_few_iterations():
    for iterations in (1, 19, 97, 126, 130, 781, 3125, 10_007):
        chunk = in_jax.chunk_of(iterations, 256)
        assert 1 <= chunk <= in_jax.CHUNK and iterations // chunk >= min(iterations, in_jax.CHUNKS)
        assert iterations % chunk <= max(1, 0.01 * iterations)


def test_short_iterations_are_logged_as_seldom_as_they_are_short():
    assert in_jax.chunk_of(1_000_000, env_steps=1) == 10_000 and in_jax.chunk_of(2_000, env_steps=1) == 100
    assert in_jax.chunk_of(100_000, env_steps=4) == 2500 and in_jax.chunk_of(100_000, env_steps=128) == 100
