"""Two colours: what is compared, and its figures, over the whole run and by the time since the rewards changed."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import plots, reading
from frodo.settings import presets
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import RuleConfig
from toy_envs.two_colours import TwoColours

SCHEDULES = {f"a2c_{start:g}_to_{end:g}": (start, end) for start in (0.3, 0.5) for end in (0.11, 0.2)}
CONSTANTS = (0.05, 0.11, 0.15, 0.2, 0.3, 0.5)
A2C, SCHEDULE = 0.2, "a2c_0.3_to_0.2"  # chosen by --rule=a2c --seeds=100,101
SCHEDULE_STEPS = 2_000_000
CLIP = 5.0  # of the norm of gradients of FRODO's agents, and of A2C next to them
PERIOD = TwoColours().phase_length
ROWS = 10  # parts of a cycle


def a2c(config: OnlineConfig, entropy_cost: float, entropy_end: float | None = None) -> OnlineConfig:
    """Return A2C, an iteration of which is one update, with a weight of the entropy that stays or falls."""
    plain = presets.with_rule(config, "impala")
    rule = plain.rule.replace(entropy_cost=entropy_cost)
    if entropy_end is not None:
        rule = rule.replace(entropy_end=entropy_end, entropy_updates=SCHEDULE_STEPS // config.unroll)
    return plain.replace(rule=rule, num_updates=1, is_acting_interleaved=False)


def with_frodo(config: OnlineConfig, **outer: Any) -> OnlineConfig:
    """Return FRODO with a target that begins as V-trace's, A2C's weight of the entropy, and MG's or BMG's updates."""
    own = {name: getattr(config.rule.settings, name) for name in ("discount", "value_cost", "reduction")}
    own |= dict(is_relative=True, base="vtrace", vtrace_lambda=0.0, lstm=32, entropy_cost=A2C)
    rule = RuleConfig("frodo").replace(inputs=("td_error", "discount", "pi", "mu"), **own)
    new = dataclasses.replace(config.outer, **outer)
    return config.replace(rule=rule, outer=new, is_validation_kept=not new.is_bootstrapped)


def make_configs(config: OnlineConfig, rule: str) -> dict[str, OnlineConfig]:
    """Return what is run, by the name of its folder."""
    direct: dict[str, Any] = dict(is_bootstrapped=False, target_updates=1)
    if rule == "a2c":
        constants = {f"a2c_{cost:g}": a2c(config, cost) for cost in CONSTANTS}
        return constants | {name: a2c(config, *ends) for name, ends in SCHEDULES.items()}
    if rule == "frodo":  # without clipping a seed's critic diverged: A2C's is at the edge of stability
        config = config.replace(optimizer=dataclasses.replace(config.optimizer, max_gradient_norm=CLIP))
        of_direct = direct | {"entropy_cost": A2C}
        return {
            "a2c": a2c(config, A2C),
            "frodo": with_frodo(config, **of_direct),
            "frodo_outer_critic": with_frodo(config, **of_direct, critic="head"),
            "frodo_bootstrapped": with_frodo(config),
            "frodo_bootstrapped_outer_critic": with_frodo(config, critic="head"),
        }
    outer = dataclasses.replace(config.outer, entropy_cost=0.12, **direct)
    meta_optimizer = dataclasses.replace(config.meta_optimizer, epsilon=1e-4)
    return {
        "a2c": a2c(config, A2C),
        "a2c_at_the_end": a2c(config, 0.11),
        "a2c_schedule": a2c(config, *SCHEDULES[SCHEDULE]),
        "mg": config.replace(outer=outer, meta_optimizer=meta_optimizer, is_validation_kept=True),
        "bmg": config,
    }


LABELS = {
    "a2c": f"A2C, entropy {A2C:g}",
    "a2c_at_the_end": "A2C, entropy 0.11, where η ends",
    "a2c_schedule": "A2C, " + SCHEDULE.removeprefix("a2c_").replace("_", " "),
    "mg": "self-tuned, meta-gradient",
    "bmg": "self-tuned, bootstrapped",
    "frodo": "FRODO",
    "frodo_outer_critic": "FRODO, outer critic",
    "frodo_bootstrapped": "FRODO, bootstrapped",
    "frodo_bootstrapped_outer_critic": "FRODO, bootstrapped, outer critic",
}


def by_cycle(series: plots.Series, period: int) -> plots.Series:
    """Return the means over parts of a cycle, by the steps since the rewards changed places; of a run's second half.

    Rows that reach across a change are left out.
    """
    begin = series.x - np.diff(series.x, prepend=0)
    is_whole = begin // period == (series.x - 1) // period
    series = series._replace(y=np.where(is_whole & (series.x > series.x[-1] / 2), series.y, np.nan))
    part = (begin + series.x) / 2 % period // (period // ROWS)
    y = np.stack([np.nanmean(series.y[:, part == i], axis=1) for i in range(ROWS)], axis=1)
    return series._replace(x=(np.arange(ROWS) + 0.5) * period / ROWS, y=y)


def known_weight(config: OnlineConfig, env_steps: np.ndarray) -> np.ndarray:
    """Return the weight of the entropy that A2C has after so many environment steps, [N] -> [1, N]."""
    rule = config.rule.settings
    share = np.minimum(1.0, env_steps / config.unroll / max(1, rule.entropy_updates))
    change = rule.entropy_end - rule.entropy_cost if rule.entropy_updates else 0.0
    return (rule.entropy_cost + share * change)[None]


def draw(folder: Path, configs: Mapping[str, OnlineConfig]) -> None:
    """Write the figures of the runs of these configurations, by their names, in a folder."""
    rewards, weights, is_tuned = [], [], False
    for name, config in configs.items():
        curves, label = reading.read(folder / name), LABELS.get(name, name.replace("_", " "))
        rewards.append(reading.curve(curves, "reward")._replace(label=label))
        if "eta_entropy_cost" in curves.columns:
            is_tuned = True
            weights.append(reading.curve(curves, "eta_entropy_cost")._replace(label=label))
        elif not config.rule.entry.is_learned:
            known = np.broadcast_to(known_weight(config, rewards[-1].x), rewards[-1].y.shape)
            weights.append(rewards[-1]._replace(y=known))
    summed = [x._replace(y=np.cumsum(x.y * np.diff(x.x, prepend=0), axis=1) / 1000) for x in rewards]
    steps, since = "environment steps", "environment steps since the rewards changed places"
    weight = "weight of the entropy"
    for name, series, xlabel, ylabel in (
        ("two_colours.png", summed, steps, "cumulative reward, thousands"),
        ("cycle.png", [by_cycle(x, PERIOD) for x in rewards], since, "reward of a step"),
        ("entropy.png", weights, steps, weight),
        ("entropy_cycle.png", [by_cycle(x, PERIOD) for x in weights], since, weight),
    ):
        if is_tuned or not name.startswith("entropy"):
            plots.curves(folder / name, series, title="Two colours", xlabel=xlabel, ylabel=ylabel)
