"""Normalised scores run from random play to the best."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.environments.names import make_environment
from frodo.regimes.adaptation import held_out_tasks
from frodo.regimes.k_shot import references
from frodo.regimes.scores import bounds, normalised, reference_scores
from frodo.runs.errors import UsageError
from toy_envs.grid_worlds import GridWorld, make_world
from toy_envs.rule_room import RuleRoom


def test_human_normalised_scores_are_those_of_the_published_formula():
    random, human = -20.7, 14.6  # Pong, DQN Zoo
    returns = np.array([[-21.0, 3.5], [14.6, 20.0]])
    np.testing.assert_allclose(normalised("atari/pong", returns), (returns - random) / (human - random), rtol=1e-12)
    np.testing.assert_allclose(normalised("atari/Pong", returns), normalised("atari/pong", returns))
    assert reference_scores("atari/Pong") == (random, human)


def test_scores_of_toys_run_from_random_to_best():
    assert reference_scores("toy/catch") == pytest.approx((-9 / 11, 1))
    assert reference_scores("bsuite/catch/7") == pytest.approx((-0.6, 1))
    assert normalised("toy/catch/5x5", np.array([-0.6, 0.2, 1.0])) == pytest.approx([0, 0.5, 1], abs=1e-6)
    assert reference_scores("changing/rewards/9/toy/catch/5x5") == (0, 1)
    assert reference_scores("scaled/1e-2/toy/catch/5x5") == pytest.approx((-0.006, 0.01))
    assert bounds("scaled/2/gymnax/CartPole-v1") == (0, 1000)
    assert reference_scores("changing/actions/9/gymnax/CartPole-v1") == reference_scores("gymnax/CartPole-v1")
    for env in (
        "toy/random_walk",
        "changing/rewards/9/toy/catch/5x1",
        "changing/rewards/9/toy/catch/3x11",
        "toy/grid_world/1",
        "bsuite/deep_sea/0",
        "envpool/Acrobot-v1",
    ):
        with pytest.raises(UsageError, match=f"{env}.*toy/grid_world/<an even number>"):
            normalised(env, np.zeros(1))


def test_a_rule_room_is_scored_by_who_knows_its_rules():
    rooms = [RuleRoom("main", "held_out", number) for number in range(3)]
    scores = [reference_scores(f"toy/rule_room/main/held_out/{room.number}") for room in rooms]
    known = references(RuleRoom("main"), held_out_tasks(RuleRoom("main"), 3), ())
    np.testing.assert_allclose([best for _, best in scores], known.oracle)
    assert len(set(scores)) == 3 and all(0 < random < 0.1 for random, _ in scores)
    # Where the goal is reached at the start, random play loses it sooner or later.
    assert (
        0 < reference_scores("toy/rule_room/pre_solved/16/0")[0] < reference_scores("toy/rule_room/pre_solved/16/0")[1]
    )
    for env, message in (
        ("toy/rule_room/impossible/16/0", "does not suffice there even for who knows the rules"),
        ("toy/rule_room/main/held_out", "toy/rule_room/<kind>/held_out/<number>"),
    ):
        with pytest.raises(UsageError, match=message):
            reference_scores(env)


@pytest.mark.parametrize("index", [0, 8, 48])
def test_random_play_in_a_grid_world_is_what_acting_gives(index):
    environment, num = GridWorld(index), 4000

    def episode(key):
        state, _ = environment.init(key)

        def body(carry, key):
            state, total, is_going = carry
            state, step = environment.step(state, jax.random.randint(key, (), 0, 5), False)
            total += is_going * step.reward
            return (state, total, is_going * (step.discount != 0) * ~step.truncated), None

        keys = jax.random.split(jax.random.fold_in(key, 1), int(make_world(index).horizon))
        return jax.lax.scan(body, (state, 0.0, jnp.ones(())), keys)[0][1]

    returns = np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), num)))
    random, best = reference_scores(f"toy/grid_world/{index}")
    assert abs(returns.mean() - random) < 4 * returns.std() / np.sqrt(num)
    assert returns.max() >= best - 1e-3 or best > random


def test_scores_of_gymnax_are_between_random_play_and_a_reference():
    assert normalised("gymnax/Breakout-MinAtar", np.array([0.38, 69.9])) == pytest.approx([0, 1])
    assert normalised("gymnax/CartPole-v1", np.array([500.0])) == pytest.approx(1)
    with pytest.raises(UsageError, match="gymnax/Pendulum-v1.*gymnax/CartPole-v1, gymnax/Acrobot-v1"):
        reference_scores("gymnax/Pendulum-v1")


@pytest.mark.long
@pytest.mark.parametrize("env", ["CartPole-v1", "Asterix-MinAtar"])
def test_random_play_of_gymnax_is_what_acting_gives(env):
    pytest.importorskip("gymnax")
    environment, num = make_environment(f"gymnax/{env}", 1, 0), 1000

    def body(carry):
        state, key, total, goes_on = carry
        key, own = jax.random.split(key)
        action = jax.random.randint(own, (num,), 0, environment.num_actions)
        state, step = jax.vmap(environment.step)(state, action, jnp.zeros(num, bool))
        return state, key, total + goes_on * step.reward, goes_on & (step.discount > 0) & ~step.truncated

    state, _ = jax.vmap(environment.init)(jax.random.split(jax.random.key(3), num))
    start = (state, jax.random.key(4), jnp.zeros(num), jnp.ones(num, bool))
    returns = np.asarray(jax.jit(lambda x: jax.lax.while_loop(lambda x: jnp.any(x[3]), body, x))(start)[2])
    assert abs(returns.mean() - reference_scores(f"gymnax/{env}")[0]) < 4 * returns.std() / np.sqrt(num)


@pytest.mark.parametrize(
    "env,found",
    [
        ("gymnax/CartPole-v1", (0.0, 500.0)),
        ("envpool/LunarLander-v2", (-500.0, 250.0)),
        ("navix/Navix-DoorKey-5x5-v0", (0.0, 1.0)),
        ("envpool/MiniGrid-Dynamic-Obstacles-5x5-v0", (-1.0, 1.0)),
        ("envpool/MiniGrid-Unlock-v0", (0.0, 1.0)),
        ("gymnax/Breakout-MinAtar", reference_scores("gymnax/Breakout-MinAtar")),
    ],
)
def test_bounds_of_a_search_are_the_papers_where_it_has_them(env, found):
    assert bounds(env) == found
