"""The encoder and its convolutions against plain loops and plain gradients, for one seed and several."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_nets import PAPER, count, double, shapes

from undistracted.encoder import (
    NATIVE,
    PATCHES,
    Encoder,
    Form,
    in_memory,
    native_conv,
    packed,
    patch_conv,
    scaled,
)


def loop_conv(x, weight):
    """Kernel 4, stride 2, no padding; rows of `weight`: 2x2 block, row and column within the block, channel."""
    x, weight = double(x), double(weight)
    h, w, c = x.shape
    out = np.zeros(((h - 4) // 2 + 1, (w - 4) // 2 + 1, weight.shape[1]))
    for i, j in np.ndindex(out.shape[:2]):
        for di, dj, k in itertools.product(range(4), range(4), range(c)):
            block, within = 2 * (di // 2) + dj // 2, 2 * (di % 2) + dj % 2
            out[i, j] += x[2 * i + di, 2 * j + dj, k] * weight[(4 * block + within) * c + k]
    return out


@pytest.mark.parametrize("conv", [patch_conv, native_conv])
@pytest.mark.parametrize("size", [(8, 8, 3), (9, 11, 2), (8, 8, 8), (9, 11, 9)])
def test_convolutions_are_the_loop(conv, size):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(3, *size)), rng.normal(size=(16 * size[-1], 5))
    y = conv(packed(jnp.float32(x)), jnp.float32(weight))
    expected = np.stack([loop_conv(image, weight) for image in x])
    np.testing.assert_allclose(y, expected, atol=1e-4)


@pytest.mark.parametrize("form", [PATCHES, NATIVE])
def test_the_first_convolution_gives_packed_values(form):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 16, 12, 3)), rng.normal(size=(48, 5))
    y = form.first(packed(jnp.float32(x)), jnp.float32(weight))
    expected = packed(np.stack([loop_conv(image, weight) for image in x]))
    np.testing.assert_allclose(y, expected, atol=1e-4)


@pytest.mark.parametrize(("first", "size"), [
    (PATCHES.first, (6, 6, 12)), (PATCHES.first, (7, 9, 3)), (PATCHES.first, (3, 3, 1)), (NATIVE.first, (6, 8, 3)),
])  # fmt: skip
def test_the_first_convolutions_gradient_is_the_plain_one(first, size):
    rng = np.random.default_rng(0)
    x, weight = jnp.float32(rng.normal(size=(3, *size))), jnp.float32(rng.normal(size=(4 * size[-1], 5)))

    def value_and_gradients(product):
        y, pullback = jax.vjp(product, x, weight)
        return y, *pullback(jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape))

    ours, theirs = value_and_gradients(first), value_and_gradients(lambda x, weight: packed(native_conv(x, weight)))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_encoder_has_the_papers_sizes():
    seen = []

    def conv(x, weight):
        seen.append(x.shape)
        return patch_conv(x, weight)

    encoder = shapes(Encoder, PAPER.channels, form=Form(conv, lambda x, weight: packed(conv(x, weight))))
    obs = jax.ShapeDtypeStruct((7, 5, 64, 64, 3), jnp.uint8)
    out = eqx.filter_eval_shape(lambda encoder, obs: encoder(obs), encoder, obs)
    assert seen == [(35, 32, 32, 12), (35, 15, 15, 128), (35, 7, 7, 256), (35, 3, 3, 512)]
    assert out.shape == (7, 5, 1024) == (7, 5, encoder.size)
    assert count(encoder) == 690_144


def test_pixels_are_scaled_to_unit_range_and_averaged():
    obs = jnp.zeros((64, 64, 3), jnp.uint8).at[0, 0].set(255)
    np.testing.assert_allclose(scaled(obs, 1, jnp.float32)[0, :2, 0], [1, -1], atol=1e-6)
    small = scaled(obs, 2, jnp.float32)
    assert small.shape == (32, 32, 3)
    np.testing.assert_allclose(small[0, :2, 0], [-0.5, -1], atol=1e-6)


def reference(encoder, obs):
    """The encoder as one would write it, with the library's gradient."""
    x = obs / 127.5 - 1
    for layer in encoder.layers:
        x = jax.nn.relu(patch_conv(packed(x), layer.weight) + layer.bias)
    return x.reshape(len(obs), -1)


@pytest.fixture
def pictures(key):
    return jax.random.randint(key, (3, 2, 64, 64, 3), 0, 256).astype(jnp.uint8)


def loss_and_gradient(apply, encoder, obs):
    return eqx.filter_value_and_grad(lambda encoder: (apply(encoder, obs) ** 2).sum())(encoder)


@pytest.mark.parametrize("form", [PATCHES, NATIVE])
def test_gradient_is_the_plain_one(key, pictures, form):
    encoder = Encoder((8, 4, 4, 4), key, form=form)
    ours = loss_and_gradient(lambda encoder, obs: encoder(obs), encoder, pictures[0])
    theirs = loss_and_gradient(reference, encoder, pictures[0])
    assert float(theirs[0]) > 0
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("form", [PATCHES, NATIVE])
def test_several_seeds_are_each_seed_alone(key, pictures, form):
    def run(key, obs):
        return loss_and_gradient(lambda encoder, obs: encoder(obs), Encoder((4, 4, 4, 4), key, form=form), obs)

    keys = jax.random.split(key, 3)
    together = jax.jit(jax.vmap(run))(keys, pictures)
    alone = [jax.jit(run)(*args) for args in zip(keys, pictures, strict=True)]
    for seed in range(3):
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone[seed]), strict=True):
            np.testing.assert_allclose(a[seed], b, rtol=1e-5, atol=1e-6)


def test_a_shared_picture_is_not_mapped(key, pictures):
    encoders = eqx.filter_vmap(lambda key: Encoder((4, 4, 4, 4), key))(jax.random.split(key, 2))
    out = eqx.filter_vmap(lambda encoder: encoder(pictures[0]), in_axes=0)(encoders)
    first = jax.tree.map(lambda x: x[0], encoders)
    np.testing.assert_allclose(out[0], first(pictures[0]), rtol=1e-5)


def test_pixels_are_scaled_once_before_a_cpu_builds_windows_of_them(key):
    """The branch must survive the compiler: without it, scaling is joined with the windows, and three times as slow."""
    obs = jax.random.randint(key, (3, 64, 64, 3), 0, 256).astype(jnp.uint8)
    encoder = Encoder((8, 16, 32), key, shrink=2)
    assert "conditional(" in jax.jit(lambda obs: encoder(obs)).lower(obs).compile().as_text()
    for corner in (0, 255):  # whatever the picture that the branch looks at
        obs = obs.at[0, 0, 0, 0].set(corner)
        pixels = in_memory(lambda obs: scaled(obs, 2, jnp.float32), obs)
        np.testing.assert_array_equal(pixels, scaled(obs, 2, jnp.float32))


def test_a_cpu_turns_no_side_of_a_weights_gradient(key):
    """With rows in several axes, the windows or the gradient would be copied, turned, before they are multiplied: the
    20 x 16 pictures' 7 x 7 outputs would come last in an array."""
    encoder, obs = Encoder((8, 16, 32), key, shrink=2), jnp.zeros((20, 16, 64, 64, 3), jnp.uint8)
    gradient = jax.jit(lambda encoder, obs: eqx.filter_grad(lambda encoder: encoder(obs).sum())(encoder))
    assert "15680]" not in gradient.lower(encoder, obs).compile().as_text()
