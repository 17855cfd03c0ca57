"""Distillation against loops of eq. 2, what a teacher can know, when it teaches, and that its agent becomes like it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from agents.rules.impala import ImpalaConfig, impala
from agents.rules.muesli import MuesliConfig, muesli
from agents.types import PredictionSpec
from meta.updates.distillation import DistilledState, Teacher, distilled
from tests.reference.agents import probabilities
from tests.reference.muesli import kl
from tests.trajectories import random_trajectory
from tests.trees import check_equal

T, B, A, K = 6, 4, 3, 2
MUESLI = muesli(MuesliConfig(discount=0.9, model_steps=K, max_value=2))
IMPALA = impala(ImpalaConfig(discount=0.9))
COST = 0.7

pytestmark = pytest.mark.usefixtures("float64")


def make_teacher(core=0, num_actions=A, observation_size=2, seed=0):
    agent = make_agent(NetworkConfig("mlp", (4,), core=core), {"logits": PredictionSpec((num_actions,))}, num_actions)
    params = agent.init(jax.random.key(seed), jnp.zeros((1, observation_size)))
    params = jax.tree.map(lambda x: 3 * x, params)
    return Teacher(agent, lambda predictions: predictions["logits"], params)


def drawn(rule, seed=0):
    """A trajectory with ends inside, and predictions, those of a model along K taken actions."""
    rng = np.random.default_rng(seed + 100)
    trajectory = random_trajectory(seed, T, B, num_actions=A)
    trajectory = trajectory._replace(observation=rng.normal(size=(T + 1, B, 2)))
    known = {name: rng.normal(size=(T + 1, B, *one.axes(A))) for name, one in rule.spec(A).items()}
    of_model = {name: rng.normal(size=(T + 1, B, K, *x.shape)) for name, x in rule.spec(A).items() if x.is_per_action}
    return trajectory, known, known | of_model


def added_loss(rule, teacher, trajectory, known, along, num_updates=1, so_far=0):
    """What distillation adds to the rule's loss, [T, B]."""
    taught = distilled(rule, teacher, num_updates, COST)
    state = taught.init()._replace(num_updates=jnp.array(so_far))
    targets, new = taught.apply({}, state, trajectory, known, known)
    assert new.num_updates == so_far + 1
    own, own_state = rule.apply({}, rule.init(), trajectory, known, known)
    check_equal((targets.own, new.own), (own, own_state))
    return np.asarray(taught.loss(targets, along, trajectory) - rule.loss(own, along, trajectory))


def goes_on(trajectory, t, b, i):
    """Whether from step t on i more steps of the same episode were taken in the trajectory, the last one valid."""
    if t + i >= T or not trajectory.valid[t + i, b]:
        return False
    return not any(trajectory.is_last[t : t + i, b])


@pytest.mark.parametrize("name", ["impala", "muesli"])
@pytest.mark.parametrize("core", [0, 3])
def test_the_loss_is_that_of_the_paper(name, core):
    """AdA, eq. 2: Σᵢ KL(teacher's policy in the state i steps later ‖ that of the model i steps ahead)."""
    rule, num_ahead = {"impala": (IMPALA, 0), "muesli": (MUESLI, K)}[name]
    trajectory, known, along = drawn(rule)
    assert np.asarray(trajectory.is_last)[1:-1].any(), "an episode ends inside"
    teacher = make_teacher(core)
    logits = np.asarray(teacher.logits(trajectory))
    expected, begun = np.zeros((T, B)), np.cumsum(np.asarray(trajectory.is_first[:-1]), axis=0) > 0
    for t in range(T):
        for b in range(B):
            for i in range(num_ahead + 1):
                if not goes_on(trajectory, t, b, i) or (core and not begun[t + i, b]):
                    continue
                policy = known["policy"][t, b] if i == 0 else along["model_policy"][t, b, i - 1]
                expected[t, b] += COST * kl(probabilities(logits[t + i, b]), probabilities(policy))
    found = added_loss(rule, teacher, trajectory, known, along)
    np.testing.assert_allclose(found * trajectory.valid, expected * trajectory.valid, atol=1e-9)
    assert np.count_nonzero(expected) > T and (not core or np.any(~begun))


