"""What one iteration multiplies, counted before compilation: a change that adds a product to one fails here.

Counts are FLOPs of products, as often as their loops are taken (`frodo.regimes.plan.flops_of`), over those of as many
plain updates of the same agent, gradient and all. One that becomes smaller is written down anew.
"""

import dataclasses

import jax
import pytest

from agents.acting.replay import ReplayConfig
from agents.environments.names import make_environment
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.regimes.plan import flops_of
from frodo.settings import presets
from meta.updates import gradients

SMALL = {"batch_size": 4, "unroll": 6, "num_updates": 3}
HIDDEN = (64, 64)


def counted(rule, **settings):
    """Return the FLOPs of an iteration over those of its updates, each a forward and a backward pass of the agent."""
    config = presets.for_rule("toy/catch/5x5", rule).replace(**SMALL | settings)
    config = config.replace(network=dataclasses.replace(config.network, hidden=HIDDEN, core=0))
    environment = make_environment(config.env, config.batch_size, 0)
    program = make_online_program(build_learner(config, environment.num_actions), environment)
    state = jax.eval_shape(program.init, jax.random.key(0))
    found = flops_of(jax.jit(lambda state: program.run(state, 1)).trace(state).jaxpr)
    layers = [25 * 64, 64 * 64]
    num_observations = config.num_updates * config.batch_size * (config.unroll + 1)
    return found / (2 * num_observations * (3 * sum(layers) - layers[0]))


META = {"validation_unroll": 6}


@pytest.mark.parametrize(
    "rule,settings,expected",
    [
        ("impala", {}, 1.3754),
        ("impala", {"is_acting_interleaved": True}, 1.3754),
        ("ppo", {"num_updates": 1, "epochs": 2, "minibatches": 2}, 4.2113),
        ("frodo", META | {"gradient_mode": "mixed"}, 61.421),
        ("frodo", META | {"gradient_mode": "reverse"}, 40.385),
        ("frodo", META | {"gradient_mode": "reverse", "is_acting_interleaved": True}, 40.385),  # none is taken twice
        ("learned_loss", META | {"gradient_mode": "mixed"}, 103.382),
        ("disco", META, 11283.6),
    ],
)
def test_an_iteration_multiplies_no_more_than_it_did(rule, settings, expected):
    assert counted(rule, **settings) == pytest.approx(expected, rel=1e-3)


def test_an_update_is_traced_as_often_with_a_replay_as_without(monkeypatch):
    """What a step returns where the replay does not hold enough has the shapes of one that is taken."""
    traces, own = [], gradients.predict
    monkeypatch.setattr(gradients, "predict", lambda *of: traces.append(1) or own(*of))
    counted("impala", num_updates=1)
    num = len(traces)
    counted("impala", num_updates=1, replay=ReplayConfig(8, 4, 0.5))
    assert len(traces) == 2 * num > 0
