"""Convolutions over a stack of frames, of any kernels and strides: the encoders of the methods without recurrence."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from undistracted.encoder import encode, last_side, scaled
from undistracted.errors import UserError
from undistracted.nets import DTYPES, Linear

GAIN = 2**0.5  # of weights before a ReLU


class Conv(NamedTuple):
    """A square convolution without padding; its weight has rows (column, row, channel) of the window."""

    kernel: int
    stride: int
    native: bool  # the library's convolution, fast on a GPU, or one matrix product, fast on a CPU

    def __call__(self, x, weight):
        k, s, c = self.kernel, self.stride, x.shape[-1]
        if self.native:
            kernel, layout = weight.reshape(k, k, c, -1).swapaxes(0, 1), ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, kernel, (s, s), "VALID", dimension_numbers=layout)
        h, w = self.side(x.shape[-3]), self.side(x.shape[-2])
        x = jnp.concatenate([x[..., i : i + s * h : s, :, :] for i in range(k)], -1)
        x = jnp.concatenate([x[..., j : j + s * w : s, :] for j in range(k)], -1)
        return x @ weight

    def side(self, pixels: int) -> int:
        return (pixels - self.kernel) // self.stride + 1


class Convs(eqx.Module):
    """ReLU convolutions over stacked frames scaled to [0, 1], flattened; one window each, of which the first are used
    where there are fewer layers."""

    layers: list[Linear]
    convs: tuple[Conv, ...] = eqx.field(static=True)
    shrink: int = eqx.field(static=True)

    def __init__(self, config, frames: int, windows, weights, key):
        """`windows` are (kernel, stride); `weights(key, kernel, inputs, outputs)` makes those of a layer."""
        c, n = config, len(config.channels)
        if n > len(windows):
            raise UserError(f"--channels names {n} convolutions; this agent's encoder has at most {len(windows)}")
        sizes = [3 * frames, *c.channels]
        self.convs = tuple(Conv(*window, bool(c.native_conv)) for window in windows[:n])
        self.shrink, self.layers = c.shrink, []
        for conv, inputs, outputs, k in zip(self.convs, sizes[:-1], sizes[1:], jax.random.split(key, n), strict=True):
            layer = Linear(conv.kernel**2 * inputs, outputs, k, c.precision)
            values = weights(k, conv.kernel, inputs, outputs), jnp.zeros(outputs)
            self.layers.append(eqx.tree_at(lambda x: (x.weight, x.bias), layer, values))

    @property
    def size(self) -> int:
        return last_side(self.shrink, [conv.side for conv in self.convs]) ** 2 * len(self.layers[-1].bias)

    def __call__(self, obs: UInt8[Array, "*n 64 64 c"]) -> Float[Array, "*n x"]:
        pixels = partial(scaled, shrink=self.shrink, dtype=DTYPES[self.layers[0].dtype], low=0)
        return encode(self.convs, pixels, self.layers, obs)


def delta_orthogonal(key, kernel: int, inputs: int, outputs: int):
    """Orthogonal at the window's centre, zero around it."""
    centre = jax.nn.initializers.orthogonal(GAIN)(key, (inputs, outputs))
    weight = jnp.zeros((kernel, kernel, inputs, outputs)).at[kernel // 2, kernel // 2].set(centre)
    return weight.reshape(-1, outputs)


def orthogonal_window(key, kernel: int, inputs: int, outputs: int):
    """Orthogonal over the whole window."""
    return jax.nn.initializers.orthogonal(GAIN)(key, (kernel**2 * inputs, outputs))
