"""What a learned target depends on: rewards, discounts and values k steps ahead, over a lifetime.

    python -m experiments.sensitivity --env=toy/catch --steps=1e6 --config.unroll=5

An agent lives online, and at ten times of its life the first target of each of its trajectories, G₀, is differentiated
with respect to the reward, the discount and the value of the next observation at step k, beside those of TD(λ) and of
V-trace on the same trajectories. Does it bootstrap (∂G/∂v), how far, and what does it do with rewards? Writes
results/sensitivity/<env>_<rule>/ with sensitivity.csv and sensitivity.png, and of two seeds or more their mean.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from agents import acting, td
from agents.environments import make_environment
from agents.impala import ActorCriticTargets
from agents.rule import UpdateRule
from agents.types import Array, Params, Predictions, Trajectory
from experiments import command_line, files, plots, rules
from experiments.command_line import RunOptions
from experiments.files import UsageError
from experiments.logs import Progress, note
from frodo import presets
from frodo.online import OnlineConfig, make_fused
from frodo.rule import make_rule
from toy_envs.base import Environment

NUM_TIMES = 10
STEP = 1e-2  # of central differences: exact where a target is linear, else to about 1e-4
INPUTS = ("reward", "discount", "value")
TD_LAMBDA = 0.9


def derivatives(
    rule: UpdateRule, meta_params: Params, rule_state: Any, trajectory: Trajectory, predictions: Predictions
) -> dict[str, Array]:
    """Differentiate the first target of trajectories, by central differences: hand-made rules stop gradients.

    Args:
      rule: its targets are [T, B], or have a field `value` of that shape.
      trajectory, predictions: T steps of B environments. The mean at k is over those whose episode still goes on there.
    Returns:
      for each of INPUTS the mean of ∂G₀/∂x at step k = 1 … T, [T]: reward and discount are those that the k-th action
      led to, value is that of the observation after it. NaN where in every trajectory the episode is over.
    """
    num_steps = len(trajectory.action)

    def first_target(changes: Mapping[str, Array]) -> Array:
        delta = {name: changes.get(name, jnp.zeros(num_steps))[:, None] for name in INPUTS}
        changed = trajectory._replace(
            reward=trajectory.reward + delta["reward"], discount=trajectory.discount + delta["discount"]
        )
        values = predictions["value"].at[1:].add(delta["value"])
        own = {**predictions, "value": values}
        targets, _ = rule.apply(meta_params, rule_state, changed, own, own)
        return (targets.value if isinstance(targets, ActorCriticTargets) else targets)[0]

    goes_on = jnp.cumprod(~trajectory.is_last, axis=0).astype(bool)  # after step k
    begins = jnp.concatenate([jnp.ones_like(goes_on[:1]), goes_on[:-1]]) & trajectory.valid  # step k is of the episode

    def one(name: str, direction: Array, is_known: Array) -> Array:
        difference = first_target({name: STEP * direction}) - first_target({name: -STEP * direction})
        return jnp.sum(jnp.where(is_known, difference, 0.0)) / (2 * STEP * jnp.sum(is_known))

    return {
        name: jax.vmap(functools.partial(one, name))(jnp.eye(num_steps), begins if name == "reward" else goes_on)
        for name in INPUTS
    }


def td_lambda_derivatives(discount: float, lambda_: float, num_steps: int) -> dict[str, np.ndarray]:
    """What the derivatives of the λ-return are, [T]: (γλ)ᵏ⁻¹ to a reward, (γλ)ᵏ⁻¹ γ (1 − λ) to a value, γ (γλ)ᵀ⁻¹ to
    the last one."""
    decay = (discount * lambda_) ** np.arange(num_steps)
    return {"reward": decay, "value": discount * decay * np.append(np.full(num_steps - 1, 1 - lambda_), 1.0)}


def measure(config: OnlineConfig, environment: Environment, options: RunOptions) -> list[dict[str, Any]]:
    """Let agents live, one for each seed, and return rows of seed, env_steps, rule, k and the derivatives."""
    fused = make_fused(config, environment, init_meta_params=rules.initial_meta_params(config))
    learner = fused.learner
    others = {
        config.rule.name: learner.rule,
        f"TD({TD_LAMBDA})": td.td_lambda(config.rule.discount, TD_LAMBDA),
        "V-trace": make_rule(dataclasses.replace(config.rule, name="impala")),
    }

    @jax.jit
    def look(state):
        agent = state.learner.agent
        _, trajectory, _ = acting.rollout(
            environment, learner.agent, learner.rule.policy, agent.params, state.actor, config.unroll
        )
        predictions = learner.agent.unroll(agent.params, trajectory)
        return {
            name: derivatives(rule, state.learner.meta_params, agent.rule_state, trajectory, predictions)
            for name, rule in others.items()
        }

    iterations = max(1, options.steps // fused.steps_per_iteration // NUM_TIMES)
    run = jax.jit(lambda state: fused.run(state, iterations), donate_argnums=0)
    init = jax.jit(fused.init)
    progress = Progress(total=options.steps * len(options.seeds))
    rows = []
    for number, seed in enumerate(options.seeds):
        state = init(jax.random.key(seed))
        for time in range(NUM_TIMES + 1):
            if time:
                state, _ = run(state)
            env_steps = time * iterations * fused.steps_per_iteration
            for name, own in jax.device_get(look(state)).items():
                for k in range(config.unroll):
                    row = {"seed": seed, "env_steps": env_steps, "rule": name, "k": k + 1}
                    rows.append(row | {x: float(own[x][k]) for x in INPUTS})
            progress.update(number * options.steps + min(env_steps, options.steps))
    return rows


def run(config: OnlineConfig, options: RunOptions) -> Path:
    """Measure for all seeds, and write table and figure; returns the figure's path."""
    config.validate()
    environment = make_environment(config.env, config.batch_size, 0)
    if not isinstance(environment, Environment) or config.rule.kind != "actor_critic" or config.rule.name == "disco":
        raise UsageError(
            f"--env={config.env} --rule={config.rule.name}: give an environment written in JAX (toy/...) and a rule "
            "with scalar targets for an actor-critic"
        )
    folder = Path(options.out or f"results/sensitivity/{config.env.replace('/', '_')}_{config.rule.name}")
    path = folder / "sensitivity.csv"
    if path.exists() and not options.overwrite:
        raise UsageError(f"{folder} holds a measurement: --overwrite replaces it, --out names another folder")
    rows = measure(config, environment, options)
    files.write_csv(path, rows)
    figure = folder / "sensitivity.png"
    title = f"{config.rule.name} on {config.env}: what the target of a step depends on"
    plots.sensitivity(figure, rows, INPUTS, config.rule.name, title)
    return figure


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    preset = presets.with_rule(presets.for_environment(FLAGS.env), FLAGS.rule)
    config, options = command_line.parse_options(argv, preset)
    note(f"figure: {run(config, options)}")


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/catch", "Environment written in JAX.")
    flags.DEFINE_string("rule", "frodo", "Rule with scalar targets.")
    command_line.define_flags(OnlineConfig(), seeds="0", steps="1e6", without=("env", "rule.name", "is_frozen"))
    command_line.start(main)
