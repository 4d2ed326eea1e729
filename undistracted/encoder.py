"""The image encoder h: o_t -> x_t, its convolutions, and how several seeds' encoders run at once.

A convolution whose kernels are mapped over seeds is slow everywhere, so the encoder is one function with a gradient of
its own, which a `vmap` over seeds calls seed by seed; all else of the agent is mapped as usual.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from undistracted.errors import UserError
from undistracted.nets import DTYPES, Linear
from undistracted.seeds import each_seed


class Encoder(eqx.Module):
    """Convolutions (kernel 4, stride 2, ReLU); the paper's four take 64 -> 31 -> 14 -> 6 -> 2 pixels."""

    layers: list[Linear]
    shrink: int = eqx.field(static=True)
    form: "Form" = eqx.field(static=True)

    def __init__(self, channels: tuple[int, ...], key, dtype="float32", shrink=1, form=None):
        sizes = [3, *channels]
        keys = jax.random.split(key, len(channels))
        self.layers = [Linear(16 * n, m, k, dtype) for n, m, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        self.shrink, self.form = shrink, form or PATCHES

    @property
    def size(self) -> int:
        return last_side(self.shrink, [lambda side: side // 2 - 1] * len(self.layers)) ** 2 * len(self.layers[-1].bias)

    def __call__(self, obs: UInt8[Array, "*n 64 64 3"]) -> Float[Array, "*n x"]:
        """Each layer takes packed pixels; all but the last also pack what they give."""
        scale = partial(scaled, shrink=self.shrink, dtype=DTYPES[self.layers[0].dtype])
        if self.form.scale_first:
            obs, scale = each_seed(partial(in_memory, scale))(obs), lambda pixels: pixels

        def pixels(obs):
            return packed(scale(obs))

        def middle(x, weight):
            return packed(self.form.conv(x, weight))

        inner = len(self.layers) - 1
        products = (self.form.first, *[middle] * inner)[:inner] + (self.form.conv,)
        return encode(products, pixels, self.layers, obs)


def last_side(shrink: int, sides: list[Callable]) -> int:
    """Of what convolutions, each told by the side that it makes of another, leave of an averaged picture."""
    last = reduce(lambda side, smaller: smaller(side), sides, 64 // shrink)
    if not sides or 64 % shrink or last < 1:
        raise UserError(
            f"--shrink {shrink} and {len(sides)} convolutions (--channels) leave nothing of a picture; --shrink must "
            "divide 64, and there must be at least one convolution, but not too many"
        )
    return last


def scaled(obs, shrink: int, dtype, low: int = -1):
    """Pixels in [low, 1], averaged over squares of shrink x shrink."""
    if shrink > 1:
        parts = [obs[..., i::shrink, j::shrink, :] for i in range(shrink) for j in range(shrink)]
        obs = sum(part.astype(jnp.float32) for part in parts) / shrink**2
    return obs.astype(dtype) / (255 / (1 - low)) + low


def in_memory(fn, obs: UInt8[Array, "..."]):
    """fn(obs), finished before it is used. XLA's CPU compiler would join it with the copies into windows, one slow loop
    that scales a pixel anew for each of its windows; it drops an `optimization_barrier`, but keeps a branch, of which
    it cannot know that it is always taken."""
    out = jax.eval_shape(fn, obs)
    always = obs[(0,) * obs.ndim].astype(jnp.int32) < 256
    return jax.lax.cond(always, fn, lambda _: jnp.zeros(out.shape, out.dtype), obs)


def encode(products, pixels, layers: list[Linear], obs) -> Float[Array, "*n x"]:
    """What ReLU layers, each with its product of values and weight, make of the scaled `pixels(obs)`. Pictures pass in
    one row: a library joins ReLU with its convolution only where no reshape is between them."""
    weights = [(layer.weight, layer.bias) for layer in layers]
    y = values(products, pixels, weights, obs.reshape(-1, *obs.shape[-3:]))
    return y.reshape(*obs.shape[:-3], -1).astype(jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def values(products, pixels, weights: list, obs):
    """Of the last layer, (n, H, W, C). A bias that is shorter than a product's channels repeats itself."""
    return forward(products, pixels, weights, obs)[0]


def forward(products, pixels, weights, obs):
    def layers(weights, obs):
        x, found = pixels(obs), []
        for product, (weight, bias) in zip(products, weights, strict=True):
            y = product(x, weight.astype(x.dtype))
            x = jnp.maximum(y + jnp.tile(bias, y.shape[-1] // len(bias)).astype(y.dtype), 0)
            found.append(x)
        return found

    found = each_seed(layers)(weights, obs)
    return found[-1], (weights, obs, found)


def backward(products, pixels, residuals, gradient):
    """Gradients of weights and biases; pixels have none. ReLU's slope is found from its value, by `!= 0`: of `> 0` XLA
    knows that it is the sums' sign as well, keeps them for it, and then joins no ReLU with its convolution. The scaled
    pixels are cheaper to make again than to keep."""

    def layers(weights, obs, found, gradient):
        inputs, gradients = [pixels(obs), *found[:-1]], []
        for product, (weight, bias), x, y in reversed([*zip(products, weights, inputs, found, strict=True)]):
            gradient = jnp.where(y != 0, gradient, 0)
            bias = gradient.astype(jnp.float32).sum(range(gradient.ndim - 1)).reshape(-1, len(bias)).sum(0)
            gradient, weight = jax.vjp(product, x, weight.astype(x.dtype))[1](gradient)
            gradients.append((weight.astype(jnp.float32), bias))
        return gradients[::-1]

    return each_seed(layers)(*residuals, gradient), None


values.defvjp(forward, backward)


def packed(x):
    """Squares of 2x2 pixels of (..., H, W, C) as the channels of one pixel, (..., H / 2, W / 2, 4 C): a convolution of
    kernel 4 and stride 2 is one of kernel 2 and stride 1 on them, which libraries do faster. Odd edges are dropped, as
    the convolution would."""
    *n, h, w, c = x.shape
    h, w = h // 2, w // 2
    x = x[..., : 2 * h, : 2 * w, :].reshape(*n, h, 2, w, 2, c)
    return jnp.moveaxis(x, -4, -3).reshape(*n, h, w, 4 * c)


def patch_conv(x, weight):
    """A convolution of kernel 2 as one matrix product, fast on a CPU: pairs of columns give what they add to the row of
    outputs at their height and to the one above."""
    pairs, outputs = jnp.concatenate([x[..., :-1, :], x[..., 1:, :]], -1), weight.shape[-1]
    y = flat_product(pairs, jnp.concatenate(jnp.split(weight, 2), -1))
    return y[..., :-1, :, :outputs] + y[..., 1:, :, outputs:]


def square_conv(x, weight):
    """`packed(patch_conv(x, weight))` as one product: squares of 2x2 outputs from the 3x3 pixels that they see. That is
    2.25 times the arithmetic, but with few channels, as in the first layer, copies and thin products take longer."""
    *n, height, width, c = x.shape
    h, w = (height - 1) // 2, (width - 1) // 2
    x = jnp.concatenate([x[..., : 2 * w, :].reshape(*n, height, w, 2 * c), x[..., 2 : 2 * w + 1 : 2, :]], -1)
    x = jnp.concatenate([x[..., i : i + 2 * h : 2, :, :] for i in range(3)], -1)
    kernel = weight.reshape(2, 2, c, -1)
    outputs = [jnp.pad(kernel, [(i, 1 - i), (j, 1 - j), (0, 0), (0, 0)]) for i in (0, 1) for j in (0, 1)]
    return flat_product(x, jnp.stack(outputs, 3).reshape(9 * c, -1))


def flat_product(x, weight):
    """x @ weight with all rows in one axis: the gradient of the weight is then a product as a CPU's library takes it,
    where with several axes one side would be turned first."""
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], -1)


def native_conv(x, weight):
    """The same by the library's convolution: fast on a GPU."""
    channels = x.shape[-1]
    kernel, spare = weight.reshape(2, 2, channels, -1), -channels % 8  # the tensor cores take eight channels
    x = jnp.pad(x, [(0, 0), (0, 0), (0, 0), (0, spare)])
    kernel = jnp.pad(kernel, [(0, 0), (0, 0), (0, spare), (0, 0)])
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def wide_conv(x, weight):
    """`packed(native_conv(x, weight))` for the few channels of pixels, as one convolution of packed pixels whose kernel
    has four copies of the weight among zeros: four times the products, of a size that the tensor cores take, and the
    values come out packed."""
    kernel = weight.reshape(2, 2, x.shape[-1], -1)

    def shifted(i, j):
        copy = jnp.pad(kernel, [(i, 2 - i), (j, 2 - j), (0, 0), (0, 0)])
        return packed(jnp.moveaxis(copy, -1, 0))  # (output, 2, 2, 4 channels)

    copies = jnp.stack([shifted(i, j) for i in (0, 1) for j in (0, 1)])
    return native_conv(packed(x), copies.reshape(4 * weight.shape[1], -1).T)


class Form(NamedTuple):
    """How convolutions are computed: any, the first with its values packed, and whether from pixels `in_memory`."""

    conv: Callable
    first: Callable
    scale_first: bool = False


PATCHES = Form(patch_conv, square_conv, scale_first=True)
NATIVE = Form(native_conv, wide_conv)
