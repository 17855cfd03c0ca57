"""Ctrl-C while the step of an environment hangs: the run ends in seconds, in a line, and what it did is kept."""

import os
import signal
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

import frodo
from agents.acting import on_host as host_acting
from agents.environments.dm_env import DmEnvBatch
from agents.environments.host import HostEnvironment, first_step
from agents.networks.agent import NetworkConfig
from frodo.runs.folders import has_checkpoint
from frodo.runs.signals import Signals
from frodo.settings.config import make_setup
from tests.test_structure import ROOT

pytestmark = pytest.mark.timeout(120)
BSUITE = ("--env=bsuite/catch/0", "--rule=impala", "--config.batch_size=2", "--config.unroll=5", "--steps=400")
SMALL = ("--config.network.hidden=8", "--seeds=0")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(host_acting, "PATIENCE", 0.5)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


class Hanging(HostEnvironment):
    """Pays nothing, and its step hangs after so many; then somebody presses Ctrl-C."""

    num_envs, observation_shape, observation_dtype, num_actions = 2, (3,), np.dtype(np.float32), 2

    def __init__(self, num_steps):
        self.num_left, self.is_closed, self.wait = num_steps, False, threading.Event()

    def reset(self):
        return first_step(np.zeros((2, 3), np.float32))

    def step(self, actions):
        self.num_left -= 1
        if self.num_left < 0:
            threading.Timer(0.2, interrupt).start()
            self.wait.wait()
        return self.reset()._replace(is_first=np.zeros(2, bool), valid=np.ones(2, bool))

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize("num_steps", [0, 23])
def test_the_library_raises_what_ctrl_c_raises(num_steps):
    environment = Hanging(num_steps)
    settings = dict(num_steps=1e6, unroll=5, network=NetworkConfig("mlp", (8,)))
    with pytest.raises(KeyboardInterrupt):
        frodo.discover_online(environment, "impala", key=jax.random.key(0), **settings)
    environment.wait.set()


def test_a_thread_that_has_ended_is_not_waited_for():
    class Ended(Hanging):
        def step(self, actions):
            raise OSError("the cable is out")

    config = frodo.AgentConfig(rule=frodo.RuleConfig("impala"), network=NetworkConfig("mlp", (8,)))
    setup = make_setup(config, 2, is_meta=False)
    key = jax.random.key(0)
    params = setup.agent.init(key, np.zeros((2, 3), np.float32))
    schedule = host_acting.Schedule(1, 5, 0)
    with host_acting.HostActor(Ended(0), setup.agent, setup.rule.policy, schedule, params, key) as actor:
        with pytest.raises(OSError, match="the cable is out"):
            actor.get()
        with pytest.raises(RuntimeError, match="the thread that steps the environment has ended"):
            actor.get()


def hang_after(monkeypatch, num_steps):
    """Let bsuite's environments hang after so many steps; returns how many were left when one was closed."""
    step, left, closed = DmEnvBatch.step, [num_steps], []

    def hanging_step(self, actions):
        left[0] -= 1
        if left[0] == -1:
            threading.Timer(0.2, interrupt).start()
        if left[0] < 0:
            threading.Event().wait()
        return step(self, actions)

    monkeypatch.setattr(DmEnvBatch, "step", hanging_step)
    monkeypatch.setattr(DmEnvBatch, "close", lambda self: closed.append(left[0]))
    return closed


@pytest.mark.slow
def test_a_program_saves_and_says_how_to_go_on(start, tmp_path, monkeypatch):
    closed = hang_after(monkeypatch, 33)
    run = start("experiments.online", *BSUITE, *SMALL, f"--out={tmp_path}/run")
    assert run.returncode == 128 + signal.SIGINT and "Traceback" not in run.stderr
    said = f"stopped at step 60: go on with the same settings and --resume --out={tmp_path}/run"
    assert run.stderr.splitlines()[-1] == said and (tmp_path / "run/checkpoints/60.npz").is_file()
    assert closed == [33]  # the one whose shapes were asked for, not the one that hangs


@pytest.mark.slow
def test_a_population_ends_with_one_line(start, tmp_path, monkeypatch):
    closed = hang_after(monkeypatch, 5)
    settings = ["--rule=frodo", "--config.batch_size=2", "--config.unroll=5", "--config.validation_unroll=5"]
    settings += ["--config.num_updates=2", "--config.budgets=1000", "--config.replay.capacity=0", "--steps=50"]
    run = start("experiments.discover", "--envs=bsuite/catch/0", *settings, *SMALL, f"--out={tmp_path}/run")
    assert run.returncode == 130 and "Traceback" not in run.stderr
    assert run.stderr.splitlines()[-1] == "error: interrupted: a step of the environment hangs"
    assert not closed and not has_checkpoint(tmp_path / "run")


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_closed_terminal_stops_a_run_too_but_not_one_under_nohup():
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, noticed in ((signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, 0)):
            signal.signal(signal.SIGHUP, handler)
            with Signals() as signals:
                os.kill(os.getpid(), signal.SIGHUP)
                assert signals.number == noticed
    finally:
        signal.signal(signal.SIGHUP, before)


IN_A_TERMINAL = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("experiments.online", run_name="__main__", alter_sys=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_run_whose_terminal_is_gone_writes_its_checkpoint(tmp_path):
    terminal, own = os.openpty()
    command = [sys.executable, "-c", IN_A_TERMINAL, "--env=toy/bandit/2", "--rule=impala", "--steps=1e9", *SMALL]
    streams = dict(stdin=own, stdout=own, stderr=own, start_new_session=True)
    with subprocess.Popen([*command, "--config.batch_size=2", f"--out={tmp_path}"], cwd=ROOT, **streams) as process:
        os.close(own)
        while b"left" not in os.read(terminal, 1000):
            assert process.poll() is None
        os.close(terminal)
        assert process.wait(60) == 128 + signal.SIGHUP
    assert has_checkpoint(tmp_path)
