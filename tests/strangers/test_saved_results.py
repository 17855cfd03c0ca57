"""Results that are saved and loaded: the same agent acts and goes on, and other files are refused in one short line."""

import copy
import functools
import pickle
import zipfile

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
from agents.acting.replay import ReplayConfig
from agents.environments.adapt import as_environment
from tests.trees import check_close, check_equal
from toy_envs.catch import Catch
from toy_envs.random_walk import RandomWalk

SMALL = dict(batch_size=2, unroll=3, network=frodo.NetworkConfig("mlp", (8,)), optimizer=frodo.adam(1e-2))
META = dict(validation_unroll=3, num_updates=2, is_validation_kept=True)
MEMORY = frodo.NetworkConfig("mlp", (8,), core=4)


def envs(num=2, name="CartPole-v1"):
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.make_vec(name, num, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})


@functools.cache
def life(kind):
    """A result of each kind, made once."""
    of = {
        "frodo": lambda: (Catch(4, 3), frodo.make_rule("frodo", lstm=3), META),
        "memory": lambda: (Catch(4, 3), "impala", dict(network=MEMORY, exploration=1000)),
        "dqn": lambda: (Catch(4, 3), "dqn", dict(replay=ReplayConfig(8, 4, 0.25), key=jax.random.key(1, impl="rbg"))),
        "host": lambda: (envs(), "impala", {}),
        "muesli": lambda: (
            Catch(4, 3),
            frodo.make_rule("muesli", model_steps=1, max_value=2),
            dict(network=frodo.NetworkConfig("mlp", (8,), action_model=4), replay=ReplayConfig(8, 4, 0.25)),
        ),
        "taught": lambda: (
            Catch(4, 3),
            "impala",
            dict(teacher=life("memory").teacher, distillation=frodo.DistillationConfig(steps=60)),
        ),
    }
    environment, rule, settings = of[kind]()
    return frodo.discover_online(environment, rule, **dict(num_steps=60, key=jax.random.key(0)) | SMALL | settings)


@pytest.fixture
def result():
    return life("frodo")


@pytest.fixture
def path(tmp_path, result):
    result.save(tmp_path / "result.npz")
    return tmp_path / "result.npz"


@pytest.mark.parametrize("kind", ["memory", "dqn", "host", "muesli"])
def test_a_file_for_acting_is_small_acts_the_same_and_does_not_go_on(tmp_path, kind):
    whole = life(kind)
    whole.save(tmp_path / "whole")
    whole.save(tmp_path / "small", is_for_acting=True)
    loaded = frodo.load(tmp_path / "small")
    loaded.save(tmp_path / "again")  # which has no more
    sizes = [(tmp_path / name).stat().st_size for name in ("whole", "small", "again")]
    assert sizes[2] == sizes[1] < 0.7 * sizes[0]
    facts = whole.life.facts
    observation = np.random.default_rng(0).normal(size=(3, *facts.observation_shape)).astype(facts.observation_dtype)
    for result in (loaded, frodo.load(tmp_path / "again")):
        check_equal(result.learner.setup.acting_params(result.state.agent), loaded.params)
        for key in (None, jax.random.key(1)):
            check_equal(result.act(observation, key), whole.act(observation, key))
        with pytest.raises(ValueError, match="the file is for acting alone, expected one that was saved without"):
            result.go_on(60, Catch(4, 3))
    assert loaded.rule.origin == whole.rule.origin
    np.testing.assert_array_equal(loaded.metrics["return"], whole.metrics["return"])


def check_same(one, other):
    check_equal(one.state, other.state)
    assert list(one.metrics) == list(other.metrics)
    for name, x in one.metrics.items():
        np.testing.assert_array_equal(x, other.metrics[name], err_msg=name)


@pytest.mark.parametrize("kind", [pytest.param("frodo", marks=pytest.mark.long), "memory", "dqn"])
def test_going_on_after_loading_is_never_having_stopped(tmp_path, kind):
    first = life(kind)
    first.save(tmp_path / "result")
    loaded = frodo.load(tmp_path / "result")
    check_same(loaded, first)
    assert loaded.rule.config == first.rule.config
    loaded.save(tmp_path / "again")
    later, expected = frodo.load(str(tmp_path / "again")).go_on(60, Catch(4, 3)), first.go_on(60)
    check_same(later, expected)
    assert len(later.metrics["return"]) > len(first.metrics["return"])
    check_same(later.go_on(30), expected.go_on(30))


