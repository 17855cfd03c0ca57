"""Short runs with fixed seeds on one device, whose numbers tests/data/numbers_0_1_0.npz has as version 0.1.0 gave them.

Runs in which η of the rule `disco` is learned were recorded after 0.2.0: the meta-value function's initial weights have
a key of their own since then. With the key from before they are 0.1.0's to 4e-4.

    python -m tests.numbers            compare all runs with the file, and print what differs, if only in a bit
    python -m tests.numbers impala     of one run

Another order of sums differs in the last bits, which learning enlarges: the exit code is 1 where a number differs by
1e-3 of the largest of its array, or by more.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting.on_host import HostActor
from agents.acting.replay import ReplayConfig
from agents.environments.names import make_environment
from agents.networks.agent import NetworkConfig
from frodo.regimes.discovery import reduce_results
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.regimes.population import Population
from frodo.rules.files import config_for, load_rule
from frodo.settings import population_presets, presets
from frodo.settings.registry import RuleConfig
from meta.targets.disco import DiscoConfig
from tests.recorded import Difference, compare

FILE = Path(__file__).parent / "data" / "numbers_0_1_0.npz"
SMALL = NetworkConfig("mlp", (32, 32))
REPLAY = ReplayConfig(capacity=16, batch_size=8, fresh=0.25)
Numbers = dict[str, np.ndarray]


def sums(tree: Any) -> np.ndarray:
    """The sum of absolute values of each array."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return np.array([float(jnp.sum(jnp.abs(x.astype(jnp.float32)))) for x in leaves])


def online(config, iterations: int = 4, meta_params: Any = None, is_frozen: bool = False) -> Numbers:
    environment = make_environment(config.env, config.batch_size, 0)
    program = make_online_program(build_learner(config, environment.num_actions, is_frozen), environment)
    state = jax.jit(program.init)(jax.random.key(0), meta_params)
    state, metrics, control = jax.jit(program.run, static_argnums=1)(state, iterations)
    numbers = {name: np.asarray(x) for name, x in metrics.items()}
    if program.learner.is_meta:
        numbers["skipped_in_a_row"] = np.asarray(control.skipped_in_a_row)
    agent = state.learner.lifetime.agent
    return numbers | {"params": sums(agent.params), "meta_params": sums(state.learner.meta_params)}


def catch(rule: str = "frodo", is_value_based: bool = False, **settings: Any):
    config = presets.catch(is_value_based).replace(network=SMALL, batch_size=8)
    if rule in ("frodo", "learned_loss"):
        config = config.replace(rule=config.rule.replace(lstm=16))
    config = presets.with_rule(config, rule)
    return with_the_critics_cost(config.replace(rule=config.rule.replace(**settings)))


def with_the_critics_cost(config):
    """Double the critic's cost: its loss was value_cost (g − v)² in 0.1.0, and is half of that, the same to the bit."""
    if config.rule.kind != "actor_critic" or config.rule.name == "disco":
        return config
    if hasattr(config.rule.settings, "value_cost"):
        config = config.replace(rule=config.rule.replace(value_cost=1.0))
    if not config.rule.entry.is_learned:
        return config
    return config.replace(outer=dataclasses.replace(config.outer, value_cost=1.0))


def disco(**settings: Any):
    small = population_presets.small("disco")
    rule = DiscoConfig(prediction_size=7, max_value=3, lstm=16, lifetime_lstm=8, action_embedding=(8, 4), discount=0.99)
    config = small.replace(
        batch_size=4,
        unroll=6,
        validation_unroll=8,
        num_updates=2,
        is_acting_interleaved=False,
        network=NetworkConfig("mlp", (16, 16), action_model=8, head_stddev=0.01),
        rule=RuleConfig("disco", rule),
        outer=dataclasses.replace(small.outer, value_hidden=(16,)),
    )
    return config.replace(**settings)


def disco_online(iterations: int, **settings: Any) -> Numbers:
    config = presets.for_rule("toy/catch/5x5", "disco")
    names = [field.name for field in dataclasses.fields(disco().agent_only())]
    own = disco(**settings)
    return online(config.replace(**{name: getattr(own, name) for name in names}), iterations)


def scalar_population():
    config = population_presets.small("frodo")
    network = NetworkConfig("mlp", (16, 16), head_stddev=0.01)
    rule = config.rule.replace(lstm=16)
    config = config.replace(rule=rule, batch_size=4, unroll=6, validation_unroll=8, num_updates=2, network=network)
    return with_the_critics_cost(config)


def population(config, envs: tuple[str, ...], steps: int, **settings: Any) -> Numbers:
    config = config.replace(num_devices=1, **settings)
    environments = [make_environment(env, config.batch_size, i) for i, env in enumerate(envs)]
    rows = []
    with Population(config, environments, jax.random.key(0)) as agents:
        state = agents.init()
        agents.start(state)
        for _ in range(steps):
            state, results = agents.step(state)
            rows.append(reduce_results([results], agents.indices, envs))
    numbers = {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}
    numbers["params"] = np.concatenate([sums(group.lifetime.agent.params) for group in state.groups])
    return numbers | {"meta_params": sums(state.meta_params)}


