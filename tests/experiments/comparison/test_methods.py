"""Methods have one agent, and what cannot be compared is refused."""

import dataclasses

import chex
import jax
import pytest

from agents.acting.replay import ReplayConfig
from agents.environments.names import make_environment
from experiments.comparison import comparison, methods
from experiments.comparison.methods import METHODS
from experiments.comparison.protocol import Grid, Program
from experiments.runs import settings
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.rules.files import Origin, Rule, load_rule
from frodo.runs.errors import UsageError
from frodo.settings import presets
from frodo.settings.registry import RuleConfig
from meta.targets.disco import DiscoConfig
from tests.experiments.comparison.small_comparison import ENVS, one, scalar_rule

# What a rule may differ in: what it is, how η is learned, and PPO's passes.
OF_THE_RULE = {
    "rule",
    "outer",
    "num_updates",
    "meta_optimizer",
    "is_validation_kept",
    "is_frozen",
    "init_meta_params",
    "epochs",
    "minibatches",
}
OF_OUTER = {
    "fitted_fast": {"value_cost": 0.5},
    "corrected_outer_critic": {"critic": "head"},
    "corrected_bootstrapped": {"is_bootstrapped": True, "target_updates": 3},
}
NOT_PUBLISHED = [name for name in METHODS if METHODS[name].rule not in ("disco103", "program_rule", "target_rule")]
PROGRAMS = ("dqn", "double_dqn", "dqn_reg", "dqn_reg_of_the_code", "dqn_clipped", "evolved")


@pytest.mark.parametrize("env", ["toy/catch", "gymnax/Breakout-MinAtar", "atari/Pong", "changing/actions/9/toy/catch"])
def test_a_rule_differs_only_in_what_it_is(env):
    compared = one(
        envs=(env, ENVS[1]), methods=tuple(NOT_PUBLISHED), scalar_rule="catch_and_grids", disco_rule="catch_disco"
    )
    agent = presets.common_agent(env)
    for method in NOT_PUBLISHED:
        config = compared.configure(env, method)
        differing = {x.name for x in dataclasses.fields(config) if getattr(config, x.name) != getattr(agent, x.name)}
        differing -= OF_THE_RULE | {"annealing"}
        if method in PROGRAMS:  # DQN's way to use experience
            assert config.exploration == 100 and config.replay == ReplayConfig(1000, 32, 0.0)
            differing -= {"exploration", "replay", "is_acting_interleaved"}
        if config.rule.name in ("disco", "muesli"):  # predictions of actions need a model of them
            assert dataclasses.replace(config.network, action_model=0) == agent.network
            differing -= {"network"}
        assert not differing, method
        rate = 1e-3 if method == "fitted_fast" else agent.meta_optimizer.learning_rate
        assert config.meta_optimizer == dataclasses.replace(agent.meta_optimizer, learning_rate=rate)
        assert config.annealing == (0 if env.startswith("changing") else compared.budget(env))
        settings = config.rule.settings
        assert settings.discount == 0.99 and getattr(settings, "reduction", "mean") == "mean"
        assert getattr(settings, "lambda_", 0.95) == 0.95
        if config.rule.has_critic:  # of others the costs are part of the rule
            assert settings.value_cost == 0.5
        if config.rule.name == "frodo" and method != "frodo":  # those that begin with an η which is known to be good
            own = OF_OUTER.get(method, {})
            assert config.outer == dataclasses.replace(presets.fitted(env).outer, **own) and config.is_validation_kept
        assert config.num_updates == (5 if "learn" in kind(config) else 1)


def test_what_is_added_to_vtrace_is_nothing_at_first():
    compared, environment = one(methods=("impala", "corrected")), make_environment(ENVS[0], 2, 0)
    found = []
    for method in ("impala", "corrected"):
        config = compared.configure(ENVS[0], method, Program(0.01, (2, 20))).replace(num_updates=1)
        program = make_online_program(build_learner(config, environment.num_actions, is_frozen=True), environment)
        state = program.init(jax.random.key(0))
        found.append(jax.jit(lambda state, run=program.run: run(state, 3)[0])(state).learner.params)
    chex.assert_trees_all_close(*found, atol=1e-6)


