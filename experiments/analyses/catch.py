"""Catch: what is compared with FRODO, and what figures call it."""

import dataclasses
from typing import Any

from frodo.settings import presets
from frodo.settings.config import OnlineConfig

META_LEARNING_RATES = (3e-5, 1e-4, 3e-4)
CONSISTENCY_COSTS = (0.0, 0.1, 1.0)
LABELS = {
    "frodo": "FRODO",
    "a2c_no_bootstrap": "A2C without bootstrapping",
    "a2c": "A2C with bootstrapping",
    "frodo_q": "FRODO, value-based",
    "q_learning": "Q-learning",
}
BOOTSTRAPPED: dict[str, Any] = dict(is_bootstrapped=True, target_updates=3)  # of M = 5: η's gradient goes through 3
OUTER: dict[str, dict[str, Any]] = {
    "frodo": {},
    "frodo_no_value_loss": {"value_cost": 0.0},  # as with an outer critic
    "frodo_outer_head": {"critic": "head"},
    "frodo_outer_network": {"critic": "network"},
    "frodo_bootstrapped": BOOTSTRAPPED,
    "frodo_bootstrapped_outer_head": BOOTSTRAPPED | {"critic": "head"},
}


def make_configs(config: OnlineConfig, rule: str) -> dict[str, OnlineConfig]:
    """Return what is run, by the name of its folder."""
    if rule == "frodo":
        return {name: presets.with_rule(config, name) for name in ("frodo", "a2c_no_bootstrap", "a2c")}
    if rule == "outer":
        return {name: config.replace(outer=dataclasses.replace(config.outer, **own)) for name, own in OUTER.items()}
    if rule == "q":
        return {"frodo_q": config, "q_learning": presets.with_rule(config, "q_learning")}
    if rule == "consistency":
        costs = {f"consistency_{cost:g}": cost for cost in CONSISTENCY_COSTS}
        return {x: config.replace(rule=config.rule.replace(consistency_cost=cost)) for x, cost in costs.items()}
    at_rates = {x: dataclasses.replace(config.meta_optimizer, learning_rate=x) for x in META_LEARNING_RATES}
    return {
        f"{name}_{rate:g}": presets.with_rule(config.replace(meta_optimizer=own), name)
        for name in ("frodo", "learned_loss")
        for rate, own in at_rates.items()
    }


def label(name: str) -> str:
    """Return what the figure calls a method."""
    method, _, number = name.rpartition("_")
    if method == "consistency":
        return f"FRODO, c = {number}"
    if name in OUTER:
        return name.replace("frodo", "FRODO").replace("_", " ")
    return LABELS.get(name) or f"learned {'loss' if 'loss' in method else 'target'}, rate {number}"
