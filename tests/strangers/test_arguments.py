"""An argument that cannot be is refused by one line that names it and its value, before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
from agents.environments.dm_env import DmEnvBatch
from frodo.regimes.evolution import Evolution
from frodo.regimes.search_settings import EvolutionConfig
from toy_envs.base import DmEnv
from toy_envs.catch import Catch
from toy_envs.trials import Trials

KEY = jax.random.key(0)
TINY = dict(batch_size=2, unroll=3, network=frodo.NetworkConfig("mlp", (4,)))
ONE = r", expected a number of at least 6, the environment steps of one iteration$"
WHOLE = "expected a whole number of at least 1$"
NAME = "expected a Rule, or a name such as 'frodo'$"


def refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        call()
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("num_steps", [0, -5, 0.5, 5, "9", None, True, float("nan"), float("inf"), [6]])
def test_numbers_of_steps_that_are_none_or_less_than_an_iteration(num_steps):
    message = "^num_steps is " + repr(num_steps).replace("[", r"\[") + ONE
    for environment in (Catch(4, 3), DmEnvBatch([DmEnv(Catch(4, 3), 0), DmEnv(Catch(4, 3), 1)])):
        refused(lambda x=environment: frodo.discover_online(x, "impala", num_steps=num_steps, key=KEY, **TINY), message)


def test_a_lifetime_goes_on_for_whole_iterations_only():
    result = frodo.discover_online(Catch(4, 3), "impala", num_steps=13.5, key=KEY, **TINY)
    np.testing.assert_array_equal(result.metrics["env_steps"], [6, 12])
    for six in (np.float32(6), jnp.array(6), np.array(6.0)):
        np.testing.assert_array_equal(result.go_on(six).metrics["env_steps"], [6, 12, 18])
    for path, expected in ((None, "None"), (3, "3")):
        refused(lambda path=path: result.save(path), f"^path is {expected}, expected that of the file to write$")
        refused(lambda path=path: frodo.load(path), f"^path is {expected}, expected that of a file that ")
    for num_steps in (0, 5, float("nan"), "9"):
        refused(lambda num_steps=num_steps: result.go_on(num_steps), f"^num_steps is {num_steps!r}{ONE}")


def test_a_key_of_the_old_style_is_the_same_key():
    learner = frodo.make_learner("impala", 3, network=TINY["network"])
    one, other = (learner.init(key, jnp.zeros((2, 4, 3))).params for key in (KEY, jax.random.PRNGKey(0)))
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (None, "None"),
        (0, "0"),
        (np.zeros(3, np.uint32), r"an array uint32\[3\]"),
        (jax.random.split(KEY), r"an array key<fry>\[2\]"),
        (np.zeros(3), r"an array float64\[3\]"),
    ],
)
def test_keys_that_are_none(key, found):
    message = f"^key is {found}, expected one random key, such as jax.random.key\\(0\\)$"
    learner = frodo.make_learner("impala", 3, network=TINY["network"])
    for call in (
        lambda: frodo.discover_online(Catch(4, 3), "impala", num_steps=6, key=key, **TINY),
        lambda: frodo.discover({"a": Catch(4, 3)}, "frodo", num_meta_steps=1, key=key),
        lambda: learner.init(key, jnp.zeros((2, 4, 3))),
        lambda: frodo.returns_by_trial(learner, {}, Catch(4, 3), {}, key, num_trials=1),
    ):
        refused(call, message)


def online(**arguments):
    given = dict(environment=Catch(4, 3), rule="impala", num_steps=6, key=KEY)
    return lambda: frodo.discover_online(**given | arguments | TINY)


def of_experience(**arguments):
    given = dict(observation=np.zeros((4, 2, 3)), action=np.zeros((3, 2), int), reward=np.zeros((3, 2)))
    given |= dict(discount=np.ones((3, 2)), behaviour_logits=np.zeros((3, 2, 3)))
    return lambda: frodo.make_trajectory(**given | arguments)


def broken_rule():
    rule = frodo.make_rule("frodo", lstm=3)
    eta = jax.tree.map(lambda x: x * np.nan, rule.update_rule.random_meta_params(KEY, 3))
    return frodo.Rule("mine", rule.config, eta)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (online(environment=None), "^environment is None, expected "),
        (online(rule=None), f"^rule is None, {NAME}"),
        (online(rule=7), f"^rule is 7, {NAME}"),
        (online(num_devices="2"), "^num_devices is '2', expected a whole number of at least 0$"),
        (online(num_devices=-1), "^num_devices is -1, expected a whole number of at least 0$"),
        (online(teacher=5), "^teacher is 5, expected the `teacher` of a result$"),
        (online(rule=broken_rule()), r"^meta_params\[.*\] has entries that are not finite, expected numbers$"),
        (online(rule=frodo.Rule("mine", broken_rule().config, {"a": np.zeros(3)})), "^meta_params.* has the shape "),
        (lambda: frodo.make_rule(None), "^rule is None, expected one of frodo, "),
        (lambda: frodo.fit_rule(None), "^target is None, expected one of vtrace, "),
        (lambda: frodo.load_rule(None), "^name is None, expected a rule's name, or the path of its file$"),
        (lambda: frodo.make_learner(None, 3), f"^rule is None, {NAME}"),
        (lambda: frodo.make_learner("impala", 3, teacher="x"), "^teacher is 'x', expected the `teacher` of a result$"),
        (lambda: frodo.discover(None, num_meta_steps=1, key=KEY), "^environments is None, expected a mapping"),
        (
            lambda: frodo.discover(Catch(), num_meta_steps=1, key=KEY),
            r"^environments is Catch\(.*\), expected a mapping",
        ),
        (lambda: frodo.discover([Catch()], None, num_meta_steps=1, key=KEY), f"^rule is None, {NAME}"),
        (
            lambda: frodo.discover([Catch()], num_meta_steps=1, key=KEY, start=3),
            "^start is 3, expected what `discover`",
        ),
        (lambda: frodo.held_out_tasks(None, 3), "^environment is None, expected a frodo.Environment, "),
        (lambda: Evolution([], EvolutionConfig(), 0), "^tasks are empty, expected at least one environment"),
        (of_experience(action=np.zeros((0, 2), int)), r"^action has the shape \[0, 2\], expected at least one step"),
        (of_experience(action=np.zeros((3, 0), int)), r"^action has the shape \[3, 0\], expected at least one step"),
        *(
            (of_experience(**{x: None}), f"^{x} is None, expected an array$")
            for x in ("observation", "reward", "discount")
        ),
    ],
)
def test_arguments_that_cannot_be(call, message):
    refused(call, message)


def test_steps_that_the_host_counts_may_be_more_than_32_bits_hold():
    made = frodo.make_learner("impala", 3, annealing=3_000_000_000, **TINY)
    assert made.config.num_annealed_updates(False) == 500_000_000
    state = jax.eval_shape(made.init, KEY, jnp.zeros((2, 4, 3)))
    jax.eval_shape(made.update, state, of_experience(observation=np.zeros((4, 2, 4, 3)))())
    distillation = frodo.DistillationConfig(steps=3_000_000_000)
    made.config.replace(distillation=distillation).validate()
    make = lambda **how: frodo.make_learner("impala", 3, **TINY | how)
    refused(lambda: make(annealing=10**12, unroll=1), "^annealing is 1000000000000, expected those of fewer than 2147")
    refused(lambda: make(annealing=2**63), f"^annealing is {2**63}, expected a whole number below {2**63}$")
    refused(lambda: make(exploration=3_000_000_000), "^exploration is 3000000000, expected a whole number below 2147")


@pytest.mark.parametrize("size", [0, 2.5, "8", None])
def test_batches_of_no_size(size):
    message = f"^batch_size is {size!r}, {WHOLE}"
    given = dict(key=KEY, batch_size=size)
    for environment in (Catch(4, 3), "bsuite/catch/0"):
        refused(lambda x=environment: frodo.discover_online(x, "impala", num_steps=9, **given), message)
        refused(lambda x=environment: frodo.discover({"a": x}, num_meta_steps=1, **given), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "^name is None, expected that of an environment, such as 'toy/catch'$"),
        (("toy/catch", "a"), f"^num_envs is 'a', {WHOLE}"),
        (("bsuite/catch/0", 2.5), f"^num_envs is 2.5, {WHOLE}"),
        (("bsuite/catch/0", 2, -1), "^seed is -1, expected a whole number of at least 0$"),
        (("bsuite/catch/0", 2, "a"), "^seed is 'a', expected a whole number of at least 0$"),
    ],
)
def test_environments_by_what_is_no_name_number_or_seed(arguments, message):
    refused(lambda: frodo.make_environment(*arguments), message)
    if arguments[0]:
        refused(lambda: frodo.as_environment(*arguments), message)


@pytest.mark.parametrize("number", [0, -1, 2.5, "3", None, True, float("nan")])
def test_numbers_that_are_no_counts(number):
    learner = frodo.make_learner("impala", 3, network=TINY["network"])
    tasks = frodo.held_out_tasks(Catch(4, 3), 2)
    play = lambda **how: frodo.returns_by_trial(learner, {}, Catch(4, 3), tasks, KEY, **dict(num_trials=2) | how)
    for name, call in {
        "num_meta_steps": lambda: frodo.discover([Catch(4, 3)], num_meta_steps=number, key=KEY),
        "num_tasks": lambda: frodo.held_out_tasks(Catch(4, 3), number),
        "num_trials": lambda: play(num_trials=number),
        "num_episodes": lambda: play(num_episodes=number),
    }.items():
        refused(call, f"^{name} is {number!r}, {WHOLE}")
    refused(
        lambda: frodo.make_learner("impala", number), f"^num_actions is {number!r}, expected a positive whole number"
    )


def test_tasks_and_parameters_of_something_else():
    environment = Catch(4, 3)
    learner = frodo.make_learner("impala", 3, network=TINY["network"])
    state = learner.init(KEY, jnp.zeros((2, *Trials(environment, 2).observation_shape)))
    tasks = frodo.held_out_tasks(environment, 2)
    play = lambda *of: frodo.returns_by_trial(learner, *of, KEY, num_trials=2)
    assert play(state.params, environment, tasks).shape == (2, 2)
    plain = learner.init(KEY, jnp.zeros((2, 4, 3)))  # not in trials
    message = r"^params\[.* has the shape \[12, 4\], expected \[23, 4\]: a θ of this agent for observations \[2, 23\], "
    refused(lambda: play(plain.params, environment, tasks), message)
    refused(lambda: play(state.params, environment, None), "^tasks.* has the shape nothing, expected ")
    refused(lambda: play(state.params, environment, jnp.zeros(2)), "^tasks.* has the shape nothing, expected ")
    refused(lambda: play(state.params, None, tasks), "^environment is None, expected a frodo.Environment, ")
