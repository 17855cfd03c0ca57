"""A self-tuned rule goes through the house as other learned rules do."""

import jax
import numpy as np
import pytest

import frodo
from experiments.comparison.comparison import check
from experiments.comparison.protocol import Grid
from tests.experiments.comparison.small_comparison import one
from toy_envs.catch import Catch

KEY = jax.random.key(0)
TINY = dict(batch_size=2, unroll=4, validation_unroll=4, num_updates=2, network=frodo.NetworkConfig("mlp", (4,)))


def test_true_values_are_those_of_the_environment():
    rule = frodo.make_rule("self_tuned", tuned=("discount",), discount=0.95, known_values="toy/discounting_chain/3")
    message = "^rule.known_values is 'toy/discounting_chain/3' and the environment .*, expected the same$"
    with pytest.raises(ValueError, match=message):
        frodo.discover_online("toy/discounting_chain/0", rule, num_steps=100, key=KEY, **TINY)
    with pytest.raises(ValueError, match=message):
        frodo.discover([Catch(4, 3)], rule, num_meta_steps=2, key=KEY, budgets=(100,), **TINY)


def test_a_population_discovers_it_an_agent_goes_on_with_its_file_and_it_is_compared(tmp_path):
    rule = frodo.make_rule("self_tuned", tuned=("discount", "entropy_cost"), discount=0.9)
    found = frodo.discover([Catch(4, 3)], rule, num_meta_steps=2, key=KEY, budgets=(100,), **TINY)
    found.save(tmp_path / "rule.npz")
    loaded = frodo.load_rule(tmp_path / "rule.npz")
    online = frodo.discover_online(Catch(4, 3), loaded, num_steps=200, key=KEY, **TINY)
    path, discount = online.metrics["eta_discount"], 1 / (1 + np.exp(-np.asarray(loaded.meta_params["discount"])))
    np.testing.assert_allclose(path[0], discount[0], rtol=1e-4)  # its η begins where the population's ended
    assert discount[0] != np.float32(0.9) and path[-1] != path[0]
    methods = ("impala", "self_tuned", "self_tuned_frozen")
    compared = one(methods=methods, grid=Grid((1e-3, 1e-2), (0.01,), ((2, 20),)), budget=600)
    assert check(compared, allow_seen=False) == {}
