"""What is compiled is kept for the session, for all its processes: many tests run a program again, or resume it.

It is compiled without optimisation: most of the time of the tests is the compiler's. A tenth of the time of tracing is
the garbage collector's, which therefore comes seldom.
"""

import gc
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # before JAX is imported; the workers of pytest-xdist inherit it
    _folder = tempfile.TemporaryDirectory(prefix="frodo_tests_", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _folder.name
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * (tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)),  # unknown to later ones
)
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
gc.set_threshold(200_000, 50, 100)
MAX_BYTES = 1.2e9  # of a process of the tests, between two files


def pytest_runtest_teardown(item, nextitem):
    """Between files, forget what was compiled where that, and what was traced, has grown large."""
    if nextitem is not None and nextitem.path != item.path and "jax" in sys.modules:
        with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else open(os.devnull) as file:
            pages = file.read().split()
        if pages and int(pages[1]) * os.sysconf("SC_PAGE_SIZE") > MAX_BYTES:
            sys.modules["jax"].clear_caches()
            gc.collect()


@pytest.fixture
def float64():
    """Compute in float64 where nothing else is said."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture
def start(monkeypatch, capsys):
    """Return a function that runs a program by its module's name, or as code, and says what came of it."""
    from absl import flags

    from experiments.runs import command_line
    from frodo.runs import errors

    def start(program, *args):
        before = set(flags.FLAGS)
        monkeypatch.setattr(sys, "argv", [program.split("\n")[0], *map(str, args)])
        for name in ("use_all_cores", "keep_freed_memory"):
            monkeypatch.setattr(command_line.cores, name, lambda: None)
        monkeypatch.setattr(command_line.app, "run", lambda main, flags_parser: main(flags_parser(sys.argv)))
        monkeypatch.setattr(errors, "run_is_open", False)
        capsys.readouterr()
        code = 0
        try:
            if "\n" in program:
                exec(program, {"__name__": "__main__"})
            else:
                with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # it may be imported already
                    runpy.run_module(program, run_name="__main__")
        except SystemExit as end:
            code = end.code
        finally:
            for name in set(flags.FLAGS) - before:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return start


# Files whose tests are marked as slow: they compile large programs, or start processes.
SLOW = (
    "agents/acting/test_in_jax.py",
    "agents/networks/test_agent.py",
    "agents/networks/test_transformer.py",
    "docs/",
    "examples/",
    "experiments/",
    "frodo/regimes/test_learner.py",
    "frodo/test_online.py",
    "frodo/regimes/test_plan.py",
    "frodo/test_population.py",
    "frodo/rules/test_files.py",
    "frodo/test_split.py",
    "frodo/settings/test_earlier_versions.py",
    "meta/targets/test_disco.py",
    "meta/updates/test_experience.py",
    "meta/updates/test_gradients.py",
    "meta/updates/test_lifetime.py",
    "meta/updates/test_population.py",
    "meta/targets/test_scalar.py",
    "strangers/test_not_finite.py",
    "strangers/test_value_bins.py",
    "test_library.py",
    "test_numbers.py",
    "test_readme.py",
    "test_unchanged.py",
)


# Tests that take long for what they add to others, by how their names begin; run by name, or with -m long.
LONG = tuple((Path(__file__).parent / "long.txt").read_text(encoding="utf-8").split("\n")[:-1])


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(LONG):
            item.add_marker(pytest.mark.long)
        if item.path.relative_to(config.rootpath / "tests").as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
