"""How programs that seldom run are compiled."""

import jax
import jax.numpy as jnp
import pytest

from frodo.devices import quick_to_compile


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices have no such options")
def test_a_level_that_is_given_is_left_as_it_is(monkeypatch):
    level = "xla_backend_optimization_level"
    monkeypatch.setenv("XLA_FLAGS", f"--{level}=3 --xla_cpu_enable_fast_math=false")
    given = quick_to_compile()
    monkeypatch.setenv("XLA_FLAGS", "")
    found = quick_to_compile()
    assert found == {level: 1} | given and level not in given and len(given) == (jax.__version_info__ < (0, 11))
    assert jax.jit(lambda x: jnp.sin(x) + 1, compiler_options=found)(0.0) == 1.0  # they are options that there are
