"""A lifetime that is split over devices is that of one device, and what cannot be split is said."""

import functools
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from agents.acting.replay import ReplayConfig
from frodo.regimes.lifetimes import check_split
from frodo.regimes.online import discover_online
from tests.frodo.split_lifetimes import ADAPTING, TINY, config_of, lifetime, lifetime_on_host
from tests.trees import leaves
from toy_envs.base import DmEnv
from toy_envs.catch import Catch

RULES = ("impala", "ppo", "frodo", "disco")


def run_on_eight(folder, *names):
    command = [sys.executable, "-m", "tests.frodo.split_lifetimes", folder, *names]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """The folder with what eight devices came to."""
    folder = tmp_path_factory.mktemp("split")
    run_on_eight(folder, "impala", "frodo_host")
    return folder


def check(folder, name):
    of_host = name.endswith("_host")
    of_one_device = lifetime_on_host(name.removesuffix("_host")) if of_host else lifetime(name)
    with np.load(folder / f"{name}.npz") as file:
        for x, y in zip(file.values(), leaves(of_one_device), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_eight_devices_give_the_lifetime_of_one(split):
    check(split, "impala")


@pytest.mark.long
def test_eight_devices_give_the_lifetime_of_one_with_programs_replay_memories_and_curricula_and_on_a_host(tmp_path):
    names = ("frodo", "ppo", "disco", "dqn", "disco_replaying", *ADAPTING, *(f"{rule}_host" for rule in RULES))
    run_on_eight(tmp_path, *names)
    for name in names:
        check(tmp_path, name)


def test_eight_devices_learn_from_a_host_what_one_learns(split):
    check(split, "frodo_host")


@pytest.mark.long
def test_two_processes_of_four_devices_learn_what_one_learns_fused_and_from_their_hosts(tmp_path):
    names = (*RULES, *(f"{rule}_host" for rule in RULES))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.frodo.split_lifetimes", tmp_path, *names]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "4"}
    both = [subprocess.Popen([*command, str(i), address], env=environment, stderr=subprocess.PIPE) for i in range(2)]
    for process in both:
        assert process.communicate(timeout=500) and process.returncode == 0
    for name in names:
        check(tmp_path, name)


@pytest.mark.parametrize(
    ("settings", "num_devices", "message"),
    [
        ({}, 9, "num_devices is 9, expected at most the 8 there are, or 0 for no split"),
        ({}, -1, "num_devices is -1, expected a whole number of at least 0"),
        ({"batch_size": 12}, 8, r"batch_size is 12, expected a multiple of num_devices \(8\)"),
        ({"replay": ReplayConfig(20, 8)}, 8, r"replay.capacity is 20, expected a multiple of num_devices \(8\)"),
        ({"replay": ReplayConfig(16, 12)}, 8, r"replay.batch_size is 12, expected a multiple of num_devices \(8\)"),
    ],
)
def test_what_cannot_be_split_is_named(settings, num_devices, message, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    with pytest.raises(ValueError, match=message):
        check_split(config_of("impala").replace(**settings), num_devices)


def test_of_several_processes_all_devices_are_used(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="num_devices is 4, expected all 8 of the 2 processes"):
        check_split(config_of("impala"), 4)


def test_a_library_call_on_the_host_is_split_or_named():
    on_host = functools.partial(discover_online, [DmEnv(Catch(4, 3), i) for i in range(8)], "impala", num_steps=128)
    found = on_host(key=jax.random.key(0), num_devices=1, **TINY).go_on(128)
    assert found.metrics["env_steps"][-1] == 256 and np.all(np.isfinite(leaves(found.params)[0]))
    with pytest.raises(ValueError, match="num_devices is 9999, expected at most"):
        on_host(key=jax.random.key(0), num_devices=9999, **TINY)
    with pytest.raises(ValueError, match="batch_size is 4, expected 8, as many as the environments"):
        on_host(key=jax.random.key(0), **TINY | {"batch_size": 4})


def test_a_library_call_on_one_device_of_a_mesh_is_the_call_without(monkeypatch):
    found = [
        discover_online(
            Catch(4, 3), "impala", num_steps=100, key=jax.random.key(0), num_devices=num_devices, **TINY
        ).go_on(100)
        for num_devices in (0, 1)
    ]
    for x, y in zip(*(leaves((one.state, one.metrics)) for one in found), strict=True):
        np.testing.assert_array_equal(x, y)
