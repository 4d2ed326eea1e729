"""Passes through networks, each taken once, for all that depends on it.

Whatever depends on the value v of a head with one output has, row by row, the gradient c dv/dx with a number c: so the
slopes dv/dx and dv/ds, s a layer's sums, are found once, and serve the pull on the head's inputs as well as the
gradient of its weights. The policy's layers are kept as it acts: its loss begins where acting ended.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from undistracted.nets import MLP, Scalar, elu, elu_slope, product


class Trace(NamedTuple):
    value: Float[Array, "*n"]
    slope: Float[Array, "*n x"]  # of the value, by the head's input
    inputs: tuple  # of the layers
    slopes: tuple  # of the value, by the layers' sums


def passage(mlp: MLP, x) -> tuple[Array, list]:
    """What comes out of ELU layers, and what comes out of each hidden one."""
    *hidden, out = mlp.layers
    after = [x]
    for layer in hidden:
        after.append(elu(layer(after[-1]), layer.dtype))
    return out.exact(after[-1]), after[1:]


def trace(head: Scalar, x) -> Trace:
    *hidden, out = head.mlp.layers
    value, after = passage(head.mlp, x)
    value, inputs = value[..., 0], [x, *after]
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
    dtype = trace.inputs[-1].dtype
    pairs = [
        layer_gradient(x.astype(dtype), c[..., None] * slope.astype(jnp.float32))
        for x, slope in zip(trace.inputs, trace.slopes, strict=True)
    ]
    return pairs, None


def layer_gradient(x, sums) -> tuple[Array, Array]:
    """Of a layer's weight and bias, from its inputs and the gradient of its sums. All rows are put in one axis: with
    two of them a CPU's compiler turns one side of the product before it multiplies."""
    x, sums = (y.reshape(-1, y.shape[-1]) for y in (x, sums))
    return (x.T @ sums.astype(x.dtype)).astype(jnp.float32), sums.sum(0, dtype=jnp.float32)


known_value.defvjp(lambda weights, trace: (trace.value, trace), gradients)


def known_output(mlp: MLP, x, out, hidden: list) -> Float[Array, "*n y"]:
    """The output that is known from a passage of x through this network, with its gradient to the network's weights."""
    weights = [(layer.weight, layer.bias) for layer in mlp.layers]
    return _known_output(weights, [x.astype(hidden[0].dtype), *hidden], out)


@jax.custom_vjp
def _known_output(weights: list, inputs: list, out):
    return out


def _pull_on_weights(residuals, sums):
    weights, inputs = residuals
    pairs = []
    for (weight, _), x in zip(weights[::-1], inputs[::-1], strict=True):
        pairs.append(layer_gradient(x, sums))
        sums = jnp.matmul(sums.astype(x.dtype), weight.T.astype(x.dtype)).astype(jnp.float32) * elu_slope(x)
    return pairs[::-1], None, None


_known_output.defvjp(lambda weights, inputs, out: (out, (weights, inputs)), _pull_on_weights)
