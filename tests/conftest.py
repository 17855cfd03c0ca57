"""What is compiled is kept for the session, for all its processes: many tests run a program again, or resume it."""

import os
import tempfile

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # before JAX is imported; the workers of pytest-xdist inherit it
    _folder = tempfile.TemporaryDirectory(prefix="frodo_tests_", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _folder.name
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
