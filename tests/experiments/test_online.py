"""Online runs over devices and processes: what they learn is what one device learns, and they go on on any number."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from frodo.runs.checkpoints import Checkpoints
from tests.experiments.runs.small_runs import rows

ITERATION = 8 * 2 * 4  # environment steps
TINY = (
    *("--env=toy/catch/4x3", "--rule=frodo", "--config.batch_size=8", "--config.unroll=4", "--config.num_updates=1"),
    *("--config.validation_unroll=4", "--config.rule.lstm=3", "--config.network.hidden=4"),
)
SAVING_OFTEN = (
    "import runpy, frodo.runs.run as run; run.SAVE_SECONDS = 0.5; "
    "runpy.run_module('experiments.online', run_name='__main__', alter_sys=True)"
)


def coordinator():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"--coordinator=127.0.0.1:{free.getsockname()[1]}"


def arguments(folder, iterations):
    return [*TINY, f"--steps={iterations * ITERATION}", f"--out={folder}"]


def run(folder, iterations, num_devices, *others, program=("-m", "experiments.online")):
    command = [sys.executable, *program, *arguments(folder, iterations), *others]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def ended(*processes):
    for process in processes:
        _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors


def numbers(folder):
    return [[float(x) for x in row.values()] for row in rows(folder)]


def state(folder, iterations=6):
    checkpoints = Checkpoints(folder / "checkpoints", is_reader=True)
    return {name: leaf.tobytes() for name, leaf in checkpoints.read(iterations * ITERATION)[0].items()}


@pytest.mark.long
def test_environments_on_the_host_are_shared_out_and_it_goes_on_with_fewer_processes_and_more(tmp_path):
    own = ["--env=bsuite/catch/0", "--config.network.core=4", "--config.num_actors=2", "--config.exploration=0"]

    def go(iterations, num_devices, *others):
        return run(tmp_path / "run", iterations, num_devices, *own, *others)

    def go_together(iterations, *others):
        address = coordinator()
        ended(*(go(iterations, 2, address, "--num_processes=2", f"--process_id={i}", *others) for i in range(2)))

    go_together(4)
    ended(go(6, 2, "--num_devices=2", "--resume"))
    ended(go(8, 1, "--resume"))
    go_together(10, "--resume")
    steps = [int(row["env_steps"]) for row in rows(tmp_path / "run")]
    assert steps == [ITERATION * number for number in range(1, 11)]
    assert sum(int(row["episodes"]) for row in rows(tmp_path / "run")) > 0


def two(folder, *others):
    address = coordinator()
    return [run(folder, 10**6, 1, address, "--num_processes=2", f"--process_id={i}", *others) for i in range(2)]


def until_it_runs(folder, seconds=120):
    end = time.monotonic() + seconds
    while not (folder / "metrics.csv").exists() and time.monotonic() < end:
        time.sleep(0.2)


def end_of(processes, timeout):
    """Return the lines that processes say; they are ended if they do not end themselves."""
    try:
        return [process.communicate(timeout=timeout)[1].splitlines() for process in processes]
    finally:
        for process in processes:
            process.kill()


GONE = "error: another process of the run is gone; start all of them with --resume"


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1], ids=["the coordinator", "another"])
def test_where_one_process_is_killed_the_other_ends_at_once_and_says_so(tmp_path, killed):
    both = two(tmp_path)
    until_it_runs(tmp_path)
    both[killed].kill()
    said = end_of(both, 20)[1 - killed]
    if killed != 0 or both[1].returncode != -signal.SIGABRT:  # after process 0, JAX may be faster
        last = said if killed == 0 else said[-1:]  # after process 0, lines of JAX may follow
        assert both[1 - killed].returncode == 1 and any(line.startswith(GONE) for line in last)


@pytest.mark.long
@pytest.mark.parametrize("stopped", [0, 1], ids=["the coordinator", "another"])
def test_where_one_process_is_stopped_the_other_ends_after_the_timeout(tmp_path, stopped):
    """It still has its connections, as behind a network that is silent, and says nothing."""
    both = two(tmp_path, "--timeout=10")
    until_it_runs(tmp_path)
    both[stopped].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        *_, last = both[1 - stopped].communicate(timeout=90)[1].splitlines()
        assert both[1 - stopped].returncode == 1 and time.monotonic() - began < 20
        assert last.startswith(GONE) and last.endswith("(it has said nothing for 10 s)")
    finally:
        for process in both:
            process.kill()


@pytest.mark.long
def test_two_processes_that_were_stopped_both_go_on(tmp_path):
    both = two(tmp_path, "--timeout=4")
    until_it_runs(tmp_path)
    for what, seconds in ((signal.SIGSTOP, 6), (signal.SIGCONT, 8)):
        for process in both:
            process.send_signal(what)
        time.sleep(seconds)
    assert [process.poll() for process in both] == [None, None]
    for process in both:
        process.kill()
        process.communicate()


LOSING_ITS_DEVICE = """
import pathlib, jax, frodo.devices as devices
agree, checkpoints = devices.agree, pathlib.Path({folder!r}, "checkpoints")
def lose(*votes):
    if list(checkpoints.glob("*.npz")):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: it fell off the bus")
    return agree(*votes)
