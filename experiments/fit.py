"""How well η can be fitted to a hand-made target: python -m experiments.fit --target=vtrace --envs=toy/catch

    python -m experiments.fit --target=cmpo --rule=results/discover/disco/rule.npz

Prints what part of the change that the target asks for the fitted one explains
(`meta.targets.fitting.variance_explained`; of CMPO's policy, `meta.targets.policy_fitting.agreement`): on made-up
trajectories, on and off policy, at other lengths, discounts and numbers of actions than those that it was fitted with;
and on an agent's own trajectories, which learns by the fitted targets, at the start and after each third of --steps. Of
policies, also how far π̂ is from the policy in units of CMPO's distance, the cosine between the two changes, and CMPO's
distance in nats. With --rule it is a discovered rule that is measured, not the fitted one: what of the hand-made target
is in it.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

import frodo
from agents.acting import in_jax as acting
from agents.acting.in_jax import Actor
from agents.environments.names import is_pure, make_environment
from agents.validation import check_choice
from experiments.runs import settings
from experiments.runs.command_line import no_arguments, parse_steps, start
from frodo.logs import table
from frodo.rules.fitted import check_target
from frodo.runs.errors import UsageError, caused_by
from frodo.settings.registry import starts
from meta.targets import fitting, policy_fitting
from meta.targets.disco import DiscoConfig

NUM_TRAJECTORIES = 20  # of each environment, one after another
STAGES = 3
Cases = dict[str, tuple[dict[str, Any], dict[str, Any]]]  # name -> settings of the rule, sizes of what is made up
OF_SCALARS: Cases = {
    "as fitted": ({}, {}),
    "on policy": ({}, {"is_on_policy": True}),
    "8 steps": ({}, {"num_steps": 8}),
    "128 steps": ({}, {"num_steps": 128}),
    "γ = 0.9": ({"discount": 0.9}, {}),
    "γ = 1": ({"discount": 1.0}, {}),
}
OF_POLICIES: Cases = {
    "2 actions, 8 steps: as fitted": ({}, {"num_actions": 2}),
    "3 actions": ({}, {"num_actions": 3}),
    "6 actions": ({}, {"num_actions": 6}),
    "18 actions: as fitted": ({}, {"num_actions": 18}),
    "6 actions, 32 steps": ({}, {"num_actions": 6, "num_steps": 32}),
    "6 actions, γ = 0.9": ({"discount": 0.9}, {"num_actions": 6}),
}


def explain(target: str, config: Any, inputs: tuple[Any, ...]) -> dict[str, jax.Array]:
    """Return what part of the target's change the rule explains, by the inputs of its `apply`, as "explained"."""
    meta_params, state, trajectory, predictions, slow = inputs
    if isinstance(config, DiscoConfig):
        return policy_fitting.agreement(config, meta_params, (state, trajectory, predictions, slow))._asdict()
    return {"explained": fitting.variance_explained(target, config, meta_params, trajectory, predictions)}


def on_made_up(target: str, rule: frodo.Rule) -> Iterator[dict[str, Any]]:
    """Return where, and what is explained there."""
    is_policy = isinstance(rule.config.rule.settings, DiscoConfig)
    for name, (changes, sizes) in (OF_POLICIES if is_policy else OF_SCALARS).items():
        config = dataclasses.replace(rule.config.rule.settings, **changes)
        if is_policy:
            inputs: tuple[Any, ...] = policy_fitting.make_up_for_disco(
                jax.random.key(1), config, batch_size=512, **sizes
            )
        else:
            trajectory, predictions = fitting.make_up(jax.random.key(1), config, batch_size=8192, **sizes)
            inputs = ((), trajectory, predictions, predictions)
        yield {"where": f"made up, {name}"} | explain(target, config, (rule.meta_params, *inputs))


def on_own(target: str, rule: frodo.Rule, env: str, num_steps: int) -> Iterator[dict[str, Any]]:
    """Return after how many steps in an environment, and what is explained there."""
    environment, key = make_environment(env, 1, 0), jax.random.key(0)
    assert isinstance(environment, frodo.Environment)
    config = rule.config.rule.settings
    least = rule.config.num_env_steps(is_meta=False)
    result = frodo.discover_online(environment, rule, num_steps=least, key=key, is_frozen=True)
    agent, policy = result.learner.setup.agent, result.learner.setup.rule.policy
    actor, unroll = Actor(environment, agent, policy), rule.config.unroll

    @jax.jit
    def explained(learned):
        def one(state, _):
            state, trajectory, _ = acting.rollout(actor, learned.params, state, unroll)
            return state, trajectory

        state = acting.init_actor(environment, agent, key, rule.config.batch_size)
        found = jax.lax.scan(one, state, None, length=NUM_TRAJECTORIES)[1]
        cores = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found.core_state)
        wide = lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])
        whole = jax.tree.map(wide, found._replace(core_state=()))._replace(core_state=cores)
        return explain(target, config, result.learner.rule_inputs(learned, whole))

    for stage in range(STAGES + 1):
        if stage:
            result = result.go_on(num_steps // STAGES)
        yield {"where": f"{env}, {num_steps * stage // STAGES:,} steps"} | explained(result.state)


def main(argv: list[str]) -> None:
    no_arguments(argv)
    envs = settings.parse_envs(flags.FLAGS.envs)
    if others := [env for env in envs if not is_pure(env)]:
        raise UsageError(f"--envs: {others[0]} is none in JAX: give those of toy/, gymnax/ or navix/")
    num_steps = parse_steps(flags.FLAGS.steps)
    target = flags.FLAGS.target
    with caused_by("--target"):
        check_choice("target", target, starts(is_fitted=True))
    with caused_by(f"--rule={flags.FLAGS.rule}" if flags.FLAGS.rule else "--target"):
        rule = frodo.load_rule(flags.FLAGS.rule) if flags.FLAGS.rule else frodo.fit_rule(target)
        check_target(target, rule.config.rule)
    rows = [*on_made_up(target, rule), *(row for env in envs for row in on_own(target, rule, env, num_steps))]
    print(table([{name: x if name == "where" else f"{float(x):.3g}" for name, x in row.items()} for row in rows]))


if __name__ == "__main__":
    flags.DEFINE_string("target", "vtrace", f"One of {', '.join(starts(is_fitted=True))}.")
    flags.DEFINE_string("rule", "", "Measure this rule in place of the fitted one: a discovered one's name or file.")
    flags.DEFINE_string("envs", "toy/catch,toy/grid_world/48,gymnax/CartPole-v1", "Environments in JAX.")
    flags.DEFINE_string("steps", "2e5", "Environment steps in each.")
    start(main)
