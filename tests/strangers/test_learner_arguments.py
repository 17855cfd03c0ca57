"""A learner refuses what is not its own: by shapes when it is traced, by values outside of jit, at no cost inside."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
from frodo.rules.files import make_rule

KEY = jax.random.key(0)
B, T, A = 3, 4, 2
NETWORK = frodo.NetworkConfig("mlp", (4,), core=5)
RULE = make_rule("frodo", lstm=3)
OBSERVATIONS = jnp.zeros((B, 6, 2))
NO_ETA = r"^meta_params\[.*\] has the shape nothing, expected \[.*\]: an η of this rule"
NO_STATE = "has the shape nothing, expected .*a state of this learner"


@functools.cache
def learner_and_state(rule="frodo"):
    made = frodo.make_learner(RULE if rule == "frodo" else rule, A, network=NETWORK)
    return made, jax.jit(made.init)(KEY, OBSERVATIONS)


def experience(batch=B, core=None, **changed):
    made, _ = learner_and_state()
    given = dict(
        observation=np.zeros((T + 1, batch, 6, 2), np.float32),
        action=np.zeros((T, batch), int),
        reward=np.zeros((T, batch)),
        discount=np.ones((T, batch)),
        behaviour_logits=np.zeros((T, batch, A)),
        core_state=made.setup.agent.initial_state(batch) if core is None else core,
    )
    return frodo.make_trajectory(**given)._replace(**changed)


def bad_eta(fill):
    return jax.tree.map(lambda x: jnp.full_like(x, fill), learner_and_state()[1].meta_params)


def wider(tree):
    return jax.tree.map(lambda x: x[..., None], tree)


def in_and_outside_of_jit(fn, *arguments):
    """Shapes are refused in both."""
    return (lambda: fn(*arguments)), (lambda: jax.eval_shape(fn, *arguments))


@pytest.mark.parametrize(
    ("observation", "meta_params", "message"),
    [
        (OBSERVATIONS, bad_eta(np.nan), r"^meta_params\[.*\] has entries that are not finite, expected numbers$"),
        (OBSERVATIONS, bad_eta(np.inf), r"^meta_params\[.*\] has entries that are not finite, expected numbers$"),
        (OBSERVATIONS, {}, NO_ETA),
        (
            OBSERVATIONS,
            {"a": np.zeros(2)},
            NO_ETA,
        ),
        (
            OBSERVATIONS,
            jax.tree.map(lambda x: x[..., None], bad_eta(0.0)),
            r"^meta_params\[.*\] has the shape \[.*1\], ",
        ),
        (
            np.zeros(6),
            None,
            r"^observation has the shape \[6\], expected \[B, ...\]: the first axis is that of ",
        ),
        (OBSERVATIONS[:0], None, r"^observation has the shape \[0, 6, 2\], expected \[B, ...\] of at least one env"),
        (np.zeros(()), None, r"^observation has the shape \[\], expected \[B, ...\]"),
    ],
)
def test_what_a_life_cannot_begin_with(observation, meta_params, message):
    with pytest.raises(ValueError, match=message):
        learner_and_state()[0].init(KEY, observation, meta_params)


def test_a_hand_made_rule_takes_no_eta():
    with pytest.raises(
        ValueError, match=r"^meta_params\['a'\] has the shape \[2\], expected nothing: an η of this rule"
    ):
        learner_and_state("impala")[0].init(KEY, OBSERVATIONS, {"a": np.zeros(2)})


def acting(**changed):
    made, state = learner_and_state()
    given = dict(state=state, key=KEY, observation=OBSERVATIONS, is_first=np.ones(B, bool))
    return (given | dict(core_state=made.setup.agent.initial_state(B)) | changed).values()


def other_state():
    return learner_and_state("impala")[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            dict(observation=OBSERVATIONS[0]),
            r"^state.agent.params\[.* for observations \[6, 2\], B first",
        ),
        (dict(observation=OBSERVATIONS[:0]), r"^observation has the shape \[0, 6, 2\], expected \[B, ...\] of at"),
        (dict(observation=jnp.zeros((B, 5, 2))), r"^state.agent.params\[.* for observations \[3, 5, 2\], B first"),
        (dict(is_first=np.ones(2, bool)), r"^is_first has the shape \[2\], expected \[3\]"),
        (dict(is_first=True), r"^is_first has the shape \[\], expected \[3\]"),
        (dict(is_first=np.ones(B)), "^is_first has the dtype float32, expected bool"),
        (dict(core_state=()), "^core_state.* has the shape nothing, expected .*what `act` returned before"),
        (dict(core_state=np.zeros((B, 5))), "^core_state.* has the shape nothing, expected"),
        (dict(state=other_state()), f"^state.* {NO_STATE}"),
    ],
)
def test_what_an_agent_cannot_act_from(changed, message):
    for call in in_and_outside_of_jit(learner_and_state()[0].act, *acting(**changed)):
        with pytest.raises(ValueError, match=message):
            call()


def test_an_observation_without_an_axis_of_environments_is_named():
    with pytest.raises(ValueError, match=r"^observation has the shape \[12\], expected \[B, ...\]: the first axis"):
        learner_and_state()[0].act(*acting(observation=jnp.zeros(12)))


def test_a_core_state_of_another_number_of_environments():
    made, state = learner_and_state()
    other = made.setup.agent.initial_state(B + 1)
    for call in (
        *in_and_outside_of_jit(made.act, *acting(core_state=other)),
        *in_and_outside_of_jit(made.update, state, experience(core=other)),
    ):
        with pytest.raises(ValueError, match=r"^core_state.* has the shape \[4, 5\], expected \[3, 5\]: what `act`"):
            call()


@pytest.mark.parametrize("name", ["update", "targets", "derivatives", "rule_inputs"])
def test_what_cannot_be_learned_from(name):
    made, state = learner_and_state()
    fn = getattr(made, name)
    for trajectory, message in (
        (experience(action=jnp.zeros((T, B))), "^action has the dtype float32, expected whole numbers"),
        (experience(observation=jnp.zeros((T + 1, B, 5, 2))), r"^state.agent.params.* for observations \[3, 5, 2\]"),
        (experience(observation=jnp.zeros((T + 1, 6, 2))), r"^observation has the shape \[5, 6, 2\], expected \[5, 3,"),
        (experience(is_first=jnp.zeros((T, B), bool)), r"^is_first has the shape \[4, 3\], expected \[5, 3\]"),
        (experience(behaviour_logits=jnp.zeros((T, B, 3))), r"^behaviour_logits has the shape \[4, 3, 3\], expected"),
    ):
        for call in in_and_outside_of_jit(fn, state, trajectory):
            with pytest.raises(ValueError, match=message):
                call()
    with pytest.raises(ValueError, match=f"^state.* {NO_STATE}"):
        fn(other_state(), experience())
    for bad in (None, {"reward": 1}):
        with pytest.raises(TypeError, match="^trajectory is .*, expected a Trajectory, as `make_trajectory` makes it$"):
            fn(state, bad)
        with pytest.raises(TypeError, match="^state is .*, expected what `init`, `update` or `learn` of this learner"):
            fn(bad, experience())


def test_a_state_whose_eta_is_of_another_rule():
    made, state = learner_and_state()
    with pytest.raises(ValueError, match=rf"^state.meta_params\[.* {NO_STATE}"):
        made.update(state._replace(meta_params={}), experience())


@pytest.mark.parametrize("value", [None, {"a": np.zeros(2)}, "x"])
def test_what_is_no_array_is_named(value):
    made, _ = learner_and_state()
    for name, call in {
        "observation": lambda: made.init(KEY, value),
        "observation ": lambda: made.act(*acting(observation=value)),
        "is_first": lambda: made.act(*acting(is_first=value)),
    }.items():
        with pytest.raises(TypeError, match=f"^{name.strip()} is .*, expected an array$"):
            call()


@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_an_eta_that_is_not_finite_is_refused_outside_of_jit_alone(fill):
    made, state = learner_and_state()
    bad = state._replace(meta_params=bad_eta(fill))
    message = r"^state.meta_params\[.*\] has entries that are not finite"
    for call in (
        lambda: made.act(*acting(state=bad)),
        lambda: made.update(bad, experience()),
        lambda: made.targets(bad, experience()),
        lambda: jax.eval_shape(lambda x: made.update(bad, x), experience()),  # η is a constant there
    ):
        with pytest.raises(ValueError, match=message):
            call()
    jax.eval_shape(made.update, bad, experience())
    jax.eval_shape(lambda x: made.update(state, x), experience())


def test_what_is_right_passes_and_a_compiled_program_is_that_without_checks(monkeypatch):
    made, state = learner_and_state()
    whole = [str(jax.make_jaxpr(made.act)(*acting())), str(jax.make_jaxpr(made.targets)(state, experience()))]
    for name in ("check_is_first", "check_core_state", "check_experience"):
        monkeypatch.setattr(f"frodo.regimes.learner.{name}", lambda *_: None)
    assert [
        str(jax.make_jaxpr(made.act)(*acting())),
        str(jax.make_jaxpr(made.targets)(state, experience())),
    ] == whole
