"""A lifetime that is split over devices is that of one device, and what cannot be split is said."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from agents.replay import ReplayConfig
from frodo.online import check_split, discover_online
from tests.frodo.split_lifetimes import TINY, config_of, lifetime
from tests.trees import leaves
from toy_envs.base import DmEnv
from toy_envs.catch import Catch

RULES = ("impala", "ppo", "frodo", "disco")


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """The folder with what eight devices came to."""
    folder = tmp_path_factory.mktemp("split")
    command = [sys.executable, "-m", "tests.frodo.split_lifetimes", folder, *RULES]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("rule", RULES)
def test_eight_devices_give_the_lifetime_of_one(rule, split):
    with np.load(split / f"{rule}.npz") as file:
        for x, y in zip(file.values(), leaves(lifetime(rule)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "num_devices", "message"),
    [
        ({}, 9, "num_devices is 9, expected at most the 8 there are, or 0 for no split"),
        ({}, -1, "num_devices is -1, expected at most the 8"),
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


def test_a_batch_on_the_host_is_not_split():
    with pytest.raises(ValueError, match="num_devices is 1, expected 0: a batch on the host is not split"):
        discover_online(
            [DmEnv(Catch(4, 3), 0)], "impala", num_steps=10, key=jax.random.key(0), num_devices=1, unroll=TINY["unroll"]
        )


def test_a_library_call_on_one_device_of_a_mesh_is_the_call_without(monkeypatch):
    found = [
        discover_online(
            Catch(4, 3), "impala", num_steps=100, key=jax.random.key(0), num_devices=num_devices, **TINY
        ).go_on(100)
        for num_devices in (0, 1)
    ]
    for x, y in zip(*(leaves((one.state, one.metrics)) for one in found), strict=True):
        np.testing.assert_array_equal(x, y)
