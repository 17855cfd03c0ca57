"""Greedy episodes in gymnax: the return of one that is played step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gymnax")

from agents.acting.replay import ReplayConfig  # noqa: E402
from agents.environments.gymnax import make_gymnax  # noqa: E402
from agents.environments.names import make_environment  # noqa: E402
from agents.networks.agent import NetworkConfig  # noqa: E402
from experiments.runs import exact_metrics, settings, training  # noqa: E402
from frodo.regimes.adaptation import held_out_tasks, returns_by_trial  # noqa: E402
from frodo.regimes.learner import build_learner  # noqa: E402
from frodo.regimes.lifetimes import make_online_program  # noqa: E402
from frodo.runs.folders import RunOptions  # noqa: E402
from frodo.settings import presets  # noqa: E402
from meta.updates.curriculum import CurriculumConfig  # noqa: E402
from meta.updates.distillation import DistillationConfig  # noqa: E402
from toy_envs.rule_room import RuleRoom  # noqa: E402


@pytest.mark.parametrize("rule,core", [("impala", 0), ("impala", 3), ("dqn", 0)])
def test_the_greedy_return_is_that_of_whole_first_episodes(rule, core, monkeypatch):
    monkeypatch.setattr(exact_metrics, "GREEDY_EPISODES", 3)
    environment = make_gymnax("CartPole-v1")
    config = presets.for_rule("gymnax/CartPole-v1", rule)
    config = config.replace(
        batch_size=2, unroll=2, replay=ReplayConfig(), network=NetworkConfig("mlp", (4,), core=core)
    )
    learner = build_learner(config, environment.num_actions)
    state = jax.jit(make_online_program(learner, environment).init)(jax.random.key(5))
    found = jax.jit(exact_metrics.log_metrics(environment, learner))(state)

    returns, name = [], "q" if rule == "dqn" else "policy"
    step, act = jax.jit(environment.step), jax.jit(learner.setup.agent.step)
    for key in jax.random.split(jax.random.key(0), 3):
        env_state, shown = environment.init(key)
        core_state, total, is_over = learner.setup.agent.initial_state(1), 0.0, False
        while not is_over:
            batch = jax.tree.map(lambda x: x[None], (shown.observation, shown.is_first))
            predictions, core_state = act(state.learner.params, *batch, core_state)
            action = jnp.int32(np.argmax(predictions[name][0]))
            env_state, shown = step(env_state, action, shown.truncated)
            total, is_over = total + float(shown.reward), bool((shown.discount == 0) | shown.truncated)
        returns.append(total)
    assert set(found) == {"greedy_return"} | ({"start_q", "start_return"} if rule == "dqn" else set())
    assert len(set(returns)) > 1
    if rule == "dqn":  # every step pays 1
        np.testing.assert_allclose(found["start_return"], np.mean([(1 - 0.99**x) / 0.01 for x in returns]), rtol=1e-5)
    np.testing.assert_allclose(found["greedy_return"], np.mean(returns))


@pytest.mark.parametrize(("rule", "has_q"), [("dqn", True), ("disco", False), ("impala", False)])
def test_the_value_of_the_start_is_that_of_action_0(rule, has_q):
    environment = make_environment("toy/catch/4x3", 1, 0)
    config = presets.for_rule("toy/catch/4x3", rule)
    learner = build_learner(config, environment.num_actions)
    state = jax.jit(make_online_program(learner, environment).init)(jax.random.key(5))
    found = exact_metrics.log_metrics(environment, learner)(state)
    assert ("start_q" in found) == has_q
    if has_q:
        starts = jax.vmap(environment.init)(jax.random.split(jax.random.key(0), exact_metrics.STARTS))[1].observation
        predictions, _ = learner.setup.agent.step(state.learner.params, starts, jnp.ones(len(starts), bool), ())
        np.testing.assert_allclose(found["start_q"], np.mean(predictions["q"][:, 0]), rtol=1e-6)


@pytest.mark.parametrize(("num_steps", "num_tasks"), [(float("inf"), 5), (24 * 50, 2)])
def test_returns_by_trial_are_of_held_out_tasks_and_few_where_the_run_is_short(num_steps, num_tasks, monkeypatch):
    monkeypatch.setattr(exact_metrics, "TRIALS_EPISODES", 5)
    environment = make_environment("trials/2/toy/rule_room/easy", 1, 0)
    config = presets.for_rule("trials/2/toy/rule_room/easy", "impala")
    config = config.replace(batch_size=2, network=NetworkConfig("mlp", (4,), core=3))
    learner = build_learner(config, environment.num_actions)
    state = jax.jit(make_online_program(learner, environment).init)(jax.random.key(5))
    found = jax.jit(exact_metrics.log_metrics(environment, learner, num_steps))(state)

    room, key = environment.environment, jax.random.key(0)
    play = lambda params: returns_by_trial(
        learner, params, room, held_out_tasks(room, num_tasks), key, num_trials=2
    ).mean(axis=0)
    np.testing.assert_allclose([found["trial_1"], found["trial_2"]], jax.jit(play)(state.learner.params), rtol=1e-6)
    assert len(found) == 2


TRANSFORMER = NetworkConfig("mlp", (4,), core=4, core_kind="transformer", core_heads=2, memory=8)


@pytest.mark.long
@pytest.mark.parametrize(
    ("curriculum", "network", "is_taught"),
    [
        (CurriculumConfig("plr", capacity=16, num_train=4), NetworkConfig("mlp", (4,), core=3), False),
        (CurriculumConfig("no_op", num_train=4), TRANSFORMER, True),
    ],
)
def test_of_a_curriculum_what_is_trained_on_also_where_a_run_goes_on(curriculum, network, is_taught, tmp_path):
    config, steps = settings.configure("trials/1-2/toy/rule_room/mixed", "impala"), 8 * 32 * 20
    config = config.replace(batch_size=8, network=network, curriculum=curriculum)

    def run(name, steps, config, **options):
        options = RunOptions((0,), steps, out=str(tmp_path / name), **options)
        summary = training.train(config, options, experiment="online", name=name)
        return {key: value for key, value in summary.items() if "cpu" not in key and "memory" not in key}

    if is_taught:
        run("teacher", 8 * 32, config)
        taught = DistillationConfig(str(tmp_path / "teacher"), steps=3 * steps // 2)  # beyond where the run is stopped
        config = config.replace(distillation=taught)
    whole = run("whole", 2 * steps, config)
    run("parts", steps, config)
    np.testing.assert_equal(run("parts", 2 * steps, config, resume=True), whole)
    assert 0 < whole["trained_share"][0] < 1
    assert np.isclose(sum(whole[f"share_{kind}"][0] for kind in RuleRoom("mixed").shares), 1)