devices.agree = lose
"""


@pytest.mark.long
def test_where_a_device_of_one_process_is_lost_the_other_ends_too_and_one_alone_can_go_on(tmp_path):
    address = coordinator()
    codes = [SAVING_OFTEN, LOSING_ITS_DEVICE.format(folder=str(tmp_path)) + SAVING_OFTEN]
    both = [
        run(tmp_path, 3000, 1, address, "--num_processes=2", f"--process_id={i}", program=("-c", code))
        for i, code in enumerate(codes)
    ]
    other, loser = end_of(both, 240)
    assert (both[0].returncode, both[1].returncode) == (1, 1), other + loser
    assert loser[-1].startswith("error: JAX: UNAVAILABLE: it fell off the bus; a device or another process seems to be")
    assert other[-1].startswith(GONE)
    ended(run(tmp_path, 3000, 1, "--resume"))
    assert int(rows(tmp_path)[-1]["env_steps"]) == 3000 * ITERATION


@pytest.mark.long
def test_a_run_of_two_processes_that_were_killed_goes_on_to_the_same_end(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def both(folder, *others):
        own = [coordinator(), "--num_processes=2", *others]
        return [run(folder, 800, 1, *own, f"--process_id={i}", program=("-c", SAVING_OFTEN)) for i in range(2)]

    ended(*both(whole))
    saved = lambda: {path.name for path in (killed / "checkpoints").glob("*.npz")}
    for victim in range(2):
        before, end = saved(), time.monotonic() + 240
        processes = both(killed, *["--resume"] * victim)
        while not saved() - before and time.monotonic() < end:
            time.sleep(0.05)
        processes[victim].kill()
        said = end_of(processes, 100)[1 - victim]
        code = processes[1 - victim].returncode
        assert code == -signal.SIGABRT and not victim or code == 1 and any(line.startswith(GONE) for line in said)
    ended(*both(killed, "--resume"))
    assert rows(killed) == rows(whole) and state(killed, 800) == state(whole, 800)


@pytest.mark.long
@pytest.mark.parametrize(
    ("devices", "seeds", "precisions", "message"),
    [
        ((1, 1), (0, 1), (None, None), "--seeds is 0 in process 0 and 1 in process 1"),
        ((1, 3), (0, 0), (None, None), "number of devices is 1 in process 0 and 3 in process 1"),
        ((1, 1), (0, 0), (None, "float32"), "JAX_DEFAULT_MATMUL_PRECISION is None in process 0 and float32 in proc"),
    ],
)
def test_processes_that_were_started_in_different_ways_all_say_so(
    devices, seeds, precisions, message, tmp_path, monkeypatch
):
    address, both = coordinator(), []
    for i in range(2):
        with monkeypatch.context() as patch:
            if precisions[i]:
                patch.setenv("JAX_DEFAULT_MATMUL_PRECISION", precisions[i])
            own = address, "--num_processes=2", f"--process_id={i}", f"--seeds={seeds[i]}"
            both.append(run(tmp_path / "run", 10, devices[i], *own))
    for said, process in zip(end_of(both, 120), both, strict=True):
        assert process.returncode == 2 and not (tmp_path / "run").exists(), said
        assert said[-1].startswith(f"error: {message}")


@pytest.mark.long
def test_processes_of_two_versions_say_so(tmp_path):
    other = "import importlib.metadata as m; real = m.version; m.version = lambda x: real(x) + '.1' * (x == 'jax'); "
    address = coordinator()
    both = [
        run(tmp_path / "run", 10, 1, address, "--num_processes=2", f"--process_id={i}", program=("-c", code))
        for i, code in enumerate((SAVING_OFTEN, other + SAVING_OFTEN))
    ]
    for said, process in zip(end_of(both, 120), both, strict=True):
        assert process.returncode == 2 and not (tmp_path / "run").exists(), said
        assert said[-1].startswith(
            f"error: version of jax is {jax.__version__} in process 0 and {jax.__version__}.1 in"
        )


@pytest.mark.long
def test_where_one_process_has_an_error_of_its_own_the_other_ends_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")  # of a run that is there: only process 0 looks
    both = two(tmp_path / "run")
    first, second = end_of(both, 120)
    assert both[0].returncode == 2 and "--overwrite" in first[-1]
    assert both[1].returncode == 1 and second[-1].startswith(GONE)
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.long
def test_over_devices_and_processes_it_is_the_run_of_one_device_and_goes_on_over_another_number(start, tmp_path):
    alone, whole, parts, fewer, both = (tmp_path / name for name in ("alone", "whole", "parts", "fewer", "both"))
    done = start("experiments.online", *arguments(alone, 6))
    assert done.returncode == 0, done.stderr
    ended(run(whole, 6, 8, "--num_devices=8"))
    ended(run(parts, 4, 8, "--num_devices=8"))
    shutil.copytree(parts, fewer)
    ended(run(parts, 6, 8, "--num_devices=8", "--resume"))
    ended(run(fewer, 6, 4, "--num_devices=4", "--resume"))
    address = coordinator()
    ended(*(run(both, 6, 4, address, "--num_processes=2", f"--process_id={i}") for i in range(2)))
    assert state(parts) == state(whole) and numbers(parts) == numbers(whole)
    assert len(numbers(alone)) == 6
    for folder in (whole, fewer, both):
        np.testing.assert_allclose(numbers(folder), numbers(alone), rtol=1e-5, atol=1e-5)
