"""Discovered rules on disk: one .npz file with η and, inside, the configuration of the rule that it is for, and where
and at what cost it was discovered.

Every program that takes a rule by name takes "disco103" for the published one and, for any other, the path of such a
file.
"""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from agents.types import Params
from experiments import weights
from experiments.runs.errors import UsageError
from frodo import files
from frodo.online import OnlineConfig
from frodo.rule import RuleConfig, make_rule
from meta import disco103
from meta.disco import DiscoConfig

CONFIG, ORIGIN = "config.json", "origin.json"  # keys of what is there as bytes


class Origin(NamedTuple):
    """Where a rule was discovered, and what it cost."""

    envs: tuple[str, ...]  # of the agents; a name that ends in /* stands for a whole suite
    env_steps: int | None  # of all agents together; None where it is not known
    cpu_seconds: float | None
    note: str = ""


DISCO103 = Origin(
    ("atari/*", "procgen/*", "dmlab/*"),
    None,
    None,
    "206 agents on 2,048 TPUv3 cores for 60 hours (Oh et al. 2025)",
)


def save(path: Path, config: OnlineConfig, meta_params: Params, origin: Origin) -> None:
    """Write a rule, with the settings of the agents that it was discovered with; η is a Haiku pytree."""
    arrays = {f"{module}/{name}": np.asarray(x) for module, own in meta_params.items() for name, x in own.items()}
    for key, value in ((CONFIG, dataclasses.asdict(config)), (ORIGIN, origin._asdict())):
        arrays[key] = np.frombuffer(json.dumps(files.plain(value)).encode(), np.uint8)
    files.write_arrays(path, arrays)


def origin(name: str) -> Origin:
    """Return where the rule "disco103", or that of a file, comes from.

    Raises:
      UsageError: if there is no such file, or it is not a rule's.
    """
    if name == "disco103":
        return DISCO103
    arrays = _read(name)
    try:
        record = json.loads(arrays[ORIGIN].tobytes())
        return Origin(**(record | {"envs": tuple(record["envs"])}))
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{name} is not the file of a rule: it has no good {ORIGIN!r}") from None


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
        arrays = weights.read(weights.find())
        disco = dataclasses.replace(DiscoConfig(), skips_first_steps=preset.rule.disco.skips_first_steps)
        rule = dataclasses.replace(preset.rule, name="disco", kind="actor_critic", reduction="mean", disco=disco)
        return dataclasses.replace(preset, rule=rule), disco103.to_meta_params(arrays)
    arrays = _read(name)
    for key in (CONFIG, ORIGIN):
        if key not in arrays:
            raise UsageError(f"{name} is not the file of a rule: it has no key {key!r}")
    del arrays[ORIGIN]
    try:
        config = files.from_plain(OnlineConfig, json.loads(arrays.pop(CONFIG).tobytes()))
        config.validate()
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{name} has a configuration that this version does not know: {error}") from None
    config = dataclasses.replace(config, env=preset.env, max_abs_reward=preset.max_abs_reward)
    if preset.network.torso in ("conv", "resnet"):
        network = dataclasses.replace(config.network, torso=preset.network.torso, hidden=preset.network.hidden)
        config = dataclasses.replace(config, network=network)
    return config, _meta_params(name, config.rule, arrays)


def _read(name: str) -> dict[str, np.ndarray]:
    try:
        return files.read_arrays(Path(name))
    except FileNotFoundError:
        raise UsageError(f"{name} is no rule: give disco103, or the path of a file that `discover` wrote") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


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
