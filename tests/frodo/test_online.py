"""One lifetime in one program: going on is never having stopped, seeds do not mix, and what an iteration counts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo.regimes.online
from agents.acting.on_host import HostActor, make_step
from agents.acting.replay import ReplayConfig
from agents.environments.adapt import as_environment
from agents.networks.agent import NetworkConfig
from agents.rules.impala import ImpalaConfig, impala
from agents.rules.muesli import MuesliConfig
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_host_learn, make_online_program
from frodo.regimes.online import discover_online
from frodo.rules.files import make_rule
from frodo.settings import presets
from frodo.settings.registry import RuleConfig
from meta.targets.scalar import FrodoConfig
from meta.updates.distillation import DistillationConfig
from meta.updates.experience import apart, jit_in_place
from meta.updates.optimizers import OptimizerConfig, adam
from tests.trees import check_close, check_equal, differs, leaves
from toy_envs.base import DmEnv
from toy_envs.catch import Catch
from toy_envs.random_walk import RandomWalk

TINY = presets.catch().replace(
    batch_size=2,
    num_updates=2,
    validation_unroll=4,
    rule=RuleConfig("frodo", FrodoConfig(lstm=4)),
    network=NetworkConfig("mlp", (6,)),
    optimizer=OptimizerConfig(1e-2, epsilon=1e-4),
)
TINY_WALK = presets.random_walk().replace(num_updates=2, rule=presets.random_walk().rule.replace(lstm=4))


@pytest.mark.parametrize(
    ("config", "environment"), [(TINY, Catch(4, 3)), (TINY_WALK, RandomWalk())], ids=["catch", "random_walk"]
)
def test_going_on_is_never_having_stopped_and_seeds_do_not_mix(config, environment):
    program = make_online_program(build_learner(config, environment.num_actions), environment)
    run = jax.jit(program.run, static_argnums=1)
    keys = jax.random.split(jax.random.key(0), 2)
    init = jax.jit(program.init)
    start = init(keys[0])
    half, *first = run(start, 20)
    two_halves, *second = run(half, 20)
    whole, metrics, control = run(start, 40)
    check_equal(two_halves, whole)
    check_equal(jax.tree.map(lambda x, y: np.concatenate([x, y]), first, second), [metrics, control])
    assert differs(half.learner.meta_params, start.learner.meta_params)
    assert differs(half.learner.params, start.learner.params)
    assert np.sum(metrics["episodes"]) > 0 and np.all(metrics["skipped"] == 0)
    assert control.skipped_in_a_row.shape == (40,) and np.all(control.skipped_in_a_row == 0)

    states, *others = jax.jit(jax.vmap(lambda key: program.run(program.init(key), 20)))(keys)
    check_close(jax.tree.map(lambda x: x[0], (states, *others)), (half, *first))
    check_close(jax.tree.map(lambda x: x[1], (states, *others)), run(init(keys[1]), 20))
    assert differs(*(jax.tree.map(lambda x, i=i: x[i], states.learner) for i in range(2)))


@pytest.mark.parametrize("rule", ["frodo", "impala"])
def test_steps_of_an_iteration_are_the_steps_that_were_taken(rule):
    program = make_online_program(build_learner(presets.with_rule(TINY, rule), 3), Catch(4, 3))
    state, metrics, control = jax.jit(program.run, static_argnums=1)(jax.jit(program.init)(jax.random.key(0)), 3)
    # Three moves an episode: two batches of two trajectories of three steps, and of four for validation.
    assert program.env_steps == (2 * (2 * 3 + 4) if rule == "frodo" else 2 * 2 * 3)
    num_steps = 3 * program.env_steps
    assert np.sum(metrics["episodes"]) == 2 * (num_steps // 2 // 3)
    np.testing.assert_array_equal(state.actor.env_state.row, (num_steps // 2) % 3)
    assert program.learner.is_meta == (rule == "frodo") == ("skipped" in metrics)
    assert np.all(control.skipped_in_a_row == 0)


def test_returns_are_of_rewards_that_are_not_clipped():
    config = presets.with_rule(TINY.replace(max_abs_reward=0.25), "impala")
    program = make_online_program(build_learner(config, 3), Catch(4, 3))
    _, metrics, _ = jax.jit(program.run, static_argnums=1)(jax.jit(program.init)(jax.random.key(0)), 10)
    misses = (metrics["episodes"] - metrics["return_sum"]) / 2
    np.testing.assert_array_equal(misses, np.round(misses))
    assert np.all(metrics["episodes"] == 4) and 0 < np.sum(misses) < 40


def test_a_frozen_run_begins_with_the_eta_that_is_given_and_keeps_it():
    def evaluate(before, after):
        return {"moved": distance(before.learner.params, after.learner.params)}

    def distance(x, y):
        return sum(jnp.sum(jnp.abs(a - b)) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))

    program = make_online_program(build_learner(TINY, 3, is_frozen=True), Catch(4, 3), evaluate)
    rule, key = program.learner.setup.rule, jax.random.key(0)
    meta_params = jax.jit(lambda: rule.random_meta_params(jax.random.key(7), 3))()
    state = jax.jit(program.init)(key, meta_params)
    check_equal(state.learner.meta_params, meta_params)
    assert differs(jax.jit(program.init)(key).learner.meta_params, meta_params)  # which is random
    after, metrics, _ = jax.jit(program.run, static_argnums=1)(state, 4)
    check_equal(after.learner.meta_params, meta_params)
    assert after.learner.meta_opt_state == () and "meta_gradient_norm" not in metrics
    assert metrics["moved"].shape == (4,) and np.all(metrics["moved"] > 0)
    assert program.env_steps == 2 * 2 * 3 and not program.learner.is_meta  # no validation


# A slow copy that acts

MUESLI = dict(
    unroll=6,
    replay=ReplayConfig(16, 16, 0.5),
    network=NetworkConfig("mlp", (32,), action_model=16, head_stddev=0.01),
    optimizer=adam(1e-2, max_update=1.0),
)
TINY_MUESLI = presets.for_rule("toy/catch", "muesli").replace(
    rule=RuleConfig("muesli", MuesliConfig(discount=1.0, model_steps=2, max_value=2)), **MUESLI
)


def test_muesli_acts_by_its_slow_copy_and_learns():
    learner = build_learner(TINY_MUESLI, 3)
    program = make_online_program(learner, Catch(4, 3))
    agent, run = learner.setup.agent, jax.jit(program.run, static_argnums=1)
    state, returns = jax.jit(program.init)(jax.random.key(0)), []
    for _ in range(200):
        before = state.learner
        state, metrics, _ = run(state, 1)
        returns.append(metrics["return_sum"][0] / metrics["episodes"][0])
    assert np.mean(returns[:20]) < 0 < 0.9 < np.mean(returns[-20:])
    rows = (np.arange(8) + before.lifetime.replay.num_added) % 16  # of the last iteration
    acted = jax.tree.map(lambda x: x[rows], state.learner.lifetime.replay.trajectories)
    logits = lambda params, trajectory: np.swapaxes(agent.unroll(params, trajectory)["policy"], 0, 1)[:, :-1]
    acted_first = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), acted)
    slow = logits(before.agent.target_params, acted_first)
    np.testing.assert_allclose(acted.behaviour_logits, slow, rtol=1e-4, atol=1e-4)
    assert np.max(np.abs(slow - logits(before.params, acted_first))) > 1e-2
    observation, first = acted.observation[:, 0], np.ones(8, bool)
    np.testing.assert_allclose(learner.act(before, jax.random.key(0), observation, first, ())[1], slow[:, 0], atol=1e-4)


def test_on_the_host_the_slow_copy_acts_as_well(monkeypatch):
    acted_by = []

    class Watched(HostActor):
        def __setattr__(self, name, value):
            acted_by.extend([value] if name == "params" else [])
            super().__setattr__(name, value)

    monkeypatch.setattr(frodo.regimes.on_host, "HostActor", Watched)
    environments = [DmEnv(Catch(4, 3), seed) for seed in range(8)]
    rule = make_rule("muesli", model_steps=1, max_value=1)
    found = discover_online(environments, rule, num_steps=3 * 8 * 6, key=jax.random.key(0), **MUESLI)
    assert len(acted_by) == 4
    check_equal(acted_by[-1], found.state.agent.target_params)
    assert differs(acted_by[-1], found.params) and differs(acted_by[-1], acted_by[0])


@pytest.mark.parametrize("more", [{"replay": ReplayConfig(4, 2), "stride": 1}, {"is_validation_kept": True}])
def test_experience_on_the_host_changes_in_place_and_that_of_an_earlier_result_stays(more, monkeypatch):
    seen = []

    def watched(learn):
        in_place = jit_in_place(learn)
        return lambda state, *of: seen.extend(jax.tree.leaves(apart(state.lifetime)[0])) or in_place(state, *of)

    monkeypatch.setattr(frodo.regimes.on_host, "jit_in_place", watched)
    environments = [DmEnv(Catch(4, 3), seed) for seed in range(2)]
    settings = dict(unroll=4, validation_unroll=4, num_updates=2, network=NetworkConfig("mlp", (4,)), **more)
    rule = make_rule("frodo", lstm=3)
    first = discover_online(environments, rule, num_steps=60, key=jax.random.key(0), **settings)
    before = leaves(first.state)
    first.go_on(60)
    assert len(seen) > 10 and all(x.is_deleted() for x in seen)
    check_equal(before, leaves(first.state))


SHORT = dict(unroll=1, network=NetworkConfig("mlp", (8,)), replay=ReplayConfig(4096, 32, 0.0))


def test_short_iterations_are_handed_over_several_at_once_and_each_is_learned_from_in_order(monkeypatch):
    calls = []

    def watched(learn):
        in_place = jit_in_place(learn)
        return lambda *of: calls.append(of) or in_place(*of)

    monkeypatch.setattr(frodo.regimes.on_host, "jit_in_place", watched)
    steps = 2017  # of which a row is of 10
    found = discover_online([DmEnv(Catch(4, 3), 0)], "dqn", num_steps=steps, key=jax.random.key(0), **SHORT)
    assert len(calls) == -(-steps // 10)
    replay, metrics = found.state.lifetime.replay, found.metrics
    assert replay.num_added == steps == found.state.agent.num_updates + 31  # the first ones only fill a batch
    np.testing.assert_array_equal(metrics["env_steps"], 1 + np.arange(steps))
    taken = jax.tree.map(lambda x: np.asarray(x[:steps]), replay.trajectories)  # [steps, 1 or 2, ...]
    np.testing.assert_array_equal(taken.observation[:-1, 1], taken.observation[1:, 0])
    is_over = taken.discount[:, 0] == 0
    np.testing.assert_array_equal(metrics["episodes"], is_over)
    np.testing.assert_array_equal(metrics["return"][is_over], taken.reward[is_over, 0])
    assert is_over.sum() > 400


def test_what_acts_on_the_host_is_made_once_for_a_life_that_goes_on():
    environments = [DmEnv(Catch(4, 3), seed) for seed in range(2)]
    before = make_step.cache_info().misses
    found = discover_online(environments, "impala", num_steps=40, key=jax.random.key(0), unroll=5, network=TINY.network)
    found.go_on(40)
    assert make_step.cache_info().misses == before + 1


@pytest.mark.parametrize("rule", ["dqn", "impala"])
def test_iterations_that_are_handed_over_at_once_are_learned_from_one_after_the_other(rule):
    environment = as_environment([DmEnv(Catch(4, 3), seed) for seed in range(2)])
    config = presets.for_rule("toy/catch", rule).replace(num_updates=2, batch_size=2, **SHORT)
    learner = build_learner(config.replace(replay=ReplayConfig(8, 4, 0.0)), 3)
    agent, learn = learner.setup.agent, jax.jit(make_host_learn(learner))
    state = learner.init(jax.random.key(0), environment.reset().observation)
    schedule = learner.config.schedule(is_meta=False)
    how = (environment, agent, learner.setup.rule.policy, schedule._replace(num_trajectories=5 * 2))
    with HostActor(*how, state.params, jax.random.key(1)) as actor:
        acted = actor.get().trajectories
    at_once, all_metrics, _ = learn(state, acted, None, 4)
    for i in range(4):
        own = jax.tree.map(lambda x, i=i: x[2 * i : 2 * i + 2], acted)
        state, metrics, _ = learn(state, own, None, 1)
        check_close(jax.tree.map(lambda x, i=i: x[i], all_metrics), jax.tree.map(lambda x: x[0], metrics))
    check_close(at_once, state)


def test_a_rule_of_somebodys_own_need_not_have_a_discount(monkeypatch):
    @dataclasses.dataclass
    class Bandit:
        def validate(self):
            pass

    own = impala(ImpalaConfig())
    monkeypatch.setitem(frodo.RULES, "bandit", frodo.RuleEntry(lambda config: own, Bandit))
    small = dict(batch_size=2, unroll=3, network=frodo.NetworkConfig("mlp", (4,)))
    result = frodo.discover_online(Catch(5, 5), frodo.make_rule("bandit"), num_steps=60, key=jax.random.key(0), **small)
    assert len(result.metrics["return"]) > 1


# A teacher

SMALL = dict(unroll=6, batch_size=8, network=NetworkConfig("mlp", (16,)), optimizer=adam(1e-2))


@pytest.fixture(scope="module")
def taught_catch():
    """An agent that has learned Catch."""
    agent = discover_online(Catch(4, 3), "impala", num_steps=2e4, key=jax.random.key(0), **SMALL)
    assert np.mean(agent.metrics["return"][-20:]) > 0.9
    return agent


@pytest.mark.parametrize(
    "rule", ["impala", "ppo", *(pytest.param(rule, marks=pytest.mark.long) for rule in ("frodo", "muesli"))]
)
def test_a_student_becomes_like_its_teacher_while_it_is_taught(rule, taught_catch):
    """With a rule's own losses weighed less than the teacher, which here knows what to do."""
    network = NetworkConfig("mlp", (8,), action_model=8 if rule == "muesli" else 0)
    settings = SMALL | dict(network=network, replay=ReplayConfig(), num_updates=2)
    settings |= {"ppo": dict(epochs=2, minibatches=2), "frodo": dict(validation_unroll=6)}.get(rule, {})
    distillation = DistillationConfig(steps=10_000, cost=10.0)
    student = discover_online(
        Catch(4, 3),
        make_rule("frodo", lstm=4) if rule == "frodo" else rule,
        num_steps=12_000,
        key=jax.random.key(1),
        teacher=taught_catch.teacher,
        distillation=distillation,
        **settings,
    )
    found = student.metrics["teacher_kl"]
    num_taught = round(10_000 / 12_000 * len(found))
    assert np.all(np.isfinite(found[:num_taught])) and np.all(np.isnan(found[num_taught + 1 :]))
    assert np.mean(found[num_taught - 20 : num_taught]) < 0.3 * np.mean(found[:5])
    assert np.mean(student.metrics["return"][num_taught - 20 : num_taught]) > 0.8


