"""The networks that alignment plays with: the dual function f, behind a bottleneck, and the reweighting tau."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from undistracted.nets import Linear


class Perceptron(eqx.Module):
    layers: list[Linear]
    activation: Callable = eqx.field(static=True)

    def __init__(self, inputs: int, hidden: int, depth: int, outputs: int, key, activation):
        sizes = [inputs, *[hidden] * depth, outputs]
        keys = jax.random.split(key, depth + 1)
        self.layers = [Linear(n, m, k) for n, m, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        self.activation = activation

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class Reweighting(eqx.Module):
    """tau(x) >= 0, the exponential of a network."""

    mlp: Perceptron

    def __init__(self, inputs: int, key, *, hidden: int = 256, depth: int = 2):
        self.mlp = Perceptron(inputs, hidden, depth, 1, key, jax.nn.relu)

    def __call__(self, x) -> Float[Array, "*n"]:
        return jnp.exp(self.mlp(x)[..., 0])


class Dual(eqx.Module):
    """f(x) behind a variational bottleneck: it sees a noisy code, of which few nats are allowed."""

    encoder: Perceptron
    out: Linear

    def __init__(self, inputs: int, key, *, hidden: int = 256, depth: int = 2, code: int = 64):
        k1, k2 = jax.random.split(key)
        self.encoder = Perceptron(inputs, hidden, depth, 2 * code, k1, jax.nn.leaky_relu)
        self.out = Linear(code, 1, k2)

    def __call__(self, x, key) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
        """f, and the KL of the code against a standard normal."""
        mean, log_std = jnp.split(self.encoder(x), 2, -1)
        code = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        kl = 0.5 * (mean**2 + jnp.exp(2 * log_std) - 1 - 2 * log_std).sum(-1)
        return self.out(jax.nn.leaky_relu(code))[..., 0], kl
