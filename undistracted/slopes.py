"""One pass through a head with a single output, forward and back, for all gradients that depend on it.

Whatever depends on such a head's value v has, row by row, the gradient c dv/dx with a number c: so the slopes dv/dx and
dv/ds, s a layer's sums, are found once, and serve the pull on the head's inputs as well as the gradient of its weights.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from undistracted.nets import Scalar, elu, elu_slope, product


class Trace(NamedTuple):
    value: Float[Array, "*n"]
    slope: Float[Array, "*n x"]  # of the value, by the head's input
    inputs: tuple  # of the layers
    slopes: tuple  # of the value, by the layers' sums


def trace(head: Scalar, x) -> Trace:
    *hidden, out = head.mlp.layers
    inputs = [x]
    for layer in hidden:
        inputs.append(elu(layer(inputs[-1]), layer.dtype))
    value = out.exact(inputs[-1])[..., 0]
    slope, slopes = out.weight[:, 0], [jnp.ones_like(value)[..., None]]
    for layer, y in zip(hidden[::-1], inputs[:0:-1], strict=True):
        slopes.append((slope * elu_slope(y)).astype(y.dtype))
        slope = product(slopes[-1], layer.weight.T, layer.dtype)
    return Trace(value, slope, tuple(inputs), tuple(slopes[::-1]))


def traced_value(head: Scalar, trace: Trace) -> Float[Array, "*n"]:
    """The value in the trace of this head, with its gradient to the head's weights."""
    return known_value([(layer.weight, layer.bias) for layer in head.mlp.layers], trace)


@jax.custom_vjp
def known_value(weights: list, trace: Trace):
    return trace.value


def gradients(trace: Trace, c):
    """Of each layer's weight and bias, for the gradient c (*n,) of the value."""
    pairs = []
    for x, slope in zip(trace.inputs, trace.slopes, strict=True):
        sums = c[..., None] * slope.astype(jnp.float32)
        weight = jnp.einsum("...i,...o->io", x.astype(trace.inputs[-1].dtype), sums.astype(trace.inputs[-1].dtype))
        pairs.append((weight.astype(jnp.float32), sums.sum(range(c.ndim))))
    return pairs, None


known_value.defvjp(lambda weights, trace: (trace.value, trace), gradients)
