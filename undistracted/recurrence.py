"""A scan whose weight gradients are computed once, after the backward loop, instead of being summed up inside it.

In the backward pass of a plain scan every step multiplies and adds a gradient for every weight: half of a recurrent
network's small kernels. Here the loop only carries the gradients of the products back in time; each weight's gradient
is then a single large product over all steps.
"""

from functools import partial

import jax
import jax.numpy as jnp

from undistracted.nets import DTYPES, exact_product


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def hoisted_scan(cell, unroll: int, dtype: str, weights: dict, offsets: dict, start, rows):
    """The outputs of `carry, out = cell(linear, carry, row)`, scanned over (T, B, ...) rows.

    `linear(name, x)` is x @ weights[name] + offsets[name][t]. Gradients reach weights and offsets, not start and rows.
    """
    return _run(cell, unroll, dtype, weights, offsets, start, rows)[0]


def _run(cell, unroll, dtype, weights, offsets, start, rows):
    def step(carry, row):
        offset, row = row
        inputs = {}

        def linear(name, x):
            inputs[name] = x.astype(DTYPES[dtype])
            return exact_product(x, weights[name], dtype) + offset[name]

        carry, out = cell(linear, carry, row)
        return carry, (out, inputs)

    return jax.lax.scan(step, start, (offsets, rows), unroll=unroll)[1]


def _forward(cell, unroll, dtype, weights, offsets, start, rows):
    def run(offsets):
        return _run(cell, unroll, dtype, weights, offsets, start, rows)

    out, pullback, inputs = jax.vjp(run, offsets, has_aux=True)
    return out, (pullback, inputs, weights, start, rows)


def _backward(cell, unroll, dtype, residuals, cotangent):
    pullback, inputs, weights, start, rows = residuals
    (offsets,) = pullback(cotangent)
    gradients = {
        name: jnp.einsum("tbi,tbo->io", inputs[name], offsets[name].astype(DTYPES[dtype])).astype(jnp.float32)
        for name in weights
    }
    return gradients, offsets, *jax.tree.map(jnp.zeros_like, (start, rows))


hoisted_scan.defvjp(_forward, _backward)