def kind(config):
    return "learns" if config.rule.entry.is_learned and not config.is_frozen else "does not"


def test_rules_have_another_discount_and_lambda_where_they_are_given_and_outer_objectives_keep_theirs():
    compared = one(methods=tuple(NOT_PUBLISHED), scalar_rule="catch_and_grids", disco_rule="catch_disco")
    other = dataclasses.replace(compared, discount=0.5, lambda_=0.2)
    for method in NOT_PUBLISHED:
        before, after = (x.configure(ENVS[0], method) for x in (compared, other))
        if METHODS[method].rule:
            assert after == before
            continue
        settings = after.rule.settings
        assert settings.discount == 0.5
        lambdas = {name: getattr(settings, name) for name in ("lambda_", "vtrace_lambda") if hasattr(settings, name)}
        assert set(lambdas.values()) <= {0.2} and bool(lambdas) == (method not in ("a2c", *PROGRAMS))
        assert after.replace(rule=before.rule) == before
    with pytest.raises(
        UsageError, match="impala on toy/catch/4x3 with .*: rule.discount is 1.5, expected a number from"
    ):
        comparison.check(dataclasses.replace(one(methods=("impala",)), discount=1.5), allow_seen=False)


def test_trajectories_are_stale_where_that_is_asked_for_and_nothing_else_is_changed():
    compared = one(methods=tuple(NOT_PUBLISHED), scalar_rule="catch_and_grids", disco_rule="catch_disco")
    for method in NOT_PUBLISHED:
        before, after = (x.configure(ENVS[0], method) for x in (compared, dataclasses.replace(compared, stale=20)))
        own = {} if method in PROGRAMS else {"num_updates": 20, "is_acting_interleaved": False}
        assert after == before.replace(**own)


def test_all_methods_replay_alike_where_that_is_asked_for():
    compared = one(methods=tuple(NOT_PUBLISHED), scalar_rule="catch_and_grids", disco_rule="catch_disco", budget=1000)
    for method in NOT_PUBLISHED:
        before, after = (
            x.configure(ENVS[0], method) for x in (compared, dataclasses.replace(compared, replay=(64, 8)))
        )
        kept = dict(is_acting_interleaved=False, is_validation_kept=False)  # what is replayed is of older parameters
        assert after == before.replace(replay=ReplayConfig(64, 8, fresh=0.0), **kept)
        after.validate()
    with pytest.raises(UsageError, match="^--stale=3: what is replayed is of older θ anyway; give one of"):
        comparison.check(dataclasses.replace(compared, replay=(64, 8), stale=3), allow_seen=True)


def test_what_is_fitted_begins_with_the_fit_and_is_frozen_or_not():
    compared = one(methods=tuple(NOT_PUBLISHED), scalar_rule="catch_and_grids", disco_rule="catch_disco")
    for name, start in (("fitted", "vtrace"), ("cmpo", "cmpo")):
        for regime in ("frozen", "online"):
            config = compared.configure(ENVS[0], f"{name}_{regime}")
            assert (config.init_meta_params, config.is_frozen) == (start, regime == "frozen")
            assert config.num_updates == (1 if regime == "frozen" else methods.NUM_UPDATES)


def test_a_point_of_the_grid_is_in_every_method():
    compared = one(methods=tuple(NOT_PUBLISHED), scalar_rule="catch_and_grids", disco_rule="catch_disco")
    for method in NOT_PUBLISHED:
        (program,) = compared.programs(ENVS[0], method)
        if method in PROGRAMS:
            assert program == Program(None, (1, 1))
            continue
        # Of these targets say what the policy is, and there is no outer objective.
        has_entropy = method not in ("disco_frozen", "cmpo_frozen", "muesli")
        assert program == Program(0.01 if has_entropy else None, (2, 20))
        config = compared.configure(ENVS[0], method, Program(0.07 if has_entropy else None, (3, 4)))
        assert (config.batch_size, config.unroll, config.validation_unroll) == (3, 4, 4)
        if hasattr(config.rule.settings, "entropy_cost"):
            assert config.rule.settings.entropy_cost == 0.07
        if kind(config) == "learns":
            assert config.outer.entropy_cost == 0.07


