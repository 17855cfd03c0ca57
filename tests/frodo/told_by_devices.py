"""Prints the bytes that two devices of a split lifetime sum up in an iteration, and those of the plan.

    JAX_NUM_CPU_DEVICES=2 python -m tests.frodo.told_by_devices RULE

The network is wide, so that gradients outweigh what else is told.
"""

import dataclasses
import sys

import jax

from agents import splitting
from frodo.regimes import program_costs
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.regimes.plan import plan_online
from tests.frodo.split_lifetimes import config_of
from toy_envs.catch import Catch


def main(rule):
    config = config_of(rule)
    config = config.replace(network=dataclasses.replace(config.network, hidden=(256, 256)))
    if rule in ("frodo", "disco"):
        config = config.replace(rule=config.rule.replace(lstm=128))
    program = make_online_program(build_learner(config, 3), Catch(4, 3))
    with splitting.over(2):
        state = jax.jit(program.init)(jax.random.key(0))
        compiled = jax.jit(program.run, static_argnums=1).lower(state, 1).compile()
    # In place of FLOPs, the bytes of sums over devices are counted, in loops as often as they are taken.
    program_costs._flops = lambda own, one: program_costs._bytes(one.shape) if one.kind == "all-reduce" else 0.0
    summed = program_costs.costs_of_compiled(compiled).flops
    print(summed, plan_online(config.replace(env="toy/catch/4x3"), 2, 1e6).told)


if __name__ == "__main__":
    main(sys.argv[1])
