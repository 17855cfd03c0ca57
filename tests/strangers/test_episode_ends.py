"""The end of an episode by a time limit: its reward counts, and what is known of what follows is bootstrapped from."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

import frodo
from agents.acting.in_jax import Actor, Schedule, init_actor, rollout
from agents.acting.on_host import HostActor
from agents.environments.gymnasium import GymnasiumEnvironment
from agents.networks.agent import NetworkConfig, make_agent
from agents.rules.returns import vtrace
from agents.types import PredictionSpec, successors
from frodo.settings.registry import make_update_rule
from tests.toy_envs.test_base import Corridor
from toy_envs.trials import Trials

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
GAMMA = 0.9


class Numbered(gymnasium.Env):
    """Shows (episode, step) and pays the number of the step; some episodes terminate, all have a limit."""

    observation_space, action_space = spaces.Box(0, 1000, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, lengths: tuple[int, ...], limit: int):
        self._lengths, self._limit, self._episode, self._step = lengths, limit, -1, 0

    def reset(self, *, seed=None, options=None):
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action):
        self._step += 1
        is_over = self._step == self._lengths[self._episode % len(self._lengths)]
        return self._observation(), float(self._step), is_over, self._step == self._limit and not is_over, {}

    def _observation(self):
        return np.array([self._episode, self._step], np.float32)


def vector(mode: AutoresetMode) -> SyncVectorEnv:
    lengths = ((9, 9), (2, 9, 1), (9, 4), (9, 3, 9))  # nines never come: the limit is 3, or 4
    makes = [
        lambda own=own, limit=limit: Numbered(own, limit) for own, limit in zip(lengths, (3, 3, 4, 4), strict=True)
    ]
    return SyncVectorEnv(makes, autoreset_mode=mode)


def acted(environment: GymnasiumEnvironment, num_steps: int, num_iterations: int):
    """Return trajectories [M, T, B], those of an agent with a memory, one after the other."""
    agent = make_agent(NetworkConfig("mlp", (4,), core=3), {"policy": PredictionSpec((2,))}, 2)
    params = jax.jit(agent.init)(jax.random.key(0), jnp.zeros((environment.num_envs, 2)))
    of = (environment, agent, lambda predictions: predictions["policy"], Schedule(2, num_steps, num_steps))
    with HostActor(*of, params, jax.random.key(1)) as actor:
        found = [actor.get() for _ in range(num_iterations)]
    trajectories = []
    for one in found:
        whole = jax.tree.map(np.asarray, one.trajectories)
        trajectories += [jax.tree.map(lambda x, m=m: x[m], whole) for m in range(2)]
        trajectories.append(jax.tree.map(np.asarray, one.validation))
    return trajectories, [r for one in found for r in one.returns]


@pytest.mark.parametrize("num_steps", [1, 2, 7])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_every_step_of_every_environment_is_learned_from_with_its_own_successor(mode, num_steps):
    trajectories, _ = acted(GymnasiumEnvironment(vector(mode)), num_steps, 8)
    lengths, limits = ((9, 9), (2, 9, 1), (9, 4), (9, 3, 9)), (3, 3, 4, 4)
    num_cut = 0
    for b in range(4):
        episode, step = 0, 0
        for trajectory in trajectories:
            assert not np.any(trajectory.is_successor_unknown)
            for t in np.flatnonzero(trajectory.valid[:, b]):
                np.testing.assert_array_equal(trajectory.observation[t, b], [episode, step])
                assert trajectory.is_first[t, b] == (step == 0)
                step += 1
                assert trajectory.reward[t, b] == step
                terminated = step == lengths[b][episode % len(lengths[b])]
                truncated = step == limits[b] and not terminated
                assert trajectory.discount[t, b] == 1 - terminated
                if not terminated:  # what it bootstraps from
                    np.testing.assert_array_equal(trajectory.observation[t + 1, b], [episode, step])
                    assert not trajectory.is_first[t + 1, b]
                goes_on = not (terminated or truncated)
                is_cut = goes_on and t + 1 < num_steps and not trajectory.valid[t + 1, b]
                assert trajectory.truncated[t, b] == (truncated or is_cut)
                num_cut += is_cut
                if not goes_on:
                    episode, step = episode + 1, 0
    for before, after in zip(trajectories, trajectories[1:], strict=False):  # nothing is lost between them
        shown, is_end = before.observation[-1], before.truncated[-1] & before.valid[-1]
        np.testing.assert_array_equal(shown[~is_end], after.observation[0][~is_end])
        assert mode is SAME_STEP or np.all(shown == after.observation[0])
    rewards = np.concatenate([trajectory.reward[~trajectory.valid] for trajectory in trajectories])
    assert np.all(rewards == 0)
    assert (num_cut > 0) == (mode is SAME_STEP and num_steps > 1)  # those that wait while others reset


def test_the_memory_of_a_learner_is_that_of_the_actor():
    agent = make_agent(NetworkConfig("mlp", (4,), core=3), {"policy": PredictionSpec((2,))}, 2)
    params = jax.jit(agent.init)(jax.random.key(0), jnp.zeros((4, 2)))
    trajectories, _ = acted(GymnasiumEnvironment(vector(SAME_STEP)), 7, 3)
    for trajectory in trajectories:
        logits = agent.unroll(params, trajectory)["policy"][:-1]
        np.testing.assert_allclose(
            trajectory.behaviour_logits[trajectory.valid], logits[trajectory.valid], rtol=1e-5, atol=1e-6
        )


class Forgetting(gymnasium.vector.VectorWrapper):
    """Resets in the same step, and does not say what was last seen."""

    def step(self, actions):
        *shown, info = super().step(actions)
        return *shown, {key: x for key, x in info.items() if "final" not in key}


def test_without_a_last_observation_the_reward_counts_and_the_rest_is_as_before():
    trajectories, _ = acted(GymnasiumEnvironment(Forgetting(vector(SAME_STEP))), 7, 2)
    one = trajectories[0]
    assert np.all(one.valid) and one.is_successor_unknown.sum() > 4
    values = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    targets, advantages = vtrace(one, values, np.full((7, 4), 0.5, np.float32), GAMMA, 0.8)
    for t, b in np.argwhere(one.is_successor_unknown):
        error = 0.5 * (one.reward[t, b] + GAMMA * values[t, b] - values[t, b])
        np.testing.assert_allclose((targets[t, b] - values[t, b], advantages[t, b]), error, rtol=1e-5)


RULE_NAMES = [name for name in frodo.RULES if name != "a2c_no_bootstrap"]  # to which the last observation is worth 0


@pytest.mark.parametrize("name", RULE_NAMES)
def test_to_every_rule_what_is_not_known_is_as_the_observation_before(name):
    """A trajectory's last observation is nothing but a successor: of another episode, it does not count."""
    rule, rng = make_update_rule(frodo.RuleConfig(name)), np.random.default_rng(0)
    spec, shape = rule.spec(3), (5, 2)
    draw = lambda: {key: rng.normal(size=(*shape, *x.axes(3))).astype(np.float32) for key, x in spec.items()}
    own, slow = draw(), draw()
    known = frodo.make_trajectory(
        observation=rng.normal(size=(*shape, 3)),
        is_first=np.zeros(shape, bool),
        action=rng.integers(3, size=(4, 2)),
        reward=rng.normal(size=(4, 2)),
        discount=np.ones((4, 2)),
        truncated=np.arange(4)[:, None] == [3, 3],
        behaviour_logits=rng.normal(size=(4, 2, 3)),
    )
    unknown = known._replace(is_first=known.is_first.at[-1].set(True))
    held = known._replace(observation=known.observation.at[-1].set(known.observation[-2]))
    hold = lambda predictions: {key: np.concatenate([x[:-1], x[-2:-1]]) for key, x in predictions.items()}
    eta = rule.random_meta_params(jax.random.key(0), 3)

    @jax.jit
    def made(trajectory, own, slow):
        targets, _ = rule.apply(eta, rule.init(), trajectory, own, slow)
        return targets, () if rule.model_steps else rule.loss(targets, own, trajectory)

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        made(unknown, own, slow),
        made(held, hold(own), hold(slow)),
    )
    differs = jax.tree.map(lambda x, y: np.any(np.abs(x - y) > 1e-3), made(known, own, slow), made(unknown, own, slow))
    assert any(jax.tree.leaves(differs))


