"""What XLA is told of an update."""

from types import SimpleNamespace

import jax
import pytest

from undistracted import compiler
from undistracted.compiler import same_bits, update_options


def test_products_of_an_update_are_spread_over_cpu_cores(monkeypatch):
    """By Eigen: XLA's newer library, where it is used, shows in the program."""
    x, weight, devices = jax.numpy.ones((320, 96)), jax.numpy.ones((96, 96)), jax.devices()[:1]

    def program():
        return jax.jit(jax.numpy.dot, compiler_options=update_options(devices)).lower(x, weight).compile().as_text()

    assert "ynn" not in program()
    assert update_options(jax.devices()[:2]) == compiler.WIDE != update_options(devices)
    monkeypatch.setattr(compiler, "ONE_CPU_DEVICE", {"xla_cpu_of_another_version": True})
    assert update_options(devices) is None
    assert "dot" in program()


def test_sync_asks_a_gpu_for_the_same_bits():
    gpu, cpu = [SimpleNamespace(platform="gpu")], jax.devices()
    for options in (same_bits, update_options):
        assert options(gpu, sync=True) == compiler.SAME_BITS, "which this compiler knows"
        assert options(gpu, sync=False) is None
    assert same_bits(cpu, sync=True) is None


def test_a_compiler_that_cannot_keep_the_same_bits_says_so(monkeypatch):
    monkeypatch.setattr(compiler, "SAME_BITS", {"xla_gpu_of_another_version": True})
    with pytest.warns(UserWarning, match="--sync may not"):
        assert same_bits([SimpleNamespace(platform="gpu")], sync=True) is None
