"""The image encoder h: o_t -> x_t, its convolutions, and how several seeds' encoders run at once.

A convolution whose kernels are mapped over seeds is slow everywhere, so the encoder is one function with a gradient of
its own, which a `vmap` over seeds calls seed by seed; all else of the agent is mapped as usual.
"""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from undistracted.nets import DTYPES, Linear


class Encoder(eqx.Module):
    """Convolutions (kernel 4, stride 2, ReLU); the paper's four take 64 -> 31 -> 14 -> 6 -> 2 pixels."""

    layers: list[Linear]
    shrink: int = eqx.field(static=True)
    conv: Callable = eqx.field(static=True)

    def __init__(self, channels: tuple[int, ...], key, dtype="float32", shrink=1, conv=None):
        sizes = [3, *channels]
        keys = jax.random.split(key, len(channels))
        self.layers = [Linear(16 * n, m, k, dtype) for n, m, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        self.shrink, self.conv = shrink, conv or patch_conv

    @property
    def size(self) -> int:
        side = 64 // self.shrink
        for _ in self.layers:
            side = side // 2 - 1
        return side**2 * self.layers[-1].bias.shape[0]

    def __call__(self, obs: UInt8[Array, "*n 64 64 3"]) -> Float[Array, "*n x"]:
        pixels = partial(scaled, shrink=self.shrink, dtype=DTYPES[self.layers[0].dtype])
        y = encode((self.conv,) * len(self.layers), pixels, [(layer.weight, layer.bias) for layer in self.layers], obs)
        return y.reshape(*y.shape[:-3], -1).astype(jnp.float32)


def scaled(obs, shrink: int, dtype, low: int = -1):
    """Pixels in [low, 1], averaged over squares of shrink x shrink."""
    if shrink > 1:
        parts = [obs[..., i::shrink, j::shrink, :] for i in range(shrink) for j in range(shrink)]
        obs = sum(part.astype(jnp.float32) for part in parts) / shrink**2
    return obs.astype(dtype) / (255 / (1 - low)) + low


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def encode(convs, pixels, weights: list, obs):
    """The last layer's values (*n, H, W, C), for layers given as a convolution and its (weight, bias)."""
    return forward(convs, pixels, weights, obs)[0]


def forward(convs, pixels, weights, obs):
    def layers(weights, obs):
        x, values = pixels(obs), []
        for conv, (weight, bias) in zip(convs, weights, strict=True):
            x = jnp.maximum(conv(x, weight.astype(x.dtype)) + bias.astype(x.dtype), 0)
            values.append(x)
        return values

    values = each_seed(layers)(weights, obs)
    return values[-1], (weights, obs, values)


def backward(convs, pixels, residuals, gradient):
    """Gradients of weights and biases; pixels have none. ReLU's slope is found from its value, so that the library can
    join it with the convolution before it; the scaled pixels are cheaper to make again than to keep."""

    def layers(weights, obs, values, gradient):
        gradients, inputs = [], [pixels(obs), *values[:-1]]
        for conv, (weight, _), x, y in reversed(list(zip(convs, weights, inputs, values, strict=True))):
            gradient = jnp.where(y > 0, gradient, 0)
            bias = gradient.astype(jnp.float32).sum(range(gradient.ndim - 1))
            gradient, weight = jax.vjp(conv, x, weight.astype(x.dtype))[1](gradient)
            gradients.append((weight.astype(jnp.float32), bias))
        return gradients[::-1]

    return each_seed(layers)(*residuals, gradient), None


encode.defvjp(forward, backward)


def each_seed(fn):
    """`fn`, which a vmap calls once for every seed. Values that only such functions exchange are never copied: the
    compiler sees that a slice of a stack is what was stacked."""
    fn = jax.custom_batching.custom_vmap(fn)

    @fn.def_vmap
    def loop(seeds, mapped, *args):
        def of(seed):
            return fn(*jax.tree.map(lambda x, mapped: x[seed] if mapped else x, args, tuple(mapped)))

        out = jax.tree.map(lambda *x: jnp.stack(x), *[of(seed) for seed in range(seeds)])
        return out, jax.tree.map(lambda _: True, out)

    return fn


def space_to_depth(x):
    """Squares of 2x2 pixels of (..., H, W, C) as the channels of one pixel: (..., H / 2, W / 2, 4 C)."""
    *n, h, w, c = x.shape
    h, w = h // 2, w // 2
    x = x[..., : 2 * h, : 2 * w, :].reshape(*n, h, 2, w, 2, c)
    return jnp.moveaxis(x, -4, -3).reshape(*n, h, w, 4 * c)


def patches(x):
    """The 4x4 windows at stride 2 of (..., H, W, C), as (..., H', W', 16 C): space to depth, then 2x2 neighbours."""
    x = space_to_depth(x)
    h, w = x.shape[-3:-1]
    corners = [x[..., i : h - 1 + i, j : w - 1 + j, :] for i in (0, 1) for j in (0, 1)]
    return jnp.concatenate(corners, -1)


def patch_conv(x, weight):
    """A 4x4 convolution at stride 2 as one matrix product: fast on a CPU."""
    return patches(x) @ weight


def native_conv(x, weight):
    """The same by the library's convolution: fast on a GPU."""
    c = x.shape[-1]
    if c < 8:  # too few channels for the tensor cores: 2x2 pixels become the channels of one
        x = space_to_depth(x)
        kernel = weight.reshape(2, 2, 4 * c, -1)
        spare = [(0, 0)] * 2 + [(0, -4 * c % 8)]
        x, kernel = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + spare), jnp.pad(kernel, [*spare, (0, 0)])
    else:
        kernel = weight.reshape(2, 2, 2, 2, c, -1)  # neighbour row and column, row and column within, channel, output
        kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(4, 4, c, -1)
    stride = (len(kernel) // 2,) * 2
    flat = x.reshape(-1, *x.shape[-3:])
    y = jax.lax.conv_general_dilated(flat, kernel, stride, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y.reshape(*x.shape[:-3], *y.shape[1:])
