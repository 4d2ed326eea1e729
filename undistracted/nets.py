"""Linear layers and MLP heads of the paper's appendix, and the normed layers of the baselines.

Parameters are float32. Matrix products and their gradients run in the `dtype` of the layer (bfloat16 on GPUs), and so
do what hidden layers pass on; what comes out of them (gates, distributions, values, losses) is float32.
"""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def uniform_init(key, shape, fan_in):
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), for weights and biases alike."""
    bound = max(fan_in, 1) ** -0.5
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


class Linear(eqx.Module):
    weight: Float[Array, "n m"]
    bias: Float[Array, "m"]
    dtype: str = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, key, dtype="float32"):
        w, b = jax.random.split(key)
        self.weight = uniform_init(w, (inputs, outputs), inputs)
        self.bias = uniform_init(b, (outputs,), inputs)
        self.dtype = dtype

    def __call__(self, x):
        return self.product(x) + self.bias

    def exact(self, x):
        """The same for outputs, whose every digit counts."""
        return exact_product(x, self.weight, self.dtype) + self.bias

    def product(self, x, rows=slice(None)):
        """x @ weight[rows]: callers that know parts of the input early multiply them early."""
        return product(x, self.weight[rows], self.dtype)


def product(x, weight, dtype: str):
    """x @ weight, computed and rounded in dtype, as float32."""
    return jnp.matmul(x.astype(DTYPES[dtype]), weight.astype(DTYPES[dtype])).astype(jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def exact_product(x, weight, dtype: str):
    """The same without the rounding, for outputs: in bfloat16 a value of 170 would come in steps of 1."""
    x, weight = x.astype(DTYPES[dtype]), weight.astype(DTYPES[dtype])
    return jnp.matmul(x, weight, preferred_element_type=jnp.float32)


# The gradient stays that of `product`: derived from the line above it would be a slower product in float32.
exact_product.defvjp(
    lambda x, weight, dtype: (exact_product(x, weight, dtype), (x, weight)),
    lambda dtype, inputs, y: jax.vjp(partial(product, dtype=dtype), *inputs)[1](y),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def elu(x, dtype: str):
    """ELU as the next product takes it. Its slope is found from its value, so nothing more is kept for the gradient."""
    return fast_elu(x).astype(DTYPES[dtype])


def fast_elu(x):
    """`jax.nn.elu` by `exp`, which a GPU has in hardware, instead of `expm1`, whose last digits nobody needs here."""
    return jnp.where(x > 0, x, jnp.exp(jnp.minimum(x, 0)) - 1)


def elu_slope(y):
    """Of ELU where its value is y."""
    return jnp.minimum(y.astype(jnp.float32), 0) + 1


elu.defvjp(
    lambda x, dtype: (elu(x, dtype),) * 2,
    lambda dtype, y, gradient: (gradient.astype(jnp.float32) * elu_slope(y),),
)


def relu(x, dtype: str):
    """ReLU as the next product takes it."""
    return jax.nn.relu(x).astype(DTYPES[dtype])


class MLP(eqx.Module):
    """ELU layers (or of another activation) and a linear output."""

    layers: list[Linear]
    activation: Callable = eqx.field(static=True)

    def __init__(self, inputs: int, hidden: int, depth: int, outputs: int, key, dtype="float32", activation=elu):
        sizes = [inputs, *[hidden] * depth, outputs]
        keys = jax.random.split(key, depth + 1)
        self.layers = [Linear(n, m, k, dtype) for n, m, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        self.activation = activation

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = self.activation(layer(x), layer.dtype)
        return self.layers[-1].exact(x)


class LayerNorm(eqx.Module):
    """Zero mean and unit variance over the last axis, then a learned scale and shift."""

    scale: Float[Array, "n"]
    shift: Float[Array, "n"]

    def __init__(self, size: int):
        self.scale, self.shift = jnp.ones(size), jnp.zeros(size)

    def __call__(self, x):
        variance = x.var(-1, keepdims=True)  # its own would be mean(x^2) - mean(x)^2: no digits left far from zero
        return jax.nn.standardize(x, variance=variance, epsilon=1e-5) * self.scale + self.shift


class NormedMLP(eqx.Module):
    """A linear layer, LayerNorm and `squash`, then an MLP of `depth` hidden layers."""

    first: Linear
    norm: LayerNorm
    rest: MLP
    squash: Callable = eqx.field(static=True)

    def __init__(self, inputs: int, hidden: int, depth: int, outputs: int, key, dtype, squash):
        k1, k2 = jax.random.split(key)
        self.first, self.norm = Linear(inputs, hidden, k1, dtype), LayerNorm(hidden)
        self.rest, self.squash = MLP(hidden, hidden, depth, outputs, k2, dtype), squash

    def __call__(self, x):
        return self.rest(self.squash(self.norm(self.first(x))))


class Scalar(eqx.Module):
    """An MLP head with one output: reward and value."""

    mlp: MLP

    def __init__(self, inputs: int, hidden: int, depth: int, key, dtype="float32"):
        self.mlp = MLP(inputs, hidden, depth, 1, key, dtype)

    def __call__(self, x):
        return self.mlp(x)[..., 0]
