"""Traces and passages against plain differentiation: values, slopes, and the gradients that it stands for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.nets import MLP, Scalar
from undistracted.slopes import known_output, layer_gradient, passage, trace, traced_value

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}  # relative to an array's largest entry


def assert_alike(ours, theirs, dtype):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[dtype] * np.abs(b).max())


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_trace_holds_what_differentiation_finds(key, dtype, depth):
    head, x = Scalar(5, 16, depth, key, dtype), jax.random.normal(key, (4, 7, 5))
    c = jnp.cos(jnp.arange(28.0)).reshape(4, 7)
    seen = jax.jit(trace)(head, x)
    assert_alike(seen.value, head(x), dtype)
    assert_alike(c[..., None] * seen.slope, jax.grad(lambda x: (c * head(x)).sum())(x), dtype)
    ours = eqx.filter_grad(lambda head: (c * traced_value(head, seen)).sum())(head)
    assert_alike(ours, eqx.filter_grad(lambda head: (c * head(x)).sum())(head), dtype)


def test_nothing_flows_through_the_trace_itself(key):
    head, x = Scalar(5, 16, 2, key), jax.random.normal(key, (3, 5))
    assert not jax.grad(lambda x: traced_value(head, trace(head, x)).sum())(x).any()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_known_output_has_the_gradient_of_the_network(key, dtype):
    mlp, x = MLP(5, 16, 2, 3, key, dtype), jax.random.normal(key, (4, 7, 5))
    c = jnp.cos(jnp.arange(84.0)).reshape(4, 7, 3)
    out, hidden = jax.jit(passage)(mlp, x)
    assert_alike(out, mlp(x), dtype)
    ours = eqx.filter_grad(lambda mlp: (c * known_output(mlp, x, out, hidden)).sum())(mlp)
    assert_alike(ours, eqx.filter_grad(lambda mlp: (c * mlp(x)).sum())(mlp), dtype)


def test_a_layers_gradient_turns_none_of_its_rows():
    x, sums = jnp.ones((12, 40, 96)), jnp.ones((12, 40, 32))
    compiled = jax.jit(layer_gradient).lower(x, sums).compile().as_text()
    assert "[480,96]" in compiled and "[96,480]" not in compiled and "[32,480]" not in compiled