def test_a_teacher_with_a_memory_reads_the_episode_from_its_start():
    trajectory = drawn(IMPALA)[0]
    trajectory = trajectory._replace(is_first=jnp.zeros((T + 1, B), bool).at[0].set(True))
    teacher = make_teacher(core=3)
    state, found = teacher.agent.initial_state(B), []
    for observation, is_first in zip(trajectory.observation[:-1], trajectory.is_first[:-1], strict=True):
        predictions, state = teacher.agent.step(teacher.params, observation, is_first, state)
        found.append(predictions["logits"])
    np.testing.assert_allclose(teacher.logits(trajectory), np.stack(found), atol=1e-9)
    assert np.all(teacher.knows(trajectory))


def test_it_teaches_for_so_many_updates_and_no_longer():
    trajectory, known, along = drawn(IMPALA)
    teacher = make_teacher()
    for so_far, is_taught in ((0, True), (2, True), (3, False), (9, False)):
        assert np.any(added_loss(IMPALA, teacher, trajectory, known, along, 3, so_far)) == is_taught
        taught = distilled(IMPALA, teacher, 3, COST)
        targets, _ = taught.apply({}, DistilledState((), jnp.array(so_far)), trajectory, known, known)
        assert np.isfinite(taught.metrics(targets, known, trajectory)["teacher_kl"]) == is_taught


def test_without_its_teacher_it_is_the_rule_alone_with_the_same_state():
    trajectory, known, _ = drawn(MUESLI)
    alone = distilled(MUESLI, None, 1, COST)
    found, new = alone.apply({}, alone.init(), trajectory, known, known)
    own, own_state = MUESLI.apply({}, MUESLI.init(), trajectory, known, known)
    check_equal((found, new.own), (own, own_state))
    assert new.num_updates == 1 and alone.loss is MUESLI.loss
    shapes = [jax.tree.structure(distilled(MUESLI, teacher, 1, COST).init()) for teacher in (None, make_teacher())]
    assert shapes[0] == shapes[1]


def test_no_gradient_reaches_the_teacher_and_the_agents_has_its_sign():
    trajectory, known, _ = drawn(IMPALA)
    teacher = make_teacher()

    def loss(params, policy):
        taught = distilled(IMPALA, teacher._replace(params=params), 1, COST)
        targets, _ = taught.apply({}, taught.init(), trajectory, known, known)
        own = IMPALA.loss(targets.own, known | {"policy": policy}, trajectory)
        return jnp.sum((taught.loss(targets, known | {"policy": policy}, trajectory) - own) * trajectory.valid)

    of_teacher, of_agent = jax.grad(loss, argnums=(0, 1))(teacher.params, jnp.asarray(known["policy"]))
    assert not any(np.any(x) for x in jax.tree.leaves(of_teacher))
    moved = known["policy"] - 1e-3 * of_agent
    assert loss(teacher.params, moved) < loss(teacher.params, known["policy"])


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (make_teacher(num_actions=4), "the teacher has 4 actions, expected 3"),
        (make_teacher(observation_size=5), r"the teacher sees other observations than those of the shape \(2,\)"),
    ],
)
def test_a_teacher_of_something_else_is_refused(teacher, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        teacher.check(jnp.zeros((4, 2)), jnp.zeros((4, 2)), A)
    make_teacher(core=3).check(jnp.zeros((4, 2)), jnp.zeros((4, 2)), A)
    with pytest.raises(ValueError, match="^the teacher sees other observations"):  # prepared in another way
        make_teacher().check(jnp.zeros((4, 2)), jnp.zeros((4, 1, 2)), A)


def test_what_the_teacher_never_does_is_learned_from_all_the_same():
    trajectory, known, along = drawn(IMPALA)
    teacher = make_teacher()._replace(policy=lambda predictions: predictions["logits"].at[..., 0].set(-jnp.inf))
    found = added_loss(IMPALA, teacher, trajectory, known, along)
    assert np.all(np.isfinite(found)) and np.any(found > 0)
