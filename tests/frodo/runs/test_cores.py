"""Cores as devices, over which is shared out what runs side by side; and freed memory."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax, jax.numpy as jnp
from frodo.regimes import in_jax
from frodo.runs.cores import use_all_cores
from frodo import devices
use_all_cores()
for num in (1, 3, 4, 7):
    ys = jax.jit(devices.shared_out(jax.vmap(lambda x: x * 2), num))(jnp.arange(float(num)))
    assert (ys == 2 * jnp.arange(num)).all()
    print(num, len(ys.devices()))
begun = [jax.jit(devices.shared_out(lambda x: 0 * x, 2))(jnp.arange(2.0)) for _ in range(2)]
groups = [devices.scatter(x, 0, like)[0] for x, like in zip(in_jax._groups(jnp.arange(4.0), 2), begun)]
joined = in_jax.LivesInJax.gather(None, groups)
assert (joined == jnp.arange(4.0)).all()
print(len(groups[0].devices()), len(joined.devices()))
"""


def test_shares_are_as_many_as_divide_the_number_and_are_joined_without_waiting_for_each_other():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    output = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    assert output.stdout.splitlines() == ["1 1", "3 3", "4 2", "7 1", "2 1"]


ONE_THREAD = """
import os, jax, jax.numpy as jnp
from pathlib import Path
from frodo.runs import cores
cores.use_all_cores()
cores.use_one_thread()
jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((512, 512))))
threads = list(Path("/proc/self/task").iterdir())
print(len(jax.devices()), sum("XLAEigen" in (thread / "comm").read_text() for thread in threads))
print({len(os.sched_getaffinity(int(thread.name))) for thread in threads} == {len(os.sched_getaffinity(0))})
print(len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has what this needs")
def test_one_thread_runs_programs_and_all_cores_stay():
    of_jax = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in of_jax}
    output = subprocess.run([sys.executable, "-c", ONE_THREAD], env=environment, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    assert output.stdout.splitlines() == ["1 1", "True", str(len(os.sched_getaffinity(0)))]


ALL_CORES = """
import os, jax, jax.numpy as jnp
from pathlib import Path
from frodo.runs import cores
cores.use_all_cores()
jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((512, 512))))
names = [(thread / "comm").read_text() for thread in Path("/proc/self/task").iterdir()]
print(len(jax.devices()), sum("XLAEigen" in name for name in names))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has what this needs")
def test_there_are_more_threads_than_devices_which_may_block_one_each():
    """As many threads as devices, and PPO with four seeds side by side on two of them hung."""
    of_jax = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "PJRT_NPROC")
    environment = {name: value for name, value in os.environ.items() if name not in of_jax}
    output = subprocess.run([sys.executable, "-c", ALL_CORES], env=environment, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    num = len(os.sched_getaffinity(0))
    assert output.stdout.split() == [str(num), str(2 * num if num > 1 else 1)]


FAULTS = """
import resource, numpy as np
from frodo.runs import cores
cores.keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use = lambda: [np.ones(100_000, np.uint8) for _ in range(600)]
use()
before = faults()
for _ in range(20):
    use()
print(faults() - before)
"""


THREADS = """
import concurrent.futures, resource, threading, numpy as np
from frodo.runs import cores
cores.keep_freed_memory()
barrier, lock = threading.Barrier(8), threading.Lock()
def use(_):
    barrier.wait()
    with lock:
        np.ones(2**28, np.uint8)
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(use, range(8)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has what this needs")
def test_threads_keep_nothing_large():
    """Eight threads that need 256 MB one after another need 256 MB."""
    command = [sys.executable, "-c"]
    needs, alone = (
        int(subprocess.run([*command, code], capture_output=True, text=True, check=True).stdout)
        for code in (THREADS, THREADS.replace("2**28", "1"))
    )
    assert needs - alone < 320


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has what this needs")
def test_freed_memory_is_kept():
    output = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    assert int(output) < 2000  # pages; 60 MB are 15,000, each of 20 times