class Broken(Numbered):
    """Shows no number at its limit."""

    def step(self, action):
        shown, reward, terminated, truncated, info = super().step(action)
        return shown * np.nan if truncated else shown, reward, terminated, truncated, info


def test_a_last_observation_that_is_no_number_is_named():
    envs = SyncVectorEnv([lambda: Numbered((9,), 3), lambda: Broken((9,), 3)], autoreset_mode=SAME_STEP)
    message = r"number 1 of its batch: observation\[0\] was nan after step 3, expected a finite number$"
    with pytest.raises(FloatingPointError, match=message):
        acted(GymnasiumEnvironment(envs), 7, 1)


def test_a_pure_environment_bootstraps_from_what_it_last_showed():
    environment, agent = Corridor(), make_agent(NetworkConfig("mlp", (4,)), {"policy": PredictionSpec((2,))}, 2)
    state = init_actor(environment, agent, jax.random.key(0), 3)
    params = agent.init(jax.random.key(1), state.time_step.observation)
    actor = Actor(environment, agent, lambda predictions: predictions["policy"])
    _, trajectory, stats = jax.jit(lambda state: rollout(actor, params, state, 40))(state)
    values = trajectory.observation @ np.array([1.0, 0.1, 0.01])
    targets, advantages = vtrace(trajectory, values, np.ones((40, 3)), GAMMA, 1.0)
    t, b = np.nonzero(np.asarray(trajectory.truncated))
    assert len(t) > 5 and not np.any(trajectory.is_successor_unknown) and np.all(trajectory.valid[t, b])
    np.testing.assert_array_equal(trajectory.observation[t + 1, b, 2], 3)  # three steps are the limit
    expected = trajectory.reward[t, b] + GAMMA * values[t + 1, b]
    np.testing.assert_allclose(targets[t, b], expected, rtol=1e-5)
    np.testing.assert_allclose(advantages[t, b], expected - values[t, b], rtol=1e-4, atol=1e-5)
    inside = t < 39
    assert not np.any(trajectory.valid[t[inside] + 1, b[inside]])
    is_over = (trajectory.discount == 0) | trajectory.truncated
    assert stats.num_episodes == is_over.sum()