def on_host(rule: str, iterations: int) -> Numbers:
    """CartPole, with the actor in lockstep: it acts when the learner is done."""
    config = presets.for_rule("envpool/CartPole-v1", rule)
    network = NetworkConfig("mlp", (16, 16), core=8)
    config = config.replace(batch_size=4, unroll=5, validation_unroll=6, network=network)
    if rule == "frodo":
        config = config.replace(num_updates=2, rule=config.rule.replace(lstm=16))
    config = with_the_critics_cost(config)
    environment = make_environment(config.env, config.batch_size, 0)
    learner = build_learner(config, environment.num_actions)
    actor_key, learner_key = jax.random.split(jax.random.key(0))
    state = jax.jit(learner.init)(learner_key, jnp.asarray(environment.reset().observation))
    environment.close()
    environment = make_environment(config.env, config.batch_size, 0)
    agent, policy = learner.setup.agent, learner.setup.rule.policy
    actor = HostActor(environment, agent, policy, config.schedule(learner.is_meta), state.params, actor_key)
    learn, rows = jax.jit(learner.learn), []
    for acted, _ in zip(actor._iterations(), range(iterations), strict=False):
        state, metrics, control = learn(state, acted.trajectories, acted.validation)
        actor.params = state.params
        rows.append({name: np.asarray(x) for name, x in metrics.items()} | {"returns": np.sum(acted.returns)})
        if learner.is_meta:
            rows[-1]["skipped_in_a_row"] = np.asarray(control.skipped_in_a_row)
    environment.close()
    numbers = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return numbers | {"params": sums(state.lifetime.agent.params), "meta_params": sums(state.meta_params)}


def disco103() -> Numbers:
    rule = load_rule("disco103")
    config = config_for(rule, presets.for_rule("toy/catch/8x8", "disco")).replace(
        replay=ReplayConfig(capacity=8, batch_size=4, fresh=0.0),
        unroll=9,
        network=NetworkConfig("mlp", (32, 32), action_model=16, head_stddev=0.01),
    )
    return online(config, 6, rule.meta_params, is_frozen=True)


ENVS = ("toy/catch/5x5", "toy/catch/5x5")
RUNS: dict[str, Callable[[], Numbers]] = {
    "impala": lambda: online(catch("impala")),
    "a2c": lambda: online(catch("a2c")),
    "a2c_no_bootstrap": lambda: online(catch("a2c_no_bootstrap")),
    "q_learning": lambda: online(catch("q_learning", is_value_based=True)),
    "td_lambda": lambda: online(presets.td_lambda(presets.random_walk(), 0.4), 6),
    "frodo_actor_critic": lambda: online(catch()),
    "frodo_value_based": lambda: online(catch(is_value_based=True)),
    "frodo_prediction": lambda: online(presets.random_walk(), 6),
    "frodo_consistency": lambda: online(catch(consistency_cost=0.1, reduction="mean").replace(gradient_mode="mixed")),
    "frodo_literal": lambda: online(catch(next_value_gradient="literal").replace(gradient_mode="remat")),
    "frodo_window": lambda: online(
        catch().replace(
            num_updates=3, stride=1, outer=dataclasses.replace(catch().outer, is_advantage_normalised=True)
        ),
        6,
    ),
    "frodo_in_turn": lambda: online(catch().replace(is_acting_interleaved=True)),
    "learned_loss": lambda: online(catch("learned_loss")),
    "disco": lambda: disco_online(4),
    "disco_replay": lambda: disco_online(6, replay=REPLAY),
    "disco_window": lambda: disco_online(6, num_updates=3, stride=1),
    "disco_replay_window": lambda: disco_online(8, replay=REPLAY, num_updates=3, stride=1),
    "population_scalar": lambda: population(
        scalar_population(), ("toy/catch/5x5", "toy/catch/9x9", "toy/grid_world/0"), 6, budgets=(200, 400)
    ),
    "population_disco": lambda: population(disco(is_acting_interleaved=True), ENVS, 6, budgets=(160, 240)),
    "population_shared_optimizer": lambda: population(
        disco(num_updates=3, stride=1, replay=REPLAY), ENVS, 6, budgets=(10**9,), is_optimizer_per_agent=False
    ),
    "host_impala": lambda: on_host("impala", 6),
    "host_frodo": lambda: on_host("frodo", 4),
    "disco103": disco103,
}


def recorded(run: str) -> Numbers:
    """Return what version 0.1.0 gave."""
    with np.load(FILE) as file:
        return {key.split("/", 1)[1]: file[key] for key in file if key.startswith(f"{run}/")}


def difference(run: str) -> Difference:
    return compare(RUNS[run](), recorded(run))


if __name__ == "__main__":
    is_good = True
    if unknown := [name for name in sys.argv[1:] if name not in RUNS]:
        sys.exit(f"error: {unknown[0]!r} is no run: give some of {', '.join(RUNS)}")
    for name in sys.argv[1:] or RUNS:
        if name == "disco103" and not os.environ.get("DISCO103_WEIGHTS"):
            print(f"{name}: left out, DISCO103_WEIGHTS names no file")
            continue
        print(f"{name}: ", end="", flush=True)
        found = difference(name)
        print(found, flush=True)
        is_good &= found.worst < 1e-3
    sys.exit(not is_good)