def test_on_the_host_a_loaded_result_goes_on_as_one_that_was_not_saved(tmp_path):
    first = life("host")
    first.save(tmp_path / "result.npz")
    loaded = frodo.load(tmp_path / "result.npz")
    check_same(loaded, first)
    check_equal(loaded.act(np.ones((3, 4)))[0], first.act(np.ones((3, 4)))[0])
    later = loaded.go_on(60, envs())
    assert later.metrics["env_steps"][-1] == 2 * first.metrics["env_steps"][-1]
    check_equal(loaded.state, first.state)  # which going on leaves as it is
    with pytest.raises(ValueError, match=r"environments are 3 on the host .*, expected 2 on the host .* float32\[4\]"):
        loaded.go_on(60, envs(3))
    with pytest.raises(ValueError, match=r"are 2 on the host with 3 actions .*\[6\], expected .* with 2 actions"):
        loaded.go_on(60, envs(name="Acrobot-v1"))


def test_a_loaded_result_goes_on_in_a_name_on_the_host_with_all_its_environments(tmp_path, monkeypatch):
    seeds = []

    def made(name, num_envs=1, seed=0):
        assert name == "envpool/CartPole-v1"
        seeds.append(seed)
        return as_environment(envs(num_envs))

    monkeypatch.setattr("agents.environments.adapt.make_environment", made)
    life("host").save(tmp_path / "first.npz")
    later = frodo.load(tmp_path / "first.npz").go_on(60, "envpool/CartPole-v1")
    assert len(later.metrics["return"]) == 2 * len(life("host").metrics["return"])
    later.save(tmp_path / "later.npz")
    frodo.load(tmp_path / "later.npz").go_on(60, "envpool/CartPole-v1")
    assert seeds[0] != seeds[1] and min(seeds) >= 0


@pytest.mark.parametrize(("kind", "name"), [("memory", "policy"), ("dqn", "q")])
def test_a_loaded_agent_acts_as_the_one_that_was_saved(tmp_path, kind, name):
    life(kind).save(tmp_path / "result.npz")
    loaded = frodo.load(tmp_path / "result.npz")
    observation = jax.random.uniform(jax.random.key(3), (64, 4, 3))
    agent, setup = life(kind).state.agent, life(kind).learner.setup
    empty = setup.agent.initial_state(64)
    predictions, memory = setup.agent.step(agent.params, observation, jnp.ones(64, bool), empty)
    greedy, core_state = loaded.act(observation)
    np.testing.assert_array_equal(greedy, jnp.argmax(predictions[name], axis=-1))
    assert (greedy.dtype, greedy.shape) == (jnp.int32, (64,))
    check_close(core_state, memory)
    drawn, _ = loaded.act(observation, jax.random.key(4))
    np.testing.assert_array_equal(drawn, jax.random.categorical(jax.random.key(4), setup.rule.policy(predictions)))
    assert np.any(np.asarray(drawn) != np.asarray(greedy))


def test_an_agent_with_a_memory_acts_by_what_it_has_seen(tmp_path):
    life("memory").save(tmp_path / "result.npz")
    loaded = frodo.load(tmp_path / "result.npz")
    one, two = jax.random.uniform(jax.random.key(3), (2, 5, 4, 3))
    _, memory = loaded.act(one)
    _, after_both = loaded.act(two, core_state=memory)
    _, fresh = loaded.act(two)
    _, emptied = loaded.act(two, core_state=memory, is_first=np.ones(5, bool))
    check_equal(fresh, emptied)
    assert not np.allclose(fresh.hidden, after_both.hidden)
    with pytest.raises(ValueError, match=r"core_state.hidden has the shape \[5, 4\], expected \[4, 4\]"):
        loaded.act(two[:4], core_state=memory)


