"""Who gives a setting that changes nothing is told so; each setting that is told of changes nothing indeed."""

import dataclasses
import re

import jax
import pytest

import frodo
from agents.networks.agent import NetworkConfig
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.settings import presets
from frodo.settings.unused import paths, refuse_unused, unused
from meta.updates.curriculum import CurriculumConfig
from toy_envs.base import DmEnv
from toy_envs.catch import Catch

IMPALA = presets.for_rule("toy/catch/4x3", "impala").replace(batch_size=2, unroll=4, num_updates=1)
FRODO = presets.for_rule("toy/catch/4x3", "frodo").replace(batch_size=2, unroll=4, num_updates=2)
OTHER_VALUES = {
    "validation_unroll": 7,
    "network.channels": (3,),
    "network.core_layers": 3,
    "network.core_heads": 2,
    "network.memory": 5,
    "replay.batch_size": 3,
    "replay.fresh": 0.3,
    "curriculum.num_train": 7,
    "curriculum.temperature": 0.5,
    "distillation.cost": 3.0,
}


def changed(config, path, value):
    name, _, inner = path.partition(".")
    return config.replace(**{name: dataclasses.replace(getattr(config, name), **{inner: value}) if inner else value})


def program(config):
    """Return a lifetime's program as text, its first state and an iteration."""
    life = make_online_program(build_learner(config, 3, False), Catch(4, 3))

    def both(key):
        return life.run(life.init(key), 1)

    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(both)(jax.random.key(0))))


OF_IMPALA = program(IMPALA)


@pytest.mark.parametrize("path", OTHER_VALUES)
def test_what_is_told_to_change_nothing_changes_nothing(path):
    assert path in unused(IMPALA)
    assert program(changed(IMPALA, path, OTHER_VALUES[path])) == OF_IMPALA


@pytest.mark.parametrize(("path", "value"), [("unroll", 5), ("network.hidden", (3,)), ("exploration", 100)])
def test_what_changes_something_changes_the_program(path, value):
    assert path not in unused(IMPALA)
    assert program(changed(IMPALA, path, value)) != OF_IMPALA


@pytest.mark.parametrize(
    ("config", "is_in_jax", "path", "reason"),
    [
        (IMPALA, True, "gradient_mode", "the rule 'impala' learns no objective"),
        (IMPALA, True, "meta_optimizer.learning_rate", "the rule 'impala' learns no objective"),
        (IMPALA, True, "network.memory", "network.core_kind is 'lstm'"),
        (IMPALA, True, "network.channels", "network.torso is 'mlp'"),
        (IMPALA, True, "replay.batch_size", "replay.capacity is 0"),
        (IMPALA, True, "curriculum.capacity", "curriculum.kind is 'uniform'"),
        (IMPALA, False, "is_acting_interleaved", "the environment is stepped on the host"),
    ],
)
def test_it_is_refused_by_name_where_it_is_given(config, is_in_jax, path, reason):
    with pytest.raises(ValueError, match=f"^{path} is .*, but changes nothing: {reason}$"):
        refuse_unused(config, [path], is_in_jax)
    refuse_unused(config, ["batch_size", "optimizer.learning_rate", "network.hidden"], is_in_jax)


def test_what_has_an_effect_is_taken():
    refuse_unused(FRODO, ["gradient_mode", "validation_unroll", "meta_optimizer.learning_rate"])
    config = FRODO.replace(network=NetworkConfig(core=8, core_kind="transformer"))
    refuse_unused(config, ["network.memory", "network.core_kind"])
    refuse_unused(FRODO.replace(curriculum=CurriculumConfig("plr")), ["curriculum.capacity"])


def test_of_a_part_what_differs_from_its_defaults_is_given():
    given = dict(batch_size=3, network=NetworkConfig("mlp", (8,), memory=3), rule=FRODO.rule)
    assert paths(given) == ["batch_size", "network.hidden", "network.memory", "rule"]


def test_the_library_refuses_it():
    how = dict(num_steps=100, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"^gradient_mode is 'remat', but changes nothing"):
        frodo.discover_online("toy/catch/4x3", "impala", gradient_mode="remat", **how)
    with pytest.raises(ValueError, match=r"^network.memory is 3, but changes nothing"):
        frodo.discover_online("toy/catch/4x3", "frodo", network=NetworkConfig(memory=3), **how)
    with pytest.raises(ValueError, match=r"^gradient_mode is 'remat', but changes nothing: the rule 'impala' learns"):
        frodo.make_learner("impala", 3, gradient_mode="remat")
    with pytest.raises(ValueError, match=r"^network.memory is 3, but changes nothing"):
        frodo.discover(["toy/catch/4x3"], num_meta_steps=1, key=how["key"], network=NetworkConfig(memory=3))
    on_host = [DmEnv(Catch(4, 3), seed) for seed in range(2)]
    with pytest.raises(
        ValueError, match=r"^is_acting_interleaved is False, .*: the environment is stepped on the host"
    ):
        frodo.discover([on_host], num_meta_steps=1, key=how["key"], is_acting_interleaved=False)
