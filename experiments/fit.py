"""How well η can be fitted to a hand-made target: python -m experiments.fit --target=vtrace --envs=toy/catch

Prints what part of the change that the target asks for the fitted one explains (`meta.fitting.variance_explained`): on
made-up trajectories, on and off policy, at other lengths and discounts than those that it was fitted with; and on an
agent's own trajectories, which learns by the fitted targets, at the start and after each third of --steps.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from absl import flags

import frodo
from agents import acting
from agents.acting import Actor
from agents.environments.names import is_pure, make_environment
from experiments.runs import settings
from experiments.runs.command_line import no_arguments, parse_steps, start
from experiments.runs.errors import UsageError, caused_by
from frodo.logs import table
from meta import fitting
from meta.hand_made import TARGETS

NUM_TRAJECTORIES = 20  # one after another, of which the explained parts are averaged
STAGES = 3


def on_made_up(rule: frodo.Rule) -> Iterator[tuple[str, float]]:
    """Return where, and what is explained there."""
    config = rule.config.rule.settings
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "as fitted": (config, {}),
        "on policy": (config, {"is_on_policy": True}),
        "8 steps": (config, {"num_steps": 8}),
        "128 steps": (config, {"num_steps": 128}),
        "γ = 0.9": (dataclasses.replace(config, discount=0.9), {}),
        "γ = 1": (dataclasses.replace(config, discount=1.0), {}),
    }
    for name, (of_case, sizes) in cases.items():
        made_up = fitting.make_up(jax.random.key(1), of_case, batch_size=8192, **sizes)
        explained = fitting.variance_explained(rule.name, of_case, rule.meta_params, *made_up)
        yield f"made up, {name}", float(explained)


def on_own(rule: frodo.Rule, env: str, num_steps: int) -> Iterator[tuple[str, float]]:
    """Return after how many steps in an environment, and what is explained there."""
    environment, key = make_environment(env, 1, 0), jax.random.key(0)
    assert isinstance(environment, frodo.Environment)
    config = rule.config.rule.settings
    result = frodo.discover_online(environment, rule, num_steps=1, key=key, is_frozen=True)
    agent, policy = result.learner.setup.agent, result.learner.setup.rule.policy
    actor, unroll = Actor(environment, agent, policy), rule.config.unroll

    @jax.jit
    def explained(params):
        def one(state, _):
            state, trajectory, _ = acting.rollout(actor, params, state, unroll)
            predictions = agent.unroll(params, trajectory)
            return state, fitting.variance_explained(rule.name, config, rule.meta_params, trajectory, predictions)

        state = acting.init_actor(environment, agent, key, rule.config.batch_size)
        return jax.lax.scan(one, state, None, length=NUM_TRAJECTORIES)[1].mean()

    for stage in range(STAGES + 1):
        if stage:
            result = result.go_on(num_steps // STAGES)
        yield f"{env}, {num_steps * stage // STAGES:,} steps", float(explained(result.params))


def main(argv: list[str]) -> None:
    no_arguments(argv)
    envs = settings.parse_envs(flags.FLAGS.envs)
    if others := [env for env in envs if not is_pure(env)]:
        raise UsageError(f"--envs: {others[0]} is none in JAX: give those of toy/, gymnax/ or navix/")
    num_steps = parse_steps(flags.FLAGS.steps)
    with caused_by("--target"):
        rule = frodo.fit_rule(flags.FLAGS.target)
    rows = [*on_made_up(rule), *(row for env in envs for row in on_own(rule, env, num_steps))]
    print(table([{"where": where, "explained": round(part, 3)} for where, part in rows]))


if __name__ == "__main__":
    flags.DEFINE_string("target", "vtrace", f"One of {', '.join(TARGETS)}.")
    flags.DEFINE_string("envs", "toy/catch,toy/grid_world/48,gymnax/CartPole-v1", "Environments in JAX.")
    flags.DEFINE_string("steps", "2e5", "Environment steps in each.")
    start(main)