def test_what_cannot_be_compared_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(UsageError, match="no scores of random and of best play are known for toy/grid_world/1"):
        comparison.check(one(envs=("toy/grid_world/1",)), allow_seen=False)
    with pytest.raises(UsageError, match="--tuning_seeds: seed 3 is in --seeds, too"):
        comparison.check(dataclasses.replace(one(), tuning_seeds=(5, 3)), allow_seen=False)
    with pytest.raises(UsageError, match="--learning_rates=1,1: 1 is given more than once"):
        comparison.check(one(grid=Grid((1.0, 1.0))), allow_seen=False)
    with pytest.raises(UsageError, match=r"ppo on .*4x3 with entropy 0.01, 3 × 3: minibatches is 8"):
        comparison.check(one(methods=("ppo",), grid=Grid(batches=((3, 3),))), allow_seen=False)
    seen = one(scalar_rule=scalar_rule(tmp_path / "rule.npz", (ENVS[1], "toy/catch")))
    with pytest.raises(UsageError, match="rule.npz was discovered in toy/grid_world/46, which .* say --allow_seen"):
        comparison.check(seen, allow_seen=False)
    assert comparison.check(seen, allow_seen=True) == {"scalar_frozen": [ENVS[1]]}
    alone = one(envs=ENVS[:1], scalar_rule=scalar_rule(tmp_path / "alone.npz", ("toy/catch",)))
    with pytest.raises(UsageError, match="scalar_frozen: .* chosen in other environments .* give --envs at least two"):
        comparison.check(alone, allow_seen=False)
    for known, env in (
        ("toy/catch", "toy/catch/6x11"),
        ("toy/grid_world/046", "toy/grid_world/46"),
        ("bsuite/catch/1", "bsuite/catch/0"),
        ("toy/catch/10x5", "bsuite/catch/0"),
        ("gymnax/CartPole-v1", "envpool/CartPole-v1"),
        ("toy/catch", "scaled/10/toy/catch"),
        ("scaled/10/toy/catch", "scaled/1e-3/toy/catch"),
        ("gymnax/*", "scaled/10/gymnax/CartPole-v1"),
    ):
        with pytest.raises(UsageError, match=f"was discovered in {env}"):
            comparison.refuse_seen(one(envs=(env,)), "rule", (known,), allow_seen=False)
    other = one(disco_rule=scalar_rule(tmp_path / "other.npz", ("toy/catch",)))
    with pytest.raises(UsageError, match="other.npz holds a rule named frodo, expected disco"):
        comparison.check(other, allow_seen=False)
    with pytest.raises(UsageError, match="--disco_rule=vtrace was not discovered: --methods=fitted_frozen,"):
        comparison.check(one(disco_rule="vtrace"), allow_seen=False)
    with pytest.raises(UsageError, match="--disco_rule=cmpo was not discovered: --methods=cmpo_frozen,"):
        comparison.check(one(disco_rule="cmpo"), allow_seen=False)
    with pytest.raises(UsageError, match="toy/catch/6x11, which is toy/catch is to be compared twice"):
        comparison.check_names(one(envs=("toy/catch", "toy/catch/6x11")))
    with pytest.raises(UsageError, match="scaled/10.0/toy/catch/6x11, which is scaled/10/toy/catch is to be compared"):
        comparison.check_names(one(envs=("scaled/10/toy/catch", "toy/catch", "scaled/10.0/toy/catch/6x11")))
    with pytest.raises(UsageError, match="impala is to be compared twice"):
        comparison.check_names(one(methods=("impala", "impala")))
    with pytest.raises(UsageError, match="--scalar_rule: nothing is no rule: expected one of .*catch_and_grids"):
        comparison.check(one(scalar_rule="nothing"), allow_seen=False)
    published = one(envs=("atari/Pong",), methods=("disco103_frozen",))
    with pytest.raises(UsageError, match="disco103 was discovered in atari/Pong"):
        comparison.check(published, allow_seen=False)


