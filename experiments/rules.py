"""Discovered rules on disk: one .npz file with η and, inside, the configuration of the rule that it is for.

Every program that takes a rule by name takes "disco103" for the published one and, for any other, the path of such a
file.
"""

import dataclasses
import json
import typing
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.types import Params
from experiments import files, weights
from experiments.files import UsageError
from frodo.online import OnlineConfig
from frodo.rule import RuleConfig, make_rule
from meta import disco103
from meta.disco import DiscoConfig

CONFIG = "config.json"  # the key of the configuration, as bytes


def save(path: Path, config: OnlineConfig, meta_params: Params) -> None:
    """Write a rule, with the settings of the agents that it was discovered with; η is a Haiku pytree."""
    arrays = {f"{module}/{name}": np.asarray(x) for module, own in meta_params.items() for name, x in own.items()}
    text = json.dumps(files.plain(dataclasses.asdict(config)))
    files.write_arrays(path, arrays | {CONFIG: np.frombuffer(text.encode(), np.uint8)})


def load(name: str, preset: OnlineConfig) -> tuple[OnlineConfig, Params]:
    """Read a rule: the settings of an agent that uses it, and η.

    Args:
      name: "disco103", or a path.
      preset: settings for the environment. Of the published rule everything but the rule is the preset's; of a file
        the environment, the clipping of rewards and, where observations are images, the network.
    Raises:
      UsageError: if there is no such file, or it is not a rule's: naming it and its first wrong key.
    """
    if name == "disco103":
        try:
            arrays = disco103.read_weights(weights.find())
        except ValueError as error:
            raise UsageError(str(error)) from None
        disco = dataclasses.replace(DiscoConfig(), skips_first_steps=preset.rule.disco.skips_first_steps)
        rule = dataclasses.replace(preset.rule, name="disco", kind="actor_critic", reduction="mean", disco=disco)
        return dataclasses.replace(preset, rule=rule), disco103.to_meta_params(arrays)
    try:
        with np.load(name, allow_pickle=False) as file:
            arrays = {key: np.asarray(file[key]) for key in file}
    except FileNotFoundError:
        raise UsageError(f"{name} is no rule: give disco103, or the path of a file that `discover` wrote") from None
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise UsageError(f"{name} is not the file of a rule: {error}") from None
    if CONFIG not in arrays:
        raise UsageError(f"{name} is not the file of a rule: it has no key {CONFIG!r}")
    try:
        config = _from_plain(OnlineConfig, json.loads(arrays.pop(CONFIG).tobytes()))
        config.validate()
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{name} has a configuration that this version does not know: {error}") from None
    config = dataclasses.replace(config, env=preset.env, max_abs_reward=preset.max_abs_reward)
    if preset.network.torso in ("conv", "resnet"):
        network = dataclasses.replace(config.network, torso=preset.network.torso, hidden=preset.network.hidden)
        config = dataclasses.replace(config, network=network)
    return config, _meta_params(name, config.rule, arrays)


def initial_meta_params(config: OnlineConfig) -> Params | None:
    """Return what η starts from, or None for random.

    Raises:
      UsageError: as `load`, and if the file is of another configuration than the run's.
    """
    if not config.init_meta_params:
        return None
    loaded, meta_params = load(config.init_meta_params, config)
    shapes = lambda rule: jax.eval_shape(lambda key: make_rule(rule).init_meta_params(key, 2), jax.random.key(0))
    if shapes(loaded.rule) != shapes(config.rule):
        theirs, ours = (files.plain(dataclasses.asdict(rule)) for rule in (loaded.rule, config.rule))
        differing = {key: (theirs[key], ours[key]) for key in ours if theirs[key] != ours[key]}
        text = "; ".join(f"{key} is {a} there and {b} here" for key, (a, b) in differing.items())
        raise UsageError(f"{config.init_meta_params} is a rule of another configuration: {text}")
    return meta_params


def _meta_params(name: str, config: RuleConfig, arrays: dict[str, np.ndarray]) -> Params:
    shapes = jax.eval_shape(lambda key: make_rule(config).init_meta_params(key, 2), jax.random.key(0))
    expected = {f"{module}/{x}": shape.shape for module, own in shapes.items() for x, shape in own.items()}
    try:
        disco103.check_arrays(name, arrays, expected, "its rule")
    except ValueError as error:
        raise UsageError(str(error)) from None
    for key in sorted(expected):
        if not np.all(np.isfinite(arrays[key])):
            raise UsageError(f"{name}: {key!r} has entries that are not finite")
    return {module: {x: arrays[f"{module}/{x}"] for x in own} for module, own in shapes.items()}


def _from_plain(kind: Any, value: Any) -> Any:
    """Turn what `files.plain` made of a dataclass back into it."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{key: _from_plain(hints[key], entry) for key, entry in value.items()})  # type: ignore[operator]
    if typing.get_origin(kind) is tuple:
        return tuple(value)
    return float(value) if kind is float else value  # JSON has no infinity: it is written as text
