"""A rule in one file runs in every regime, is tuned, saved, loaded and compared; one that lacks a part is refused."""

import dataclasses
import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import experiments
import frodo
from agents.rules.impala import ImpalaConfig
from experiments.comparison import cells
from experiments.comparison.comparison import check
from experiments.comparison.protocol import Grid
from experiments.runs import settings
from frodo.runs.errors import UsageError
from frodo.settings import population_presets, presets
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import RuleConfig
from tests.experiments.comparison.small_comparison import ENVS, one
from tests.trees import check_equal
from toy_envs.base import DmEnv
from toy_envs.catch import Catch

KEY, NAME = jax.random.key(0), "learned_lambda"
PATH = str(Path(__file__).parents[2] / "examples" / "own_rule.py")
TINY = dict(
    batch_size=2,
    unroll=3,
    validation_unroll=3,
    num_updates=1,
    gradient_mode="reverse",
    network=frodo.NetworkConfig("mlp", (4,)),
)


@pytest.fixture(scope="module", autouse=True)
def own():
    """Import the file as programs do; other tests go through all rules, and are not to see this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRODO_PLUGINS", PATH)
        patch.setattr(sys, "path", [*sys.path])
        importlib.reload(experiments)
    yield
    del frodo.RULES[NAME], sys.modules["own_rule"]


def lambda_of(meta_params):
    return float(jax.nn.sigmoid(meta_params["logit"]))


@pytest.fixture(scope="module")
def online():
    return frodo.discover_online(Catch(4, 3), NAME, num_steps=90, key=KEY, **TINY)


def test_it_lives_online_in_jax_and_on_the_host(online):
    on_host = frodo.discover_online([DmEnv(Catch(4, 3), i) for i in range(2)], NAME, num_steps=90, key=KEY, **TINY)
    for found in (online, on_host):
        assert lambda_of(found.meta_params) != pytest.approx(0.9, abs=1e-4)
        assert found.rule.config.meta_optimizer == frodo.adam(1e-2, max_gradient_norm=1.0)  # of the entry


def test_it_is_saved_and_loaded_and_frozen_it_is_impala(online, tmp_path):
    online.rule.save(tmp_path / "rule.npz")
    loaded = frodo.load_rule(tmp_path / "rule.npz")
    check_equal(loaded.meta_params, online.meta_params)
    assert loaded.config == online.rule.config
    small = TINY | dict(num_steps=60, key=KEY)
    frozen = frodo.discover_online(Catch(4, 3), loaded, is_frozen=True, **small)
    check_equal(frozen.meta_params, online.meta_params)
    own = RuleConfig("impala", ImpalaConfig(reduction="mean", lambda_=lambda_of(online.meta_params)))
    own = own.with_known(**vars(loaded.config.rule.settings))
    config = loaded.config.replace(rule=own, outer=frodo.OuterConfig())
    of_impala = {name: value for name, value in small.items() if name not in ("validation_unroll", "gradient_mode")}
    impala = frodo.discover_online(Catch(4, 3), frodo.Rule("impala", config), **of_impala)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), frozen.params, impala.params)


def test_a_population_discovers_it_and_its_file_fits_settings_of_the_same_eta(tmp_path):
    path = tmp_path / "rule.npz"
    found = frodo.discover([Catch(4, 3)], NAME, num_meta_steps=2, key=KEY, budgets=(100,), **TINY)
    assert lambda_of(found.rule.meta_params) != pytest.approx(0.9, abs=1e-4)
    found.save(path)
    loaded = frodo.load_rule(path)
    assert loaded.config == found.rule.config and loaded.origin.envs == ("0",)
    other = OnlineConfig(rule=loaded.config.rule.replace(value_cost=0.1), init_meta_params=str(path))
    check_equal(settings.initial_meta_params(other), found.rule.meta_params)


def test_its_eta_has_the_type_that_it_keeps():
    """Weakly typed as the file makes it, it would be of another type after a step, which was then compiled twice."""
    (logit,) = jax.tree.leaves(frodo.make_rule(NAME).update_rule.random_meta_params(KEY, 3))
    assert not logit.weak_type and logit.dtype == np.float32


def test_a_result_is_loaded(online, tmp_path):
    online.save(tmp_path / "agent.npz")
    loaded = frodo.load(tmp_path / "agent.npz")
    check_equal(loaded.meta_params, online.meta_params)
    check_equal(loaded.params, online.params)


@pytest.mark.parametrize("env", ["toy/random_walk", "toy/catch", "atari/Pong", "trials/4/toy/rule_room/main"])
def test_it_has_settings_in_every_environment_and_population(env):
    presets.for_rule(env, NAME).validate()
    for preset in population_presets.PRESETS:
        config = settings.population(NAME, (env,), preset)
        config.validate()
        assert config.rule.name == NAME


def test_it_is_tuned_over_its_own_grid_and_compared(tmp_path, online, monkeypatch):
    path, methods = str(tmp_path / "rule.npz"), ("impala", NAME, f"{NAME}_frozen")
    online.rule.save(path)
    compared = one(methods=methods, grid=Grid((1e-3, 1e-2), (0.01,), ((2, 20),)), budget=600)
    assert check(compared, allow_seen=False) == {}
    assert [program.batch for program in compared.programs(ENVS[0], NAME)] == [(16, 16)]  # of the entry
    assert [program.batch for program in compared.programs(ENVS[0], "impala")] == [(2, 20)]
    learning, frozen = (compared.configure(ENVS[0], method) for method in methods[1:])
    assert (learning.num_updates, learning.is_frozen, frozen.num_updates, frozen.is_frozen) == (5, False, 1, True)
    assert learning.meta_optimizer == frodo.adam(1e-2, max_gradient_norm=1.0)
    own = {"batches": ((2, 3),), "learning_rates": (3e-3,)}
    monkeypatch.setitem(frodo.RULES, NAME, frodo.RULES[NAME]._replace(tuning=own))
    cells.run(compared, tmp_path, cells.TUNING, ENVS[0], f"{NAME}_frozen")
    tried = cells.tuning_returns(compared, tmp_path, ENVS[0], f"{NAME}_frozen")
    assert [(point.learning_rate, point.batch) for point in tried] == [(3e-3, (2, 3))]
    given = dataclasses.replace(compared, files={**compared.files, f"{NAME}_rule": path})
    assert {given.configure(ENVS[0], method).init_meta_params for method in methods[1:]} == {path}
    with pytest.raises(UsageError, match=f"--scalar_rule={path} holds a rule named {NAME}, expected frodo"):
        check(one(scalar_rule=path), allow_seen=False)


def test_programs_know_it(start):
    cell = f"tuning:toy/catch:{NAME}"
    done = start("experiments.compare", f"--only={cell}s", f"--methods={NAME}", f"--{NAME}_rule=")
    assert f"(did you mean '{cell}'?)" in done.stderr


@pytest.mark.parametrize(
    ("named", "said"), [("a/none.py", "No module named 'none'"), ("no_module", "No module named 'no_module'")]
)
def test_a_file_that_is_not_there_is_named(monkeypatch, capsys, named, said):
    monkeypatch.setenv("FRODO_PLUGINS", named)
    with pytest.raises(SystemExit, match="2"):
        importlib.reload(experiments)
    assert capsys.readouterr().err == f"error: FRODO_PLUGINS: {said}\n"


@dataclasses.dataclass
class WithoutDefault:
    size: int


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"make": None}, "^make of the rule 'x' is None, expected a function"),
        ({"make": lambda config: {}}, r"^make of the rule 'x' returns \{\}, expected an UpdateRule"),
        ({"settings": dict}, "^settings of the rule 'x' is <class 'dict'>, expected a dataclass"),
        ({"settings": WithoutDefault}, "^settings of the rule 'x' has no default of size"),
        ({"kinds": ("critic",)}, "^kinds of the rule 'x' is 'critic', expected one of actor_critic, value_based"),
        ({"kinds": ("value_based",)}, "^spec of the rule 'x' has no 'q', which agents of the kind 'value_based' pre"),
        ({"is_learned": False}, "^is_learned of the rule 'x' is False, but its random_meta_params makes an η"),
        ({"preset": 3}, "^preset of the rule 'x' is 3, expected a function"),
        ({"eta_settings": ("gamma",)}, "^eta_settings of the rule 'x' is 'gamma', expected one of discount, "),
    ],
)
def test_an_entry_that_lacks_a_part_is_refused_by_its_name(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        frodo.register_rule("x", frodo.RULES[NAME]._replace(**changes))
    assert "x" not in frodo.RULES and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("use", "changes", "message"),
    [
        (
            lambda: presets.for_rule("toy/catch", "x"),
            {"preset": lambda config: None},
            "^preset of the rule 'x' returns None, expected a OnlineConfig",
        ),
        (
            lambda: population_presets.small("x"),
            {"population": {"small": lambda config: None}},
            r"^population\['small'\] of the rule 'x' returns None, expected a PopulationConfig",
        ),
        (
            lambda: one(methods=("x",)).programs(ENVS[0], "x"),
            {"tuning": {"rates": (1e-3,)}},
            "^tuning of the rule 'x': rates is .*, but the grid has no such setting",
        ),
    ],
    ids=["preset", "population", "tuning"],
)
def test_a_part_that_is_wrong_is_named_where_it_is_used(use, changes, message, monkeypatch):
    monkeypatch.setitem(frodo.RULES, "x", frodo.RULES[NAME]._replace(**changes))
    with pytest.raises(ValueError, match=message):
        use()


@pytest.mark.parametrize(
    ("name", "said"),
    [("impala", "a name of the package's own"), ("vtrace", "a name of the p"), ("a/b", "expected a name of letters")],
)
def test_a_name_that_is_taken_or_none_is_refused(name, said):
    with pytest.raises(ValueError, match=f"^rule is {name!r}, .*{said}"):
        frodo.register_rule(name, frodo.RULES[NAME])


def test_a_file_of_a_rule_that_is_not_registered_says_so(online, tmp_path, monkeypatch):
    online.rule.save(tmp_path / "rule.npz")
    monkeypatch.delitem(frodo.RULES, NAME)
    with pytest.raises(ValueError, match="rule is 'learned_lambda', which is not registered .*expected one of"):
        frodo.load_rule(tmp_path / "rule.npz")


def test_a_rule_without_values_is_discovered_with_what_its_outer_objective_has(monkeypatch):
    """Its outer objective brings a value function, and has no cost of the agent's critic."""
    entry = frodo.RULES[NAME]
    make = lambda config: entry.make(config)._replace(spec=lambda num: {"policy": frodo.PredictionSpec((num,))})
    monkeypatch.setitem(frodo.RULES, "x", entry._replace(make=make))
    for preset in population_presets.PRESETS.values():
        preset("x").validate()