def test_the_last_reward_of_a_trial_that_time_ends_counts():
    environment = Trials(Corridor(), 2)
    agent = make_agent(NetworkConfig("mlp", (4,)), {"policy": PredictionSpec((2,))}, 2)
    state = init_actor(environment, agent, jax.random.key(0), 2)
    params = agent.init(jax.random.key(1), state.time_step.observation)
    forwards = lambda predictions: 0 * predictions["policy"] + jnp.array([0.0, -1e9])  # never to the goal
    actor = Actor(environment, agent, forwards)
    _, trajectory, _ = jax.jit(lambda state: rollout(actor, params, state, 12))(state)
    assert np.all(trajectory.valid) and not np.any(trajectory.truncated)
    np.testing.assert_array_equal(np.flatnonzero(trajectory.discount[:, 0] == 0), [5, 11])
    _, advantages = vtrace(
        trajectory._replace(reward=trajectory.reward.at[2].set(1.0)), np.zeros((13, 2)), np.ones((12, 2)), GAMMA, 1.0
    )
    np.testing.assert_allclose(advantages[:6, 0], [GAMMA**2, GAMMA, 1, 0, 0, 0], rtol=1e-6)


def test_successors_of_vectors():
    trajectory = frodo.make_trajectory(
        observation=np.zeros((3, 2, 1)),
        action=np.zeros((2, 2), int),
        reward=np.zeros((2, 2)),
        discount=np.ones((2, 2)),
        truncated=np.array([[False, True], [True, False]]),
        is_first=np.array([[False, False], [False, True], [False, False]]),
        behaviour_logits=np.zeros((2, 2, 3)),
    )
    x = np.arange(18.0).reshape(3, 2, 3)
    np.testing.assert_array_equal(successors(x, trajectory), [[x[1, 0], x[0, 1]], [x[2, 0], x[2, 1]]])
    np.testing.assert_array_equal(successors(x[..., 0], trajectory), [[x[1, 0, 0], x[0, 1, 0]], x[2, :, 0]])


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_a_loop_of_ones_own_marks_resets_as_the_adapter_does(mode):
    """`make_trajectory` finds the same from what gymnasium shows, where `is_first` is given as its docstring says."""
    actions = np.zeros((12, 4), int)
    environment, envs = GymnasiumEnvironment(vector(mode)), vector(mode)
    shown = [environment.reset(), *(environment.step(row) for row in actions)]
    observation, _ = envs.reset()
    seen, is_first, ends, was_over = [observation], [np.ones(4, bool)], [], np.zeros(4, bool)
    for row in actions:
        observation, reward, terminated, truncated, _ = envs.step(row)
        is_over = terminated | truncated
        seen.append(observation)
        is_first.append(is_over if mode is SAME_STEP else was_over)
        ends.append((reward, ~terminated, truncated))
        was_over = is_over
    reward, discount, truncated = map(np.stack, zip(*ends, strict=True))
    trajectory = frodo.make_trajectory(
        observation=np.stack(seen),
        is_first=np.stack(is_first),
        action=actions,
        reward=reward,
        discount=discount,
        truncated=truncated,
        behaviour_logits=np.zeros((12, 4, 2)),
    )
    for name in ("reward", "discount", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(trajectory, name), np.stack([getattr(x, name) for x in shown[1:]]), name)
    np.testing.assert_array_equal(trajectory.is_first, np.stack([x.is_first for x in shown]))


def test_a_time_limit_of_gymnasiums_own_wrapper():
    make = lambda: TimeLimit(Numbered((9,), 99), 3)
    environment = GymnasiumEnvironment(SyncVectorEnv([make, make], autoreset_mode=SAME_STEP))
    trajectories, returns = acted(environment, 7, 2)
    assert set(returns) == {6.0}
    assert all(np.all(t.reward[t.truncated & t.valid] == 3) for t in trajectories[:1])