def test_a_teacher_is_given_where_settings_speak_of_one_and_nowhere_else(taught_catch):
    given = dict(num_steps=100, key=jax.random.key(1), **SMALL)
    with pytest.raises(ValueError, match="^distillation.steps is 0, expected environment steps in which the teacher"):
        discover_online(Catch(4, 3), "impala", teacher=taught_catch.teacher, **given)
    with pytest.raises(ValueError, match="^distillation.steps is 5, expected a teacher$"):
        discover_online(Catch(4, 3), "impala", distillation=DistillationConfig(steps=5), **given)
    with pytest.raises(ValueError, match="^the teacher sees other observations than those of the shape \\(5, 4\\)"):
        teacher, distillation = taught_catch.teacher, DistillationConfig(steps=5)
        discover_online(Catch(5, 4), "impala", teacher=teacher, distillation=distillation, **given)


def test_the_meta_gradient_of_a_student_is_the_same_in_both_modes(taught_catch):
    config = TINY.replace(distillation=DistillationConfig(steps=1000), **SMALL | dict(validation_unroll=6))
    norms = {}
    for mode in ("reverse", "mixed"):
        learner = build_learner(config.replace(gradient_mode=mode), 3, teacher=taught_catch.teacher)
        program = make_online_program(learner, Catch(4, 3))
        _, metrics, _ = jax.jit(program.run, static_argnums=1)(jax.jit(program.init)(jax.random.key(0)), 2)
        norms[mode] = metrics["meta_gradient_norm"]
    assert np.all(norms["reverse"] > 0)
    np.testing.assert_allclose(norms["mixed"], norms["reverse"], rtol=1e-3)
