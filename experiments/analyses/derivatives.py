"""What a learned target depends on: derivatives to rewards, discounts and values k steps ahead, over a lifetime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator

from agents.acting import in_jax as acting
from agents.environments.names import make_environment
from agents.rule import UpdateRule
from agents.rules.impala import ActorCriticTargets, ImpalaConfig, impala
from agents.rules.td import TDLambdaConfig, td_lambda
from agents.types import Array, Params, Predictions, Trajectory
from experiments.results import plots
from experiments.runs import settings
from frodo import files
from frodo.devices import quick_to_compile
from frodo.logs import Progress
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.runs import memory
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions, folder_of
from frodo.settings.config import OnlineConfig
from meta.targets.sensitivity import INPUTS, STEP, target_derivatives
from toy_envs.base import Environment

NUM_TIMES = 10
TD_LAMBDA = 0.9
TD = f"TD({TD_LAMBDA})"
Rows = list[dict[str, Any]]


def run(config: OnlineConfig, options: RunOptions) -> Path:
    """Measure for all seeds, and write tables and figure; returns the figure's path."""
    config.validate()
    rule, environment = config.rule, make_environment(config.env, config.batch_size, 0)
    if not isinstance(environment, Environment) or not rule.has_critic:
        what = "give an environment written in JAX (toy/...) and a rule with scalar targets for an actor-critic"
        raise UsageError(f"--env={config.env} --rule={rule.name}: {what}")
    if options.resume:
        raise UsageError("--resume: a measurement begins anew; --overwrite replaces one")
    if options.log_to:
        raise UsageError(f"--log_to={','.join(options.log_to)}: a measurement has no rows to log")
    folder = folder_of(options, "sensitivity", f"{config.env.replace('/', '_')}_{rule.name}")
    if (folder / "sensitivity.csv").exists() and not options.overwrite:
        raise UsageError(f"{folder} holds a measurement: --overwrite replaces it, --out names another folder")
    rows, corrections = measure(config, environment, options)
    files.write_csv(folder / "sensitivity.csv", rows)
    files.write_csv(folder / "off_policy.csv", corrections)
    figure, title = folder / "sensitivity.png", f"{rule.name} on {config.env}: what the target of a step depends on"
    formula = td_lambda_derivatives(rule.settings.discount, TD_LAMBDA, config.unroll)
    draw(figure, pd.DataFrame(rows), pd.DataFrame(corrections), rule.name, formula, title)
    return figure


def derivatives(
    rule: UpdateRule, meta_params: Params, rule_state: Any, trajectory: Trajectory, predictions: Predictions
) -> dict[str, Array]:
    """Differentiate the first target of trajectories, by central differences.

    Args:
      rule: its targets are [T, B], or have a field `value` of that shape.
      trajectory, predictions: T steps of B environments. The mean at k is over those whose episode still goes on there.
    Returns:
      for each of INPUTS the mean of ∂G₀/∂x at step k = 1 … T, [T]: reward and discount are those that the k-th action
      led to, value is that of the observation after it. NaN where in every trajectory the episode is over.
    """
    goes_on = jnp.cumprod(~trajectory.is_last, axis=0).astype(bool)  # after step k
    begins = jnp.concatenate([jnp.ones_like(goes_on[:1]), goes_on[:-1]]) & trajectory.valid  # step k is of the episode
    found = target_derivatives(rule, meta_params, rule_state, trajectory, predictions, predictions)

    def mean(name: str) -> Array:
        is_known = begins if name == "reward" else goes_on
        of_first = _values(found[name])[:, 0]  # [T, B]
        return jnp.sum(jnp.where(is_known, of_first, 0.0), axis=1) / jnp.sum(is_known, axis=1)

    return {name: mean(name) for name in INPUTS}


