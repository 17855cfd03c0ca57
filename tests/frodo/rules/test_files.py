"""Files of discovered rules: what is read is what was written, and a wrong file is named."""

import dataclasses

import jax
import numpy as np
import pytest

from frodo import files
from frodo.rules.files import CONFIG, ORIGIN, Origin, Rule, config_for, load_meta_params, load_origin, load_rule
from frodo.settings import population_presets, presets
from frodo.settings.registry import RuleConfig, make_update_rule
from meta.updates.outer import OuterConfig

SMALL = {"prediction_size": 4, "max_value": 2, "lstm": 4, "lifetime_lstm": 3, "action_embedding": (5, 3)}
ORIGINS = Origin(("toy/catch/5x5",), 100, 1.5)


def written(path, name="disco"):
    config = population_presets.small(name).agent_only()
    config = config.replace(rule=config.rule.replace(**SMALL if name == "disco" else {"lstm": 4}))
    init = jax.jit(Rule(name, config).update_rule.random_meta_params, static_argnums=1)
    meta_params = init(jax.random.key(0), 2)
    Rule(name, config, meta_params, ORIGINS).save(path)
    return config, meta_params


@pytest.mark.parametrize("name", ["disco", "frodo"])
def test_a_rule_is_read_as_it_was_written(tmp_path, name):
    path = str(tmp_path / "rule.npz")
    config, meta_params = written(path, name)
    loaded = load_rule(path)
    assert loaded.config == config and loaded.origin == load_origin(path) == ORIGINS
    jax.tree.map(np.testing.assert_array_equal, meta_params, loaded.meta_params)
    jax.tree.map(np.testing.assert_array_equal, meta_params, load_meta_params(path, config.rule))
    preset = presets.for_environment("envpool/CartPole-v1")
    agent = config_for(loaded, preset)
    assert agent.agent_only() == config and agent.env == preset.env


def test_on_images_the_network_is_that_of_the_environment(tmp_path):
    written(tmp_path / "rule.npz")
    config = config_for(load_rule(tmp_path / "rule.npz"), presets.for_rule("atari/Pong", "disco"))
    assert config.network.torso == "conv" and config.network.action_model == 32 and config.max_abs_reward == 1.0


def test_a_file_of_another_configuration_is_refused(tmp_path):
    config, _ = written(tmp_path / "rule.npz")
    message = "rule of another configuration: prediction_size is 4 there and 600 here.* lstm is 4 there and 256 here"
    with pytest.raises(ValueError, match=message):
        load_meta_params(str(tmp_path / "rule.npz"), RuleConfig("disco"))


def test_meta_params_of_other_inputs_are_refused_also_where_they_are_as_many(tmp_path):
    config, _ = written(tmp_path / "rule.npz", "frodo")
    inputs = config.rule.settings.inputs
    with pytest.raises(ValueError, match=r"rule of another configuration: inputs is \[.*\] there and \[.*\] here$"):
        load_meta_params(str(tmp_path / "rule.npz"), config.rule.replace(inputs=inputs[::-1]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda arrays: arrays.pop("target_network/y/w"), "key 'target_network/y/w' is missing"),
        (lambda arrays: arrays.update(extra=np.zeros(2)), "key 'extra' is not one of its rule"),
        (
            lambda arrays: arrays.update({"target_network/y/b": np.zeros(5, np.float32)}),
            r"float32\[5\], expected float32\[4",
        ),
        (lambda arrays: arrays.update({"target_network/y/b": np.zeros(4)}), r"float64\[4\], expected float32\[4"),
        (lambda arrays: arrays.update({"target_network/y/b": np.full(4, np.nan, np.float32)}), "not finite"),
        (lambda arrays: arrays.pop(ORIGIN), "it has no key 'origin.json'"),
        (lambda arrays: arrays.pop(CONFIG), "it has no key 'config.json'"),
        (lambda arrays: arrays.update({CONFIG: np.frombuffer(b'{"x": 1}', np.uint8)}), "does not know"),
        (
            lambda arrays: arrays.update({CONFIG: np.frombuffer(b'{"format": 4}', np.uint8)}),
            "does not know: format is 4, this version reads those up to 3",
        ),
        (lambda arrays: arrays.update({"target_network/y/b": np.array([{}], object)}), "is no .npz file of arrays"),
    ],
)
def test_a_wrong_file_is_named_by_its_first_wrong_key(tmp_path, spoil, message):
    path = tmp_path / "rule.npz"
    written(path)
    with np.load(path) as file:
        arrays = dict(file)
    spoil(arrays)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message) as error:
        load_rule(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_file_of_a_rule_is_said_so(tmp_path):
    with pytest.raises(ValueError, match="nothing is no rule: expected one of disco103, .*, or the path"):
        load_rule("nothing")
    (tmp_path / "half.npz").write_bytes(b"PK half of it")
    with pytest.raises(ValueError, match="half.npz is no .npz file of arrays"):
        load_rule(tmp_path / "half.npz")


def test_infinity_survives_the_file():
    assert files.from_plain(OuterConfig, files.plain(dataclasses.asdict(OuterConfig()))) == OuterConfig()


@pytest.mark.parametrize(("formula", "constants"), [("(Q(s)[a] - r)**2 + 0.3 * Q(s)[a]", [0.3]), ("Q(s)[a] - r", [])])
def test_the_file_of_a_program_holds_its_formula_and_its_constants(tmp_path, formula, constants):
    config = presets.for_rule("toy/catch", "program").agent_only()
    config = config.replace(rule=config.rule.replace(formula=formula))
    meta_params = make_update_rule(config.rule).random_meta_params(jax.random.key(0), 3)
    Rule("program", config, meta_params, Origin(("toy/catch",), 10, 1.0)).save(tmp_path / "rule.npz")
    found = load_rule(tmp_path / "rule.npz")
    assert found.config == config
    np.testing.assert_allclose(found.meta_params["program"]["constants"] if constants else [], constants)
