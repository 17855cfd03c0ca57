"""What part of a hand-made target's change a rule explains, on made-up trajectories and on an agent's own."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import frodo
from agents.acting import in_jax as acting
from agents.environments.names import make_environment
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
    environment, key, config = make_environment(env, 1, 0), jax.random.key(0), rule.config
    assert isinstance(environment, frodo.Environment)
    least = config.num_env_steps(is_meta=False)
    result = frodo.discover_online(environment, rule, num_steps=least, key=key, is_frozen=True)
    agent, policy = result.learner.setup.agent, result.learner.setup.rule.policy
    actor = acting.Actor(environment, agent, policy)

    @jax.jit
    def explained(learned):
        one = lambda state, _: acting.rollout(actor, learned.params, state, config.unroll)[:2]
        state = acting.init_actor(environment, agent, key, config.batch_size)
        found = jax.lax.scan(one, state, None, length=NUM_TRAJECTORIES)[1]
        cores = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found.core_state)
        wide = lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])
        whole = jax.tree.map(wide, found._replace(core_state=()))._replace(core_state=cores)
        return explain(target, config.rule.settings, result.learner.rule_inputs(learned, whole))

    for stage in range(STAGES + 1):
        if stage:
            result = result.go_on(num_steps // STAGES)
        yield {"where": f"{env}, {num_steps * stage // STAGES:,} steps"} | explained(result.state)