def off_policy(
    rule: UpdateRule, meta_params: Params, rule_state: Any, trajectory: Trajectory, predictions: Predictions, key: Array
) -> dict[str, Array]:
    """Differentiate first targets with respect to the first reward, by how the first action was chosen.

    ρ is drawn from 1/4 to 4, and the more probable of π(A|S) and μ(A|S) is 0.8: whatever the agent's policy is, both
    are changed to that.

    Returns:
      of each trajectory, [B]: ρ = π(A|S) / μ(A|S) of the first step, ∂G₀/∂reward, which is min(1, ρ) for V-trace, and
      whether that step is valid.
    """
    action = trajectory.action[0]
    rho = jnp.exp(jax.random.uniform(key, action.shape, minval=-np.log(4), maxval=np.log(4)))
    mu = _chosen_with(trajectory.behaviour_logits[0], action, 0.8 * jnp.minimum(1, 1 / rho))
    pi = _chosen_with(predictions["policy"][0], action, 0.8 * jnp.minimum(1, rho))
    trajectory = trajectory._replace(behaviour_logits=trajectory.behaviour_logits.at[0].set(mu))
    predictions = {**predictions, "policy": predictions["policy"].at[0].set(pi)}

    def first_target(change: float) -> Array:
        changed = trajectory._replace(reward=trajectory.reward.at[0].add(change))
        targets, _ = rule.apply(meta_params, rule_state, changed, predictions, predictions)
        return _values(targets)[0]

    slope = (first_target(STEP) - first_target(-STEP)) / (2 * STEP)
    return {"rho": rho, "reward": slope, "valid": trajectory.valid[0]}


def _chosen_with(logits: Array, action: Array, probability: Array) -> Array:
    """Return logits [B, A] that give the action [B] that probability; the ratios between the others stay."""
    is_taken = jax.nn.one_hot(action, logits.shape[-1], dtype=bool)
    others = jax.nn.logsumexp(jnp.where(is_taken, -jnp.inf, logits), axis=-1)
    own = jnp.log(probability) - jnp.log1p(-probability) + others
    return jnp.where(is_taken, own[:, None], logits)


def _values(targets: Any) -> Array:
    """The scalar targets, or their derivatives."""
    return targets.value if isinstance(targets, ActorCriticTargets) else targets


def td_lambda_derivatives(discount: float, lambda_: float, num_steps: int) -> dict[str, np.ndarray]:
    """Derivatives of the λ-return, [T]: (γλ)ᵏ⁻¹ by a reward, (γλ)ᵏ⁻¹ γ (1 − λ) by a value, γ (γλ)ᵀ⁻¹ by the last."""
    decay = (discount * lambda_) ** np.arange(num_steps)
    return {"reward": decay, "value": discount * decay * np.append(np.full(num_steps - 1, 1 - lambda_), 1.0)}


