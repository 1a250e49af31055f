"""Compilation options, and what becomes of one that the compiler does not know."""

import jax
import jax.numpy as jnp
import pytest

from alws import runtime


@pytest.fixture
def no_flags(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    runtime._takes_quick_loops.cache_clear()
    yield
    runtime._takes_quick_loops.cache_clear()


@pytest.mark.parametrize("options", [{"numbers": 10}, {"once": True}, {"numbers": 10**6}])
def test_a_compiled_function_computes_the_same(no_flags, options, key):
    x = jax.random.normal(key, (50, 3))

    def function(x):
        return jnp.exp(-(x**2)).sum(axis=1)

    assert jnp.allclose(runtime.eqx.filter_jit(function, **options)(x), function(x), rtol=1e-6)


def test_an_option_of_another_version_is_left_out(no_flags, monkeypatch):
    monkeypatch.setattr(runtime, "QUICK_LOOPS", {"xla_cpu_no_such_option": True})
    assert not runtime._takes_quick_loops()
    assert runtime.eqx.filter_jit(lambda x: x + 1)(jnp.ones(())) == 2
