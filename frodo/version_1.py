"""The settings of agents as version 0.1.0 wrote them into files of rules, in the words of this version."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from frodo import files
from frodo.config import AgentConfig, outer_settings
from frodo.rules import RULES, RuleConfig
from meta.scalar import SETTINGS_OF_KIND


def is_version_1(config: Mapping[str, Any]) -> bool:
    """Say whether settings are those of version 0.1.0, in which one class held those of every rule."""
    return "settings" not in config.get("rule", {"settings": {}})


def convert(config: Mapping[str, Any]) -> dict[str, Any]:
    """Turn plain settings of version 0.1.0 into plain settings of an `AgentConfig`.

    Raises:
      KeyError: naming a setting that is missing.
      ValueError: naming one that is bad.
    """
    old = config["rule"]
    renamed = {"is_acting_interleaved": config["is_acting_in_turn"]}
    names = [field.name for field in dataclasses.fields(AgentConfig) if field.name not in ("rule", "outer")]
    of_agent = {name: renamed[name] if name in renamed else config[name] for name in names}
    if old["name"] == "disco":
        settings = dict(old["disco"])
    else:
        settings_of_rule = RULES[old["name"]].settings
        own = {field.name for field in dataclasses.fields(settings_of_rule)}
        of_others = {name for kind, names in SETTINGS_OF_KIND.items() if kind != old["kind"] for name in names}
        settings = {name: value for name, value in old.items() if name in own - of_others}
        if "vtrace_lambda" in own and old["kind"] == "actor_critic":
            settings["vtrace_lambda"] = old["lambda_"]
        if "is_next_value_differentiated" in own:
            settings["is_next_value_differentiated"] = old["next_value_gradient"] == "literal"
    rule = {"name": old["name"], "settings": settings}
    outer = {name: old[name] for name in outer_settings(files.from_plain(RuleConfig, rule))}
    return of_agent | {"rule": rule, "outer": outer}
