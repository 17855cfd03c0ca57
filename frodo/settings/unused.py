"""Settings that change nothing beside what else is chosen: who gives one is told so."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from agents.networks.agent import IMAGE_TORSOS
from frodo.settings.config import AgentConfig
from frodo.settings.registry import RuleConfig, make_update_rule
from meta.updates.curriculum import UNIFORM


def unused(config: AgentConfig, is_frozen: bool = False, is_in_jax: bool = True) -> dict[str, str]:
    """Return the settings that change nothing, by their path, such as 'replay.fresh', each with the reason.

    Args:
      config: all settings of an agent.
      is_frozen: whether η stays as it is.
      is_in_jax: whether the environment is one in JAX.
    """
    rule, network, found = config.rule, config.network, {}

    def none_of(names: str, reason: str) -> None:
        found.update(dict.fromkeys(names.split(), reason))

    if not rule.entry.is_learned:
        none_of("is_frozen", f"the rule {rule.name!r} has no η")
    if is_frozen or not rule.entry.is_learned:
        reason = "η stays as it is" if rule.entry.is_learned else f"the rule {rule.name!r} learns no objective"
        none_of("validation_unroll stride is_validation_kept gradient_mode meta_optimizer", reason)
    spec = make_update_rule(rule).spec(1)
    if not any(prediction.is_per_action for prediction in spec.values()):
        none_of("network.action_model", f"the rule {rule.name!r} predicts nothing for each action")
    if "value" not in spec:
        none_of("network.is_critic_separate", f"the rule {rule.name!r} predicts no values")
    if network.torso == "tabular":
        layers = "network.hidden " * bool(network.hidden)
        none_of(f"{layers}network.activation network.head_stddev", "network.torso is 'tabular'")
    if network.torso != "resnet":
        none_of("network.channels", f"network.torso is {network.torso!r}")
    if network.torso not in IMAGE_TORSOS:
        none_of("network.layout", f"network.torso is {network.torso!r}")
    if not network.core:
        none_of("network.core_kind", "network.core is 0")
    if network.core_kind != "transformer":
        none_of("network.core_layers network.core_heads network.memory", f"network.core_kind is {network.core_kind!r}")
    if not config.replay.capacity:
        none_of("replay.batch_size replay.fresh", "replay.capacity is 0")
    if config.curriculum.kind != "plr":
        of_plr = "curriculum.capacity curriculum.replay curriculum.staleness curriculum.temperature"
        none_of(of_plr, f"curriculum.kind is {config.curriculum.kind!r}")
    if config.curriculum.kind == UNIFORM:
        none_of("curriculum.num_train", f"curriculum.kind is {UNIFORM!r}")
    if not config.distillation.steps:
        none_of("distillation.cost", "distillation.steps is 0")
    if not is_in_jax:
        none_of("vmap_seeds is_acting_interleaved", "the environment is stepped on the host")
    return found


def refuse_unused(config: AgentConfig, given: Collection[str], is_frozen: bool = False, is_in_jax: bool = True) -> None:
    """Raise a ValueError that names the first given setting which changes nothing; arguments else as of `unused`.

    Args:
      given: paths of settings that a person gave.
    """
    reasons = unused(config, is_frozen, is_in_jax)
    for path in given:
        name = next((x for x in (path, path.partition(".")[0]) if x in reasons), None)
        if name:
            value: Any = config
            for part in path.split("."):
                value = getattr(value, part)
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
