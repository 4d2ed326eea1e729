"""Linear layers, the GRU cell, MLP heads and the image encoder of the paper's appendix.

Parameters are float32. Matrix products run in the `dtype` of the layer (bfloat16 on GPUs) and return float32, so
that everything between them (gates, distributions, losses) keeps full precision.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def uniform_init(key, shape, fan_in):
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), for weights and biases alike."""
    bound = fan_in**-0.5
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

    def product(self, x, rows=slice(None)):
        """x @ weight[rows]: callers that know parts of the input early multiply them early."""
        dtype = DTYPES[self.dtype]
        return jnp.matmul(x.astype(dtype), self.weight[rows].astype(dtype), preferred_element_type=jnp.float32)


class MLP(eqx.Module):
    """ELU layers and a linear output."""

    layers: list[Linear]

    def __init__(self, inputs: int, hidden: int, depth: int, outputs: int, key, dtype="float32"):
        sizes = [inputs, *[hidden] * depth, outputs]
        keys = jax.random.split(key, depth + 1)
        self.layers = [Linear(n, m, k, dtype) for n, m, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = jax.nn.elu(layer(x))
        return self.layers[-1](x)


class Scalar(eqx.Module):
    """An MLP head with one output: reward and value."""

    mlp: MLP

    def __init__(self, inputs: int, hidden: int, depth: int, key, dtype="float32"):
        self.mlp = MLP(inputs, hidden, depth, 1, key, dtype)

    def __call__(self, x):
        return self.mlp(x)[..., 0]


class GRU(eqx.Module):
    """The gated recurrent unit whose reset gate acts on the hidden product: r * (W h + b)."""

    gates: Linear  # x -> reset, update, candidate
    hidden: Linear  # h -> reset, update, candidate

    def __init__(self, inputs: int, size: int, key, dtype="float32"):
        k1, k2 = jax.random.split(key)
        self.gates = Linear(inputs, 3 * size, k1, dtype)
        self.hidden = Linear(size, 3 * size, k2, dtype)

    def __call__(self, x, h):
        xr, xu, xn = jnp.split(self.gates(x), 3, -1)
        hr, hu, hn = jnp.split(self.hidden(h), 3, -1)
        reset, update = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xu + hu)
        return (1 - update) * jnp.tanh(xn + reset * hn) + update * h


def patches(x):
    """The 4x4 windows at stride 2 of (..., H, W, C), as (..., H', W', 16 C): space to depth, then 2x2 neighbours.

    A convolution is then a matrix product, which maps over seeds without becoming a slow grouped convolution and
    whose gradient is fast on a CPU too.
    """
    *n, h, w, c = x.shape
    h, w = h // 2, w // 2
    x = x[..., : 2 * h, : 2 * w, :].reshape(*n, h, 2, w, 2, c)
    x = jnp.moveaxis(x, -4, -3).reshape(*n, h, w, 4 * c)
    corners = [x[..., i : h - 1 + i, j : w - 1 + j, :] for i in (0, 1) for j in (0, 1)]
    return jnp.concatenate(corners, -1)


class Encoder(eqx.Module):
    """h: o_t -> x_t. Four convolutions (kernel 4, stride 2, ReLU): 64 -> 31 -> 14 -> 6 -> 2, flattened."""

    layers: list[Linear]
    dtype: str = eqx.field(static=True)

    def __init__(self, channels: tuple[int, ...], key, dtype="float32"):
        sizes = [3, *channels]
        keys = jax.random.split(key, len(channels))
        self.layers = [Linear(16 * n, m, k, dtype) for n, m, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        self.dtype = dtype

    @property
    def size(self) -> int:
        return 4 * self.layers[-1].bias.shape[0]

    def __call__(self, obs: UInt8[Array, "*n 64 64 3"]) -> Float[Array, "*n x"]:
        x = obs.astype(DTYPES[self.dtype]) / 127.5 - 1
        for layer in self.layers:
            x = jax.nn.relu(layer(patches(x))).astype(x.dtype)
        return x.reshape(*x.shape[:-3], -1).astype(jnp.float32)
