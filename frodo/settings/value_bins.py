"""Bins of values that fit the returns of an environment, and a warning where they do not.

A bin is 1 wide in the transformed scale h of `agents.rules.categorical`, and a rule's `max_value` says how many there
are. Too many blur what an agent predicts at first; with too few, it cannot tell large returns apart.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.host import HostEnvironment
from frodo.devices import agree, quick_to_compile
from frodo.logs import note
from frodo.settings.config import AgentConfig
from toy_envs.base import Environment, step_batch
from toy_envs.trials import Trials

Config = TypeVar("Config", bound=AgentConfig)
LEAST = 2  # bins on each side, of returns up to 8
USUAL, HEADROOM = 900.0, 4.0  # of measured returns: those for which 30 bins are enough, or so many times the largest
NUM_STEPS = 4096  # of random play, at least 256 of each environment
STAYS, TOO_LARGE = 200, 0.9  # updates in a row with such a share in one bin


def with_bins(config: Config, environment: Environment | HostEnvironment) -> Config:
    """Return settings in which a rule's `max_value` is known: that of the settings, else what fits the environment.

    It is the least whole number of at least h(R), and at least 2, where R bounds discounted returns: the largest
    absolute reward times the steps that count, at most 1 / (1 − γ), and in `Trials` the horizon, whose end terminates:
    an end by time is bootstrapped through. Where the environment does not tell its rewards they are measured by random
    play, on the host in the given environments; R is then at most 900, or four times the largest return that was seen.
    """
    settings = config.rule.settings
    if getattr(settings, "max_value", 0) is not None:
        return config
    horizon = environment.horizon if isinstance(environment, Trials) else None
    largest = max(map(abs, environment.reward_range)) if environment.reward_range else math.inf
    bound = min(largest, config.max_abs_reward) * num_steps_that_count(horizon, settings.discount)
    if not math.isfinite(bound):
        seen = measure(environment, settings.discount, config.max_abs_reward)
        steps = num_steps_that_count(horizon, settings.discount)
        bound = min(largest, seen.reward) * (seen.num_steps if math.isinf(steps) else steps)
        bound = min(bound, max(USUAL, HEADROOM * seen.value))
    (max_value,) = agree(max(LEAST, math.ceil(math.sqrt(bound + 1) - 1 + 1e-3 * bound)))
    note(f"rule.max_value is {max_value}, for returns up to {bound:.3g}")
    return config.replace(rule=config.rule.replace(max_value=max_value))


def with_bins_of(config: Config, record: Mapping[str, Any]) -> Config:
    """Return settings in which a rule's `max_value`, if it is not known, is that of the plain settings of a run."""
    if getattr(config.rule.settings, "max_value", 0) is not None:
        return config
    found = record.get("rule", {}).get("settings", {}).get("max_value")
    return config.replace(rule=config.rule.replace(max_value=found)) if found else config


def num_steps_that_count(horizon: int | None, discount: float) -> float:
    """Return 1 + γ + γ² and so on, over an episode; infinity where nothing bounds it."""
    steps = math.inf if horizon is None else float(horizon)
    return steps if discount == 1 else (1 - discount**steps) / (1 - discount)


class Seen(NamedTuple):
    """The largest absolute reward and discounted return, and the longest episode, of random play."""

    reward: float  # 1 where none was seen
    value: float
    num_steps: int


def measure(environment: Environment | HostEnvironment, discount: float, max_abs_reward: float = math.inf) -> Seen:
    """Play at random, and say what was seen; numbers that are not finite are left out."""
    if isinstance(environment, Environment):
        rewards, is_over, valid = _play(environment)
    else:
        rewards, is_over, valid = _play_on_host(environment)
    rewards = np.clip(np.nan_to_num(rewards, posinf=0.0, neginf=0.0), -max_abs_reward, max_abs_reward)
    value, largest, length, longest = np.zeros(len(rewards[0])), 0.0, np.zeros(len(rewards[0]), int), 1
    for reward, ended, is_step in zip(rewards[::-1], is_over[::-1], valid[::-1], strict=True):
        value, length = reward + discount * value * ~ended, is_step + length * ~ended
        largest, longest = max(largest, float(np.max(np.abs(value)))), max(longest, int(length.max()))
    return Seen(float(np.max(np.abs(rewards))) or 1.0, largest, longest)


def _play(environment: Environment) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, whether they ended an episode, and whether they were no reset's, all [T, B]."""
    num_envs = NUM_STEPS // 256

    def step(carry: tuple[Any, jax.Array], key: jax.Array):
        action = jax.random.randint(key, (num_envs,), 0, environment.num_actions, jnp.int32)
        state, shown = step_batch(environment, carry[0], action, carry[1])
        return (state, shown.truncated), (shown.reward, (shown.discount == 0) | shown.truncated, shown.valid)

    def play():
        start_key, key = jax.random.split(jax.random.key(0))
        state, shown = jax.vmap(environment.init)(jax.random.split(start_key, num_envs))
        return jax.lax.scan(step, (state, shown.truncated), jax.random.split(key, 256))[1]

    rewards, is_over, valid = jax.device_get(jax.jit(play, compiler_options=quick_to_compile())())
    return rewards.astype(np.float64), is_over, valid


def _play_on_host(environment: HostEnvironment) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng, shown = np.random.default_rng(0), []
    environment.reset()
    for _ in range(max(256, NUM_STEPS // environment.num_envs)):
        actions = rng.integers(environment.num_actions, size=environment.num_envs, dtype=np.int32)
        step = environment.step(actions)
        shown.append((step.reward, (step.discount == 0) | step.truncated, step.valid))
    rewards, is_over, valid = (np.stack(x) for x in zip(*shown, strict=True))
    return rewards.astype(np.float64), is_over, valid


class BinWatch:
    """Says once in a run that nearly all value targets lie in one bin, where that stays so."""

    def __init__(self) -> None:
        self._num_in_a_row, self._has_told = 0, False

    def look(self, metrics: Mapping[str, Any]) -> None:
        """Look at the metrics of some updates, [..., updates] each; of several seeds, all must have that share."""
        if self._has_told or "value_bin_share" not in metrics:
            return
        shares = np.asarray(metrics["value_bin_share"])
        for share in shares.reshape(-1, shares.shape[-1]).min(axis=0):
            self._num_in_a_row = self._num_in_a_row + 1 if share > TOO_LARGE else 0
            if self._num_in_a_row == STAYS:
                self._has_told = True
                note(
                    f"value_bin_share was above {TOO_LARGE} for {STAYS} updates: nearly all value targets are in one "
                    "bin, as returns are near 0 so far, or small compared with a bin's width of 1: larger rewards are "
                    "learned better"
                )
                return
