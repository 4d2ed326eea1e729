"""The image decoder z_t -> the mean of o_t, its transposed convolutions, and the likelihood of the pixels.

A transposed convolution at stride 2 is a plain one at stride 1 that makes all pixels of each 2x2 square at once: four
times the channels for tensor cores, and no zeros to multiply with. Like the encoder, the decoder is one function with
a gradient of its own, which a `vmap` over seeds calls seed by seed.
"""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from undistracted.dists import HALF_LOG_2PI
from undistracted.encoder import scaled
from undistracted.errors import UserError
from undistracted.nets import DTYPES, Linear, uniform_init
from undistracted.seeds import each_seed

# By the side of the picture: Dreamer's take one pixel to 5, 13, 30 and 64; the others serve averaged pictures.
KERNELS = {64: (5, 5, 6, 6), 32: (5, 6, 6), 16: (6, 6)}


class Deconv(eqx.Module):
    """A transposed convolution at stride 2: n pixels become 2 (n - 1) + k."""

    weight: Float[Array, "c k k m"]
    bias: Float[Array, "m"]

    def __init__(self, inputs: int, outputs: int, kernel: int, key):
        w, b = jax.random.split(key)
        fan = outputs * kernel**2
        self.weight, self.bias = uniform_init(w, (inputs, kernel, kernel, outputs), fan), uniform_init(b, outputs, fan)


class Decoder(eqx.Module):
    """A linear layer to one pixel of many channels, then transposed convolutions with ReLU in between, back through
    the encoder's channels; `relu` puts one behind the linear layer too."""

    inputs: Linear
    layers: list[Deconv]
    relu: bool = eqx.field(static=True)
    conv: Callable = eqx.field(static=True)

    def __init__(self, features, size, channels, key, dtype="float32", *, shrink=1, conv=None, outputs=3, relu=False):
        kernels = KERNELS.get(64 // shrink, ())
        if len(kernels) != len(channels):
            fit = ", ".join(f"{len(kernels)} channels at shrink {64 // side}" for side, kernels in KERNELS.items())
            raise UserError(f"no decoder has {len(channels)} channels at shrink {shrink}; choose {fit}")
        keys = jax.random.split(key, 1 + len(channels))
        sizes = [size, *channels[-2::-1], outputs]
        self.inputs = Linear(features, size, keys[0], dtype)
        self.layers = [Deconv(*args) for args in zip(sizes[:-1], sizes[1:], kernels, keys[1:], strict=True)]
        self.relu, self.conv = relu, conv or patch_deconv

    def __call__(self, features: Float[Array, "*n F"]) -> Float[Array, "*n side side m"]:
        x = self.inputs(features)
        x = (jax.nn.relu(x) if self.relu else x).astype(DTYPES[self.inputs.dtype])
        return decode(self.conv, [(layer.weight, layer.bias) for layer in self.layers], x).astype(jnp.float32)


def image_nll(mean, obs: UInt8[Array, "*n 64 64 3"], std: float) -> Float[Array, "*n"]:
    """Negative log-likelihood, summed over pixels in [-1, 1], of a Gaussian around the decoded picture.

    A deviation of 2 is the unit deviation of methods that scale pixels to [-0.5, 0.5].
    """
    error = (scaled(obs, 64 // mean.shape[-2], jnp.float32) - mean) / std
    return (0.5 * error**2 + jnp.log(std) + HALF_LOG_2PI).sum((-3, -2, -1))


def to_picture(mean) -> UInt8[Array, "*n 64 64 3"]:
    """A decoded mean as a picture, enlarged to the size of those that are seen."""
    pixels = jnp.round((jnp.clip(mean, -1, 1) + 1) * 127.5).astype(jnp.uint8)
    factor = 64 // mean.shape[-2]
    return pixels.repeat(factor, -3).repeat(factor, -2)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def decode(conv, weights: list, x):
    """The picture (*n, H, W, C) from one pixel's values (*n, C), for layers given as (weight, bias)."""
    return forward(conv, weights, x)[0]


def forward(conv, weights, x):
    def layers(weights, x):
        values = [x[..., None, None, :]]
        for weight, bias in weights:
            y = conv(values[-1], weight.astype(x.dtype)) + bias.astype(x.dtype)
            values.append(jnp.maximum(y, 0))
        return y, values[:-1]

    y, values = each_seed(layers)(weights, x)
    return y, (weights, values)


def backward(conv, residuals, gradient):
    """Gradients of weights, biases and the pixel's values; ReLU's slope is found from its value."""

    def layers(weights, values, gradient):
        gradients = []
        for i, ((weight, _), x) in reversed(list(enumerate(zip(weights, values, strict=True)))):
            bias = gradient.astype(jnp.float32).sum(range(gradient.ndim - 1))
            gradient, weight = jax.vjp(conv, x, weight.astype(x.dtype))[1](gradient)
            gradient = jnp.where(x > 0, gradient, 0) if i else gradient
            gradients.append((weight.astype(jnp.float32), bias))
        return gradients[::-1], gradient[..., 0, 0, :]

    return each_seed(layers)(*residuals, gradient)


decode.defvjp(forward, backward)


def squares(weight):
    """The kernel (r, r, C, 4 M), r = ceil(k / 2), that makes the 2x2 squares of a transposed convolution's picture."""
    c, k, _, m = weight.shape
    r = (k + 1) // 2
    weight = jnp.pad(weight, [(0, 0), (0, 2 * r - k), (0, 2 * r - k), (0, 0)]).reshape(c, r, 2, r, 2, m)
    return weight[:, ::-1, :, ::-1].transpose(1, 3, 0, 2, 4, 5).reshape(r, r, c, 4 * m)


def transposed(x, weight, product):
    """The transposed convolution of (*n, H, W, C), by `product(x, kernel)`: windows of padded pixels, multiplied."""
    *n, h, w, c = x.shape
    _, k, _, m = weight.shape
    if h == w == 1:
        return (x[..., 0, 0, :] @ weight.reshape(c, -1)).reshape(*n, k, k, m)
    kernel = squares(weight)
    rim = (len(kernel) - 1,) * 2
    y = product(jnp.pad(x, [(0, 0)] * len(n) + [rim, rim, (0, 0)]), kernel)
    h, w = y.shape[-3:-1]
    y = jnp.moveaxis(y.reshape(*n, h, w, 2, 2, m), -3, -4).reshape(*n, 2 * h, 2 * w, m)
    return y[..., : 2 * h - k % 2, : 2 * w - k % 2, :]


def patch_product(x, kernel):
    """All windows as rows of one matrix product: fast on a CPU."""
    r = len(kernel)
    h, w = x.shape[-3] - r + 1, x.shape[-2] - r + 1
    windows = jnp.concatenate([x[..., i : i + h, j : j + w, :] for i in range(r) for j in range(r)], -1)
    return windows @ kernel.reshape(-1, kernel.shape[-1])


def native_product(x, kernel):
    """The same by the library's convolution: fast on a GPU. Tensor cores want channels by eights."""
    m = kernel.shape[-1]
    kernel = jnp.pad(kernel, [(0, 0)] * 3 + [(0, -m % 8)])
    flat = x.reshape(-1, *x.shape[-3:])
    y = jax.lax.conv_general_dilated(flat, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y[..., :m].reshape(*x.shape[:-3], *y.shape[1:3], m)


patch_deconv = partial(transposed, product=patch_product)
native_deconv = partial(transposed, product=native_product)
