"""What is loaded by its first use is loaded once, whole, by whichever thread comes first."""

import subprocess
import sys
from pathlib import Path

CODE = """
import concurrent.futures, sys, threading
from agents.lazy import rlax
assert "tensorflow_probability" not in sys.modules
ready = threading.Barrier(4)
def use():
    ready.wait()
    return rlax.vtrace, rlax.huber_loss
with concurrent.futures.ThreadPoolExecutor(4) as threads:
    found = {future.result() for future in [threads.submit(use) for _ in range(4)]}
assert len(found) == 1, found
"""


def test_threads_that_use_rlax_first_at_once_find_it_whole():
    done = subprocess.run([sys.executable, "-c", CODE], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
