"""Files of discovered rules: what is read is what was written, and a wrong file is named."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments import population_config, rules
from experiments.runs.errors import UsageError
from frodo import files, presets
from frodo.rule import RuleConfig, make_rule
from meta.disco import DiscoConfig

SMALL = DiscoConfig(prediction_size=4, max_value=2, lstm=4, lifetime_lstm=3, action_embedding=(5, 3))


def written(path, name="disco"):
    config = population_config.small(name).agent
    config = dataclasses.replace(config, rule=dataclasses.replace(config.rule, disco=SMALL, lstm=4))
    meta_params = make_rule(config.rule).init_meta_params(jax.random.key(0), 2)
    rules.save(path, config, meta_params, rules.Origin(("toy/catch/5x5",), 100, 1.5))
    return config, meta_params


@pytest.mark.parametrize("name", ["disco", "frodo"])
def test_a_rule_is_read_as_it_was_written(tmp_path, name):
    config, meta_params = written(tmp_path / "rule.npz", name)
    loaded, again = rules.load(str(tmp_path / "rule.npz"), presets.for_environment("envpool/CartPole-v1"))
    assert loaded == dataclasses.replace(config, env="envpool/CartPole-v1")
    jax.tree.map(np.testing.assert_array_equal, meta_params, again)
    begun = dataclasses.replace(loaded, init_meta_params=str(tmp_path / "rule.npz"))
    jax.tree.map(np.testing.assert_array_equal, meta_params, rules.initial_meta_params(begun))


def test_on_images_the_network_is_that_of_the_environment(tmp_path):
    written(tmp_path / "rule.npz")
    loaded, _ = rules.load(str(tmp_path / "rule.npz"), presets.disco("atari/Pong"))
    assert loaded.network.torso == "conv" and loaded.network.action_model == 32 and loaded.max_abs_reward == 1.0


def test_a_file_of_another_configuration_is_refused(tmp_path):
    config, _ = written(tmp_path / "rule.npz")
    other = dataclasses.replace(
        config, init_meta_params=str(tmp_path / "rule.npz"), rule=dataclasses.replace(config.rule, disco=DiscoConfig())
    )
    with pytest.raises(
        UsageError, match="rule of another configuration: disco is .*'lstm': 4.* there and .*256.* here"
    ):
        rules.initial_meta_params(other)
    assert rules.initial_meta_params(dataclasses.replace(other, init_meta_params="")) is None


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
        (lambda arrays: arrays.pop(rules.CONFIG), "it has no key 'config.json'"),
        (lambda arrays: arrays.update({rules.CONFIG: np.frombuffer(b'{"x": 1}', np.uint8)}), "does not know"),
        (lambda arrays: arrays.update({"target_network/y/b": np.array([{}], object)}), "is no .npz file of arrays"),
    ],
)
def test_a_wrong_file_is_named_by_its_first_wrong_key(tmp_path, spoil, message):
    path = tmp_path / "rule.npz"
    written(path)
    with np.load(path) as file:
        arrays = dict(file)
    spoil(arrays)
    np.savez(path, **arrays, allow_pickle=True)
    with pytest.raises(UsageError, match=message) as error:
        rules.load(str(path), presets.catch())
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_file_of_a_rule_is_said_so(tmp_path):
    with pytest.raises(UsageError, match="nothing is no rule: give disco103, or the path"):
        rules.load("nothing", presets.catch())
    (tmp_path / "half.npz").write_bytes(b"PK half of it")
    with pytest.raises(UsageError, match="half.npz is no .npz file of arrays"):
        rules.load(str(tmp_path / "half.npz"), presets.catch())


def test_infinity_survives_the_file():
    assert files.from_plain(RuleConfig, files.plain(dataclasses.asdict(RuleConfig()))) == RuleConfig()