def test_what_does_not_fit_is_named(path, result):
    loaded = frodo.load(path)
    for agent in (loaded, result):
        with pytest.raises(ValueError, match=r"observation has the shape \[4, 3\], expected \[\*, 4, 3\]"):
            agent.act(np.zeros((4, 3)))
        with pytest.raises(ValueError, match=r"observation has the shape \[0, 4, 3\], expected .* at least one env"):
            agent.act(np.zeros((0, 4, 3)))
        with pytest.raises(ValueError, match=r"is_first has the shape \[3\], expected \[2\]"):
            agent.act(np.zeros((2, 4, 3)), is_first=np.zeros(3, bool))
    with pytest.raises(ValueError, match="environment is NoneType, expected that to go on in: a file holds none"):
        loaded.go_on(60)
    with pytest.raises(ValueError, match="environment is Catch, expected None"):
        result.go_on(60, Catch(4, 3))
    for other in (Catch(5, 3), RandomWalk()):
        with pytest.raises(ValueError, match=r"environments are 2 in JAX .*, expected 2 in JAX with 3 actions and"):
            loaded.go_on(60, other)
    with pytest.raises(FileNotFoundError):
        frodo.load(path.with_name("none.npz"))


def test_floats_do_not_stand_for_the_bytes_of_pictures(result):
    """The network scales bytes alone: the same pictures as floats would look otherwise to it."""
    seen = result.life._replace(facts=result.life.facts._replace(observation_dtype="uint8"))
    agent = frodo.OnlineResult(result.learner, result.state, seen, result.go_on)
    assert agent.act(np.zeros((2, 4, 3), np.uint8))[0].shape == (2,)
    with pytest.raises(ValueError, match="observation is float32, expected uint8"):
        agent.act(np.zeros((2, 4, 3)))
    assert result.act(np.zeros((2, 4, 3), np.uint8))[0].shape == (2,)


def test_a_result_does_not_pickle_and_says_what_to_do(result):
    for make in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"result\.save\(path\) keeps it, and frodo\.load\(path\) reads it"):
            make(result)


def test_a_taught_agent_is_loaded_but_does_not_go_on_without_its_teacher(tmp_path):
    life("taught").save(tmp_path / "result.npz")
    loaded = frodo.load(tmp_path / "result.npz")
    assert loaded.act(np.zeros((1, 4, 3)))[0].shape == (1,)
    with pytest.raises(ValueError, match="distillation.steps is 60, expected 0: a file holds no teacher"):
        loaded.go_on(60, Catch(4, 3))


def test_files_of_rules_and_of_results_are_told_apart(path, result):
    result.rule.save(path.with_name("rule.npz"))
    with pytest.raises(ValueError, match="rule.npz is not the file of a result: it is that of a rule, which load_rule"):
        frodo.load(path.with_name("rule.npz"))
    with pytest.raises(ValueError, match="result.npz is the file of a result: frodo.load reads it, and its `rule` is"):
        frodo.load_rule(path)
    check_equal(frodo.load_rule(path.with_name("rule.npz")).meta_params, frodo.load(path).rule.meta_params)


def test_a_damaged_file_is_refused_in_one_short_line(path):
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
        assert all(member.compress_type == zipfile.ZIP_STORED for member in file.infolist())
    rng, names = np.random.default_rng(0), list(members)

    def written(members):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in members.items():
                file.writestr(name, data)

    def refused():
        with pytest.raises(ValueError) as error:
            frodo.load(path)
        message = str(error.value)
        assert "\n" not in message and len(message.replace(str(path), "")) < 300 and type(error.value) is ValueError

    for at in rng.integers(len(whole), size=10):
        path.write_bytes(whole[:at])
        refused()
    for name in ("result.json.npy", "learner.meta_params['target_network/lstm']['w'].npy", "metrics.episodes.npy"):
        written({key: x for key, x in members.items() if key != name})
        refused()
    first = next(name for name in names if name.startswith("actor"))
    written(members | {first: members[first][:-4]})
    refused()
    zeros = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (10000000,), }".ljust(
        118
    )
    written(members | {"actor.zeros.npy": zeros + bytes(10**7)})
    with pytest.raises(ValueError, match=r"'actor.zeros' has 10000128 bytes, expected at most"):
        frodo.load(path)
    for name in names[:5]:
        written(members | {name: members[names[-1]]})
        refused()
    written(members | {"extra.npy": members[first]})
    refused()


def test_other_settings_than_those_that_are_there_are_refused_by_the_first_leaf(path):
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    text = members["result.json.npy"]
    members["result.json.npy"] = text.replace(b'"hidden": [8]', b'"hidden": [9]')
    assert members["result.json.npy"] != text
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    with pytest.raises(ValueError, match=r"learner.* is float32\[8\], expected float32\[9\]"):
        frodo.load(path)
