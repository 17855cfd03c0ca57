"""The settings of agents as earlier versions wrote them into files of rules, in the words of this version.

In version 0.1.0 one class held the settings of every rule. In 0.1.0 and 0.2.0 the critic's loss was value_cost
(g − v)², twice what it is now: a rule from then keeps its loss by twice the cost.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from frodo import files
from frodo.settings.config import AgentConfig, outer_settings
from frodo.settings.registry import RULES, RuleConfig
from meta.targets.scalar import SETTINGS_OF_KIND

NEW = (
    "rule",
    "outer",
    "epochs",
    "minibatches",
    "truncation",
    "annealing",
    "is_validation_kept",
    "exploration",
    "curriculum",
    "distillation",
)  # settings that 0.1.0 had elsewhere, or did not have
FORMAT = 3  # of settings in files of rules and of runs; versions 0.1.0 and 0.2.0 wrote no number


def convert(config: Mapping[str, Any]) -> dict[str, Any]:
    """Turn plain settings that 0.1.0 or 0.2.0 wrote into plain settings of an `AgentConfig`.

    Raises:
      KeyError: naming a setting that is missing.
      ValueError: naming one that is bad.
    """
    config = dict(config) if "settings" in config["rule"] else _from_version_0_1(config)
    rule, outer = config["rule"], config["outer"]
    known = files.from_plain(RuleConfig, rule)
    if known.has_critic and hasattr(known.settings, "value_cost"):
        rule = rule | {"settings": rule["settings"] | {"value_cost": 2 * known.settings.value_cost}}
    if "value_cost" in outer_settings(known):
        outer = outer | {"value_cost": 2 * outer["value_cost"]}
    return config | {"rule": rule, "outer": outer}


def _from_version_0_1(config: Mapping[str, Any]) -> dict[str, Any]:
    old = config["rule"]
    renamed = {"is_acting_interleaved": config["is_acting_in_turn"]}
    names = [field.name for field in dataclasses.fields(AgentConfig) if field.name not in NEW]
    of_agent = {name: renamed[name] if name in renamed else config[name] for name in names}
    if old["name"] in old:  # DiscoRL's had a class of their own
        settings = dict(old[old["name"]])
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
    outer = {name: old[name] for name in outer_settings(files.from_plain(RuleConfig, rule)) if name in old}
    return of_agent | {"rule": rule, "outer": outer}