def measure(config: OnlineConfig, environment: Environment, options: RunOptions) -> tuple[Rows, Rows]:
    """Let agents live, one for each seed.

    Returns:
      rows of seed, env_steps, rule, k and the derivatives; and of seed, rule and what `off_policy` returns, at the end.
    """
    meta_params = settings.initial_meta_params(config)
    program = make_online_program(build_learner(config, environment.num_actions), environment)
    agent, rule, discount = program.learner.setup.agent, program.learner.setup.rule, config.rule.settings.discount
    shapes = jax.eval_shape(program.init, jax.random.key(0), meta_params)
    memory.check_agents(config, agent, environment, program.learner.is_meta, shapes)
    td, vtrace = td_lambda(TDLambdaConfig(discount, TD_LAMBDA)), impala(ImpalaConfig(discount))
    rules = {config.rule.name: rule, TD: td, "V-trace": vtrace}

    @jax.jit
    def look(state):
        own, actor = state.learner.agent, acting.Actor(environment, agent, rule.policy)
        acted, trajectory, _ = acting.rollout(actor, own.params, state.actor, config.unroll)
        known = state.learner.meta_params, own.rule_state, trajectory, agent.unroll(own.params, trajectory)
        return {name: (derivatives(x, *known), off_policy(x, *known, acted.key)) for name, x in rules.items()}

    iterations = max(1, options.steps // program.env_steps // NUM_TIMES)
    run = jax.jit(lambda state: program.run(state, iterations), donate_argnums=0)
    init = jax.jit(lambda key: program.init(key, meta_params), compiler_options=quick_to_compile())
    progress = Progress(total=options.steps * len(options.seeds))
    rows, corrections = [], []
    for number, seed in enumerate(options.seeds):
        state = init(jax.random.key(seed))
        for time in range(NUM_TIMES + 1):
            state = run(state)[0] if time else state
            env_steps = time * iterations * program.env_steps
            found = jax.device_get(look(state))
            for name, (own, _) in found.items():
                of_rule = {"seed": seed, "env_steps": env_steps, "rule": name}
                steps = range(config.unroll)
                rows += [of_rule | {"k": k + 1} | {x: float(own[x][k]) for x in INPUTS} for k in steps]
            progress.update(number * options.steps + min(env_steps, options.steps))
        for name, (_, own) in found.items():
            for rho, slope in zip(own["rho"][own["valid"]], own["reward"][own["valid"]], strict=True):
                corrections.append({"seed": seed, "rule": name, "rho": float(rho), "reward": float(slope)})
    return rows, corrections


def draw(
    path: Path,
    rows: pd.DataFrame,
    corrections: pd.DataFrame,
    learned: str,
    formula: Mapping[str, np.ndarray],
    title: str,
) -> None:
    """Write a PNG with a panel for each input: the derivative by k, mean over seeds, of hand-made rules at the end of a
    lifetime, of the learned one also on the way; crosses for the formula of TD(λ). The last panel is of corrections by
    ρ."""
    times = sorted(rows.env_steps.unique())
    looks: dict[tuple[str, int], dict[str, Any]] = {
        (learned, time): {
            "color": mpl.colormaps["viridis"](0.9 - 0.9 * time / max(1, times[-1])),
            "marker": "o",
            "label": f"{learned}, {EngFormatter(sep='')(time)} steps",
        }
        for time in dict.fromkeys([*times[:: max(1, len(times) // 4)], times[-1]])
    }
    ends, markers = {learned: looks[learned, times[-1]]["color"]}, {learned: "o"}
    for rule, line, marker in zip([x for x in rows.rule.unique() if x != learned], ("--", ":"), "+x", strict=True):
        looks[rule, times[-1]] = {"color": "0.3", "linestyle": line, "label": rule}
        ends[rule], markers[rule] = "0.3", marker
    with plots.new_figure((14, 4.4), path) as figure:
        *panels, last = figure.subplots(1, len(INPUTS) + 1)
        for axes, name in zip(panels, INPUTS, strict=True):
            for (rule, time), look in looks.items():
                mean = rows[(rows.rule == rule) & (rows.env_steps == time)].groupby("k")[name].mean().dropna()
                axes.plot(mean.index, mean, **look)
            if name in formula:
                axes.plot(1 + np.arange(len(formula[name])), formula[name], "kx", label=f"{TD}, formula")
            axes.set(xlabel="k steps ahead", ylabel=f"∂G/∂{name}", title=name)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for rule, colour in ends.items():
            own = corrections[corrections.rule == rule]
            last.scatter(own.rho, own.reward, 12, color=colour, marker=markers[rule], label=rule)
        last.set(xlabel="ρ = π / μ of the first action", ylabel="∂G/∂reward at k = 1", title="off-policy, at the end")
        last.set_xscale("log")
        last.set_xticks((0.25, 0.5, 1, 2, 4), ("¼", "½", "1", "2", "4"))
        last.xaxis.set_minor_locator(NullLocator())
        last.legend(fontsize=8)
        for axes in (*panels, last):
            axes.grid(alpha=0.25)
        figure.suptitle(title)
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