def test_disco103_in_part_is_disco103_but_for_that_part(monkeypatch):
    rule = RuleConfig("disco", DiscoConfig())
    monkeypatch.setattr(methods, "_config_of", lambda name: presets.for_rule("toy/catch", "disco").replace(rule=rule))
    whole, held, policy = (
        one(methods=(name,)).configure(ENVS[0], name, Program(None, (1, 1)))
        for name in ("disco103_frozen", "disco103_held", "disco103_policy")
    )
    assert held == whole.replace(rule=whole.rule.replace(is_lifetime_held=True)) != whole
    assert policy == whole.replace(rule=whole.rule.replace(y_cost=0.0, z_cost=0.0, aux_policy_cost=0.0)) != whole


def test_an_evolved_program_learns_as_dqn_does(tmp_path):
    config = presets.for_rule("toy/catch", "program").agent_only()
    formula = "(Q(s)[a] - r)**2 + 0.3 * Q(s)[a]"
    found = Rule("program", config.replace(rule=config.rule.replace(formula=formula, ends="values")))
    meta_params = found.update_rule.random_meta_params(jax.random.key(0), 2)
    dataclasses.replace(found, meta_params=meta_params, origin=Origin(("toy/catch",), 5, 6.0)).save(tmp_path / "x.npz")
    compared = one(methods=("dqn", "evolved"), program_rule=str(tmp_path / "x.npz"))
    assert comparison.check(compared, allow_seen=False) == {}
    dqn, evolved = (compared.configure(ENVS[0], method, Program(None, (1, 1))) for method in compared.methods)
    assert (evolved.rule.settings.formula, evolved.rule.settings.ends) == (formula, "values")
    assert evolved.is_frozen and (evolved.batch_size, evolved.unroll) == (1, 1)
    same = {"rule": dqn.rule, "is_frozen": False, "init_meta_params": ""}
    assert evolved.replace(**same) == dqn
    (constant,) = jax.tree.leaves(settings.initial_meta_params(evolved))
    assert constant == pytest.approx(0.3)
    with pytest.raises(UsageError, match="holds a rule named frodo, expected program"):
        comparison.check(one(program_rule=scalar_rule(tmp_path / "y.npz", ())), allow_seen=False)


def test_evolved_targets_are_those_of_the_common_agent(tmp_path):
    config = presets.for_rule("toy/catch", "target_program").agent_only()
    found = Rule("target_program", config.replace(rule=config.rule.replace(formula="r + 0.9 * gamma * G_next")))
    meta_params = found.update_rule.random_meta_params(jax.random.key(0), 2)
    dataclasses.replace(found, meta_params=meta_params, origin=Origin(("toy/catch",), 5, 6.0)).save(tmp_path / "x.npz")
    compared = one(methods=("impala", "evolved_targets"), target_rule=str(tmp_path / "x.npz"))
    assert comparison.check(compared, allow_seen=False) == {}
    impala, evolved = (compared.configure(ENVS[0], method, Program(0.1, (4, 2))) for method in compared.methods)
    assert (evolved.rule.settings.formula, evolved.rule.settings.entropy_cost) == ("r + 0.9 * gamma * G_next", 0.1)
    same = {"rule": impala.rule, "is_frozen": False, "init_meta_params": ""}
    assert evolved.is_frozen and evolved.replace(**same) == impala
    with pytest.raises(UsageError, match="holds a rule named frodo, expected target_program"):
        comparison.check(one(target_rule=scalar_rule(tmp_path / "y.npz", ())), allow_seen=False)


def test_rules_that_ship_are_compared_by_their_names():
    compared = one(methods=tuple(NOT_PUBLISHED), scalar_rule="catch_and_grids", disco_rule="catch_disco")
    assert comparison.check(compared, allow_seen=False) == {} and len(compared.cells()) == 2 * len(NOT_PUBLISHED)
    assert compared.configure(ENVS[0], "disco_frozen").init_meta_params == "catch_disco"
    alone = compared.configure(ENVS[0], "disco")  # what it was discovered with
    assert alone.rule == load_rule("catch_disco").config.rule and not alone.init_meta_params
