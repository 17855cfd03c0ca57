"""The package as a library: what a notebook does with it, without the programs; the README's code, as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
from meta.targets import disco103
from toy_envs.base import DmEnv
from toy_envs.catch import Catch

ROOT = Path(__file__).parents[1]
WITHOUT_PROGRAMS = "import sys; sys.modules['experiments'] = None\n"  # to import them is an ImportError then
KEY = jax.random.key(0)
TINY = dict(network=frodo.NetworkConfig("mlp", (4,)), unroll=3, validation_unroll=3, num_updates=2)


@pytest.fixture(autouse=True)
def without_programs(monkeypatch):
    monkeypatch.setitem(sys.modules, "experiments", None)


def run(code, folder):
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_the_code_of_the_readme_runs_without_the_programs(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    done = run(WITHOUT_PROGRAMS + "".join(blocks).replace("3e5", "3e3").replace("2e4", "3e3"), tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_draws_saves_and_steps_is_not_imported(tmp_path):
    heavy = ("matplotlib", "tensorstore", "pandas", "envpool", "bsuite", "gymnasium", "psutil", "experiments")
    done = run(f"import sys; from frodo import *; print([name for name in {heavy} if name in sys.modules])", tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


def test_names_are_imported_when_they_are_used(tmp_path):
    code = "import sys, frodo; print({'jax', 'numpy'} & set(sys.modules), {*frodo.__all__} - {*dir(frodo)})\n"
    code += (
        "from frodo.settings.registry import RULES; print('frodo' in RULES, frodo.RULES is RULES, len(RULES) > 10)\n"
    )
    done = run(code + "frodo.discover_onlin", tmp_path)
    assert done.stdout.splitlines() == ["set() set()", "True True True"], done.stderr
    assert "AttributeError: module 'frodo' has no attribute 'discover_onlin'" in done.stderr


def test_all_names_of_the_front_door_are_there_and_have_docstrings():
    for name in frodo.__all__:
        x = getattr(frodo, name)
        assert name == "RULES" or x.__doc__, name
    assert (Path(frodo.__file__).parent / "py.typed").exists()


# Online


def test_a_run_goes_on_as_if_it_had_never_ended():
    settings = dict(key=KEY, batch_size=2, gradient_mode="reverse", **TINY)
    rule = frodo.make_rule("frodo", lstm=4)
    whole = frodo.discover_online(Catch(4, 3), rule, num_steps=18 * 7, **settings)
    first = frodo.discover_online(Catch(4, 3), rule, num_steps=18 * 3, **settings)
    both = first.go_on(num_steps=18 * 4)
    assert len(first.metrics["return"]) == 3 and both.metrics["env_steps"].tolist() == [18 * n for n in range(1, 8)]
    for name, x in whole.metrics.items():
        np.testing.assert_array_equal(both.metrics[name], x, err_msg=name)
    same = jax.tree.map(np.array_equal, (whole.params, whole.meta_params), (both.params, both.meta_params))
    assert all(jax.tree.leaves(same))
    assert not np.array_equal(jax.tree.leaves(first.params)[0], jax.tree.leaves(both.params)[0])


@pytest.mark.parametrize("suite", ["dm_env", "gymnasium"])
def test_an_objective_is_discovered_in_an_environment_on_the_host(suite):
    if suite == "dm_env":
        environment = [DmEnv(Catch(4, 3), seed) for seed in range(2)]
    else:
        import gymnasium

        environment = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    rule = frodo.make_rule("frodo", lstm=4)
    result = frodo.discover_online(environment, rule, num_steps=40, key=KEY, **TINY)
    again = result.go_on(num_steps=40)  # the environment is still open
    assert len(again.metrics["return"]) == 2 * len(result.metrics["return"]) == 4
    assert np.isfinite(again.metrics["meta_gradient_norm"]).all()
    moved = lambda x, y: not np.array_equal(x, y)
    assert any(jax.tree.leaves(jax.tree.map(moved, result.meta_params, again.meta_params)))


def test_a_frozen_rule_stays_as_it_is():
    rule = frodo.load_rule("catch_and_grids")
    result = frodo.discover_online(Catch(4, 3), rule, num_steps=60, key=KEY, is_frozen=True, batch_size=2, **TINY)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, result.meta_params, rule.meta_params)))


def test_a_rule_in_a_loop_of_ones_own_needs_no_replay_and_takes_any_length():
    learner = frodo.make_learner("catch_disco", num_actions=3, network=frodo.NetworkConfig("mlp", (4,), action_model=4))
    draw = lambda *shape: np.random.default_rng(0).normal(size=shape)
    trajectory = frodo.make_trajectory(
        observation=draw(6, 2, 4),
        action=np.ones((5, 2), int),
        reward=draw(5, 2),
        discount=np.ones((5, 2)),
        behaviour_logits=draw(5, 2, 3),
    )
    rule = frodo.load_rule("catch_disco")
    state = jax.jit(learner.init)(KEY, trajectory.observation[0], rule.meta_params)
    after, metrics = jax.jit(learner.update)(state, trajectory)
    assert metrics["update_norm"] > 0 and np.isfinite(metrics["q_td"])
    with pytest.raises(ValueError, match="behaviour_logits has the shape .*expected"):
        learner.update(after, trajectory._replace(behaviour_logits=trajectory.behaviour_logits[..., :2]))
    with pytest.raises(ValueError, match=r"^core_state has the shape \[3\], expected nothing: what `act` returned"):
        learner.update(after, trajectory._replace(core_state=np.zeros(3)))


# Rules and their files


def test_a_rule_saved_is_the_rule_loaded(tmp_path):
    rule = frodo.load_rule("catch_and_grids")
    rule.save(tmp_path / "rule.npz")
    loaded = frodo.load_rule(tmp_path / "rule.npz")
    assert (loaded.config, loaded.origin) == (rule.config, rule.origin)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, loaded.meta_params, rule.meta_params)))


def test_a_file_of_version_0_1_0_is_the_rule_that_ships():
    old, shipped = frodo.load_rule(ROOT / "tests/data/rule_0_1_0.npz"), frodo.load_rule("catch_and_grids")
    assert (old.config, old.origin) == (shipped.config, shipped.origin)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, old.meta_params, shipped.meta_params)))


def test_a_rule_goes_to_the_public_code_and_comes_back(tmp_path):
    rule = frodo.load_rule("catch_disco")
    rule.save_for_disco_rl(tmp_path / "theirs.npz")
    with np.load(tmp_path / "theirs.npz") as file:
        assert set(file) == set(disco103.expected_shapes())
        assert file["lstm/sequential/conv1_d/w"].shape == (1, 18, 16)  # a convolution of width 1 there
    back = frodo.load_rule(tmp_path / "theirs.npz")
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, back.meta_params, rule.meta_params)))
    sizes = lambda settings: (
        settings.prediction_size,
        settings.lstm,
        settings.lifetime_lstm,
        settings.action_embedding,
    )
    assert sizes(back.config.rule.settings) == sizes(rule.config.rule.settings) == (30, 64, 32, (16, 8))
    with pytest.raises(ValueError, match="'frodo' has no targets π, y and z, expected 'disco'"):
        frodo.load_rule("catch_and_grids").save_for_disco_rl(tmp_path / "x.npz")
    with pytest.raises(ValueError, match="'disco' has no meta-parameters, expected one that was discovered or loaded"):
        frodo.make_rule("disco").save_for_disco_rl(tmp_path / "x.npz")


def test_cards_say_where_a_rule_was_discovered_and_what_it_cannot_do():
    assert frodo.shipped_rules() == ["catch_and_grids", "catch_and_grids_disco", "catch_disco"]
    for name in frodo.shipped_rules():
        card = frodo.load_rule(name).describe()
        for part in ("Discovered in", "seed", "Cost", "What it can do", "What it cannot do"):
            assert part in card, (name, part)
    assert "discount: 0.9" in frodo.make_rule("impala", discount=0.9).describe()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: frodo.make_rule("impalla"),
            r"rule is 'impalla', expected one of frodo, .* \(did you mean 'impala'\?\)",
        ),
        (lambda: frodo.make_rule("impala", epsilon=0.1), "epsilon is 0.1, but the rule 'impala' has no such setting"),
        (lambda: frodo.make_rule("impala", discuont=1), "discuont is 1, .*did you mean 'discount'"),
        (lambda: frodo.make_rule("impala", discount=2.0), "discount is 2.0, expected a number from 0 to 1"),
        (
            lambda: frodo.make_rule("frodo", epsilon=0.2),
            "epsilon is 0.2, expected the default, 0.1: kind 'actor_critic'",
        ),
        (
            lambda: frodo.load_rule("catch_and_grid"),
            "catch_and_grid is no rule: expected one of disco103, catch_and_grids.*did you mean 'catch_and_grids'",
        ),
        (
            lambda: frodo.load_rule("ppo"),
            "ppo is a rule without an η to load: frodo.make_rule.'ppo'. makes it$",
        ),
        (
            lambda: frodo.discover_online("toy/catch", "catch_and_grid", num_steps=1, key=KEY),
            r"rule is 'catch_and_grid', expected one of frodo, .*, catch_and_grids, .*did you mean 'catch_and_grids'",
        ),
        (lambda: frodo.make_learner("td_lambda", 3), "'td_lambda' is of the kind 'prediction', expected one that acts"),
        (
            lambda: frodo.make_learner("frodo", 3, learning_rate=1),
            r"learning_rate is 1, but an agent has no such setting \(optimizer and meta_optimizer have one\): it has",
        ),
        (
            lambda: frodo.discover([Catch()], "impala", num_meta_steps=1, key=KEY),
            "rule is 'impala', expected one of frodo, learned_loss, disco",
        ),
        (lambda: frodo.discover([], "frodo", num_meta_steps=1, key=KEY), "environments are empty"),
        (
            lambda: frodo.discover([Catch()], num_meta_steps=0, key=KEY),
            "num_meta_steps is 0, expected a whole number of at least 1",
        ),
        (
            lambda: frodo.discover([DmEnv(Catch(4, 3), 0)], num_meta_steps=1, key=KEY, batch_size=2, budgets=(9999,)),
            "batch_size is 2, expected 1, as many environments as agent 0 has",
        ),
    ],
)
def test_what_is_not_right_is_named_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value) and "--" not in str(error.value)


def test_other_environments_and_batches_are_refused():
    with pytest.raises(TypeError, match="expected a frodo.Environment"):
        frodo.discover_online(object(), num_steps=1, key=KEY)
    with pytest.raises(ValueError, match="batch_size is 3, expected 1, as many as the environments"):
        frodo.discover_online(DmEnv(Catch(4, 3), 0), num_steps=1, key=KEY, batch_size=3)


def test_a_file_that_is_no_rule_is_named(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="x.npz is not the file of a rule: it has no key 'config.json'"):
        frodo.load_rule(tmp_path / "x.npz")


# A population


def test_a_population_goes_on_from_its_state_and_finds_the_same():
    settings = dict(key=KEY, batch_size=2, gradient_mode="reverse", budgets=(100,), num_devices=1, **TINY)
    environments = {"one": Catch(4, 3), "two": Catch(4, 3)}
    rule = frodo.make_rule("frodo", lstm=4)
    whole = frodo.discover(environments, rule, num_meta_steps=3, **settings)
    first = frodo.discover(environments, rule, num_meta_steps=1, **settings)
    rest = frodo.discover(environments, rule, num_meta_steps=2, start=first, **settings)
    same = jax.tree.map(np.array_equal, whole.rule.meta_params, rest.rule.meta_params)
    assert all(jax.tree.leaves(same))
    np.testing.assert_array_equal(whole.metrics["outer_loss"][1:], rest.metrics["outer_loss"])
    assert whole.rule.origin.envs == ("one", "two") and whole.rule.origin.env_steps == 3 * 2 * 2 * 9
    assert rest.rule.origin == whole.rule.origin  # the steps of both
    assert jnp.isfinite(whole.metrics["meta_gradient_norm"]).all()
