"""Layers against plain loops in float64, and the sizes of the paper's networks."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.behaviour import Actor
from undistracted.config import Config
from undistracted.nets import (
    GRU,
    MLP,
    Encoder,
    Linear,
    Scalar,
    elu,
    exact_product,
    native_conv,
    patch_conv,
    product,
    relu,
)
from undistracted.rssm import RSSM

PAPER = Config("distracted/walker-walk")
FEATURES = PAPER.belief + PAPER.state


def count(module) -> int:
    return sum(x.size for x in jax.tree.leaves(module))


def shapes(build, *args, **kwargs):
    """The module that `build` would make, without making it."""
    return eqx.filter_eval_shape(lambda key: build(*args, key=key, **kwargs), jax.random.key(0))


def double(x):
    return np.asarray(x, np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


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
    x, weight = rng.normal(size=(2, 3, *size)), rng.normal(size=(16 * size[-1], 5))
    y = conv(jnp.float32(x), jnp.float32(weight))
    expected = np.stack([[loop_conv(image, weight) for image in images] for images in x])
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_encoder_has_the_papers_sizes():
    seen = []

    def conv(x, weight):
        seen.append(x.shape)
        return patch_conv(x, weight)

    encoder = shapes(Encoder, PAPER.channels, conv=conv)
    obs = jax.ShapeDtypeStruct((7, 5, 64, 64, 3), jnp.uint8)
    out = eqx.filter_eval_shape(lambda encoder, obs: encoder(obs), encoder, obs)
    assert seen == [(7, 5, 64, 64, 3), (7, 5, 31, 31, 32), (7, 5, 14, 14, 64), (7, 5, 6, 6, 128)]
    assert out.shape == (7, 5, 1024) == (7, 5, encoder.size)
    assert count(encoder) == 690_144


def test_encoder_scales_pixels_to_unit_range(key):
    seen = []
    encoder = Encoder((1, 1, 1, 1), key, conv=lambda x, weight: (seen.append(x), patch_conv(x, weight))[1])
    encoder(jnp.zeros((64, 64, 3), jnp.uint8).at[0, 0].set(255))
    np.testing.assert_allclose(seen[0][0, :2, 0], [1, -1], atol=1e-6)


def test_encoders_agree_in_value_and_gradient(key):
    obs = jax.random.randint(key, (2, 64, 64, 3), 0, 256).astype(jnp.uint8)

    @eqx.filter_jit
    def run(encoder):
        loss = eqx.filter_value_and_grad(lambda encoder: (encoder(obs) ** 2).sum())
        return encoder(obs), *loss(encoder)

    results = [run(Encoder((4, 4, 4, 4), key, conv=conv)) for conv in (patch_conv, native_conv)]
    leaves = [jax.tree.leaves(r) for r in results]
    assert float(results[0][1]) > 0
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_heads_have_the_papers_sizes():
    assert count(shapes(Scalar, FEATURES, PAPER.hidden, 3)) == 126_801
    assert count(shapes(Actor, FEATURES, 6, hidden=PAPER.hidden, dtype="float32")) == 169_212


def test_rssm_has_the_papers_size():
    sizes = dict(belief=PAPER.belief, state=PAPER.state, hidden=PAPER.hidden)
    assert count(shapes(RSSM, 6, 1024, **sizes, dtype="float32")) == 557_920


def test_mlp_is_elu_layers_and_a_linear_output(key):
    mlp, x = MLP(3, 4, 2, 5, key), jax.random.normal(key, (6, 3))
    y = double(x)
    for layer in mlp.layers[:-1]:
        y = y @ double(layer.weight) + double(layer.bias)
        y = np.where(y > 0, y, np.expm1(y))
    y = y @ double(mlp.layers[-1].weight) + double(mlp.layers[-1].bias)
    assert len(mlp.layers) == 3
    np.testing.assert_allclose(mlp(x), y, atol=1e-5)


def test_scalar_drops_the_last_axis(key):
    scalar, x = Scalar(3, 4, 2, key), jax.random.normal(key, (6, 2, 3))
    np.testing.assert_array_equal(scalar(x), scalar.mlp(x)[:, :, 0])


def test_initial_weights_and_biases_are_uniform_in_the_fan_in(key):
    layer = Linear(100, 400, key)
    for x in (layer.weight, layer.bias):
        assert np.abs(x).max() <= 0.1
        assert np.abs(x).max() > 0.099
        assert abs(float(x.std()) - 0.1 / np.sqrt(3)) < 0.005


def test_gru_is_the_textbook_one(key):
    kx, kh, kg = jax.random.split(key, 3)
    gru, x, h = GRU(3, 4, kg), jax.random.normal(kx, (5, 3)), jax.random.normal(kh, (5, 4))
    from_x = double(x) @ double(gru.inputs.weight) + double(gru.inputs.bias)
    from_h = double(h) @ double(gru.hidden.weight) + double(gru.hidden.bias)
    (xr, xz, xn), (hr, hz, hn) = np.split(from_x, 3, -1), np.split(from_h, 3, -1)
    update = sigmoid(xz + hz)
    expected = (1 - update) * np.tanh(xn + sigmoid(xr + hr) * hn) + update * double(h)
    np.testing.assert_allclose(gru(x, h), expected, atol=1e-6)


def test_merged_gru_product_is_the_separate_ones(key):
    kx, kh, kg = jax.random.split(key, 3)
    gru, x, h = GRU(3, 4, kg), jax.random.normal(kx, (5, 3)), jax.random.normal(kh, (5, 4))
    weight, bias = gru.merged()
    merged = jnp.concatenate([x, h], -1) @ weight + bias
    from_x, from_h = gru.inputs(x), gru.hidden(h)
    expected = jnp.concatenate([from_x[:, :8] + from_h[:, :8], from_x[:, 8:], from_h[:, 8:]], -1)
    np.testing.assert_allclose(merged, expected, atol=1e-6)
    np.testing.assert_array_equal(gru(x, h, (weight, bias)), gru(x, h))


def test_products_run_in_bfloat16_and_return_float32(key):
    x, weight = jax.random.normal(key, (8, 64)), jax.random.normal(key, (64, 8))
    half, full = product(x, weight, "bfloat16"), product(x, weight, "float32")
    assert half.dtype == full.dtype == jnp.float32
    rounded = double(x.astype(jnp.bfloat16)) @ double(weight.astype(jnp.bfloat16))
    np.testing.assert_allclose(full, double(x) @ double(weight), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(half, rounded, rtol=2**-7, atol=0.05)
    assert np.abs(half - full).max() > 1e-3


def test_outputs_are_not_rounded_to_bfloat16():
    x, weight = jnp.full((1, 2), 85.0), jnp.array([[2.0], [0.003]])  # 170.255, between two bfloat16 numbers
    assert float(product(x, weight, "bfloat16")[0, 0]) in (170.0, 171.0)
    np.testing.assert_allclose(exact_product(x, weight, "bfloat16"), 170.255, rtol=1e-5)


def test_unrounded_products_have_the_gradient_of_the_rounded(key):
    x, weight, y = (jax.random.normal(key, shape) for shape in [(5, 3), (3, 4), (5, 4)])

    def gradient(product):
        return jax.grad(lambda x, weight: (product(x, weight, "bfloat16") * y).sum(), (0, 1))(x, weight)

    for a, b in zip(gradient(product), gradient(exact_product), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("ours, theirs", [(lambda x: elu(x, "float32"), jax.nn.elu), (relu, jax.nn.relu)])
def test_activations_and_their_slopes_are_the_librarys(ours, theirs):
    x = jnp.array([-50.0, -3.0, -1e-3, 0.0, 1e-3, 2.0, 50.0])
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(ours))(x), jax.vmap(jax.grad(theirs))(x), rtol=1e-5, atol=1e-7)


def test_elu_in_bfloat16_keeps_its_slope_to_three_digits():
    x = jnp.linspace(-4, 2, 50)
    assert elu(x, "bfloat16").dtype == jnp.bfloat16
    slope = jax.vmap(jax.grad(lambda x: elu(x, "bfloat16").astype(jnp.float32)))(x)
    np.testing.assert_allclose(slope, jnp.minimum(jnp.exp(x), 1), atol=4e-3)
