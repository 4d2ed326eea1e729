"""The hoisted scan against a plain one: same values, same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.recurrence import hoisted_scan

T, B, N, H = 7, 3, 4, 5


def cell(linear, carry, row):
    """Two products a step, one of them twice removed from the carry, and an output that is neither."""
    hidden = jnp.tanh(linear("inner", carry * row))
    carry = 0.5 * carry + jnp.sin(linear("outer", hidden))
    return carry, (carry, hidden**2)


def plain_scan(weights, offsets, start, rows):
    def step(carry, row):
        offset, row = row
        return cell(lambda name, x: x @ weights[name] + offset[name], carry, row)

    return jax.lax.scan(step, start, (offsets, rows))[1]


def inputs(key):
    k = jax.random.split(key, 6)
    weights = {"inner": jax.random.normal(k[0], (N, H)), "outer": jax.random.normal(k[1], (H, N))}
    offsets = {"inner": jax.random.normal(k[2], (T, B, H)), "outer": jax.random.normal(k[3], (T, B, N))}
    return weights, offsets, jax.random.normal(k[4], (B, N)), jax.random.normal(k[5], (T, B, N))


def values_and_gradients(scan, args):
    """Outputs, and the gradients of a loss in which every output at every step has a weight of its own."""

    def loss(*args):
        out = scan(*args)
        shares = [jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape) for x in out]
        return sum((x * share).sum() for x, share in zip(out, shares, strict=True)), out

    gradients, out = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*args)
    return out, gradients


def hoisted(dtype, unroll=1):
    return lambda *args: hoisted_scan(cell, unroll, dtype, *args)


def assert_close(actual, expected, **tolerance):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("unroll", [1, 3])
def test_hoisted_scan_is_the_plain_scan(key, unroll):
    args = inputs(key)
    out, gradients = jax.jit(lambda args: values_and_gradients(hoisted("float32", unroll), args))(args)
    plain_out, plain_gradients = jax.jit(lambda args: values_and_gradients(plain_scan, args))(args)
    assert_close(out, plain_out, rtol=1e-5, atol=1e-5)
    assert_close(gradients[:2], plain_gradients[:2], rtol=1e-4, atol=1e-4)
    assert min(np.abs(x).max() for x in jax.tree.leaves(plain_gradients)) > 0.1
    assert_close(gradients[2:], jax.tree.map(jnp.zeros_like, gradients[2:]))  # start and rows are constants


def test_hoisted_scan_maps_over_seeds(key):
    keys = jax.random.split(key)
    args = jax.vmap(inputs)(keys)
    mapped = jax.jit(jax.vmap(lambda *args: values_and_gradients(hoisted("float32"), args)))(*args)
    single = jax.jit(lambda args: values_and_gradients(plain_scan, args))
    for s, seed_key in enumerate(keys):
        (out, gradients), (plain_out, plain_gradients) = (
            jax.tree.map(lambda x, s=s: x[s], mapped),
            single(inputs(seed_key)),
        )
        assert_close(out, plain_out, rtol=1e-5, atol=1e-5)
        assert_close(gradients[:2], plain_gradients[:2], rtol=1e-4, atol=1e-4)


def test_bfloat16_stays_within_its_precision(key):
    """Tolerance: 5 % of the largest entry of each array, after 7 steps of products that round to 8 bits."""
    args = inputs(key)
    half = jax.jit(lambda args: values_and_gradients(hoisted("bfloat16"), args))(args)
    full = jax.jit(lambda args: values_and_gradients(plain_scan, args))(args)
    pairs = list(zip(jax.tree.leaves((half[0], half[1][:2])), jax.tree.leaves((full[0], full[1][:2])), strict=True))
    for a, b in pairs:
        assert a.dtype == jnp.float32
        assert 1e-4 < np.abs(a - b).max() < 0.05 * np.abs(b).max()  # not float32 after all
