"""Settings that change nothing, given the others: who gives one is told so."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from agents.networks.agent import IMAGE_TORSOS
from frodo.settings.config import AgentConfig
from frodo.settings.registry import RuleConfig, make_update_rule
from meta.targets.proximal import CorrectedPPOConfig
from meta.targets.self_tuned import SelfTunedConfig
from meta.updates.curriculum import UNIFORM


def unused(config: AgentConfig, is_in_jax: bool = True) -> dict[str, str]:
    """Return the settings that change nothing, by their path, such as 'replay.fresh', each with the reason.

    Args:
      config: all settings of an agent.
      is_in_jax: whether the environment is one in JAX.
    """
    rule, network, found = config.rule, config.network, {}

    def none_of(reason: str, *names: str) -> None:
        found.update(dict.fromkeys(names, reason))

    if not rule.entry.is_learned:
        none_of(f"the rule {rule.name!r} has no η", "is_frozen")
        reason = f"the rule {rule.name!r} learns no objective"
        none_of(
            reason, "validation_unroll", "stride", "is_validation_kept", "gradient_mode", "meta_optimizer", "truncation"
        )
    if "value" not in make_update_rule(rule).spec(1):
        none_of(f"the rule {rule.name!r} predicts no values", "network.is_critic_separate")
    if network.torso == "tabular":
        none_of("network.torso is 'tabular'", "network.head_stddev", *(["network.hidden"] if network.hidden else []))
    if network.torso != "resnet":
        none_of(f"network.torso is {network.torso!r}", "network.channels")
    if network.torso not in IMAGE_TORSOS:
        none_of(f"network.torso is {network.torso!r}", "network.layout")
    if not network.core:
        none_of("network.core is 0", "network.core_kind")
    if network.core_kind != "transformer":
        reason = f"network.core_kind is {network.core_kind!r}"
        none_of(reason, "network.core_layers", "network.core_heads", "network.memory")
    if not config.replay.capacity:
        none_of("replay.capacity is 0", "replay.batch_size", "replay.fresh")
    if config.curriculum.kind != "plr":
        of_plr = [x.name for x in dataclasses.fields(config.curriculum) if x.name not in ("kind", "num_train")]
        none_of(f"curriculum.kind is {config.curriculum.kind!r}", *(f"curriculum.{name}" for name in of_plr))
    elif config.curriculum.fitness == "learnability":
        none_of("curriculum.fitness is 'learnability'", "curriculum.is_of_last_trial")
    if config.curriculum.kind == UNIFORM:
        none_of(f"curriculum.kind is {UNIFORM!r}", "curriculum.num_train")
    if not config.distillation.steps:
        none_of("distillation.steps is 0", "distillation.cost")
    if rule.entry.is_learned and config.outer.critic != "agent":
        none_of(f"outer.critic is {config.outer.critic!r}, which learns by itself", "outer.value_cost")
    strategy = getattr(config, "strategy", None)
    if strategy and not strategy.generations:
        none_of("strategy.generations is 0", *(f"strategy.{x}" for x in ("kind", "size", "stddev", "learning_rate")))
    elif strategy and strategy.kind == "snes":
        none_of("strategy.kind is 'snes'", "strategy.learning_rate")
    if isinstance(rule.settings, CorrectedPPOConfig):
        of_parts = {"targets": ("lstm", "largest_correction"), "drift": ("drift_units",)}
        for part, names in of_parts.items():
            if part not in rule.settings.parts:
                none_of(f"rule.parts has no {part!r}", *(f"rule.{name}" for name in names))
    if isinstance(rule.settings, SelfTunedConfig) and not rule.settings.eta_inputs:
        none_of("rule.eta_inputs is ()", "rule.history", "rule.eta_hidden")
    if not is_in_jax:
        none_of("the environment is stepped on the host", "vmap_seeds", "is_acting_interleaved")
    return found


def refuse_unused(config: AgentConfig, given: Collection[str], is_in_jax: bool = True) -> None:
    """Raise a ValueError that names the first given setting which changes nothing; arguments else as of `unused`.

    Args:
      given: paths of settings that a person gave.
    """
    reasons = unused(config, is_in_jax)
    for path in given:
        name = next((x for x in (path, path.partition(".")[0]) if x in reasons), None)
        if name:
            value: Any = config
            for part in path.split("."):
                value = getattr(value.settings if isinstance(value, RuleConfig) else value, part)
            raise ValueError(f"{path} is {value!r}, but changes nothing: {reasons[name]}")


def paths(settings: Mapping[str, Any]) -> list[str]:
    """Return the paths of given settings; of a part that has settings of its own, those that are not its defaults."""
    found: list[str] = []
    for name, value in settings.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, RuleConfig | type):
            default = type(value)()
            own = [field.name for field in dataclasses.fields(value)]
            found += [f"{name}.{x}" for x in own if getattr(value, x) != getattr(default, x)]
        else:
            found.append(name)
    return found
