"""Layers against plain loops in float64, and the sizes of the paper's networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.behaviour import Actor
from undistracted.config import Config
from undistracted.gru import GRU, gru_update
from undistracted.nets import MLP, LayerNorm, Linear, Scalar, elu, exact_product, product
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


@pytest.mark.parametrize("merge", [True, False])
def test_gru_is_the_textbook_one(key, merge):
    kx, kh, kg = jax.random.split(key, 3)
    gru, x, h = GRU(3, 4, kg, merge=merge), jax.random.normal(kx, (5, 3)), jax.random.normal(kh, (5, 4))
    from_x = double(x) @ double(gru.inputs.weight) + double(gru.inputs.bias)
    from_h = double(h) @ double(gru.hidden.weight) + double(gru.hidden.bias)
    (xr, xz, xn), (hr, hz, hn) = np.split(from_x, 3, -1), np.split(from_h, 3, -1)
    update = sigmoid(xz + hz)
    expected = (1 - update) * np.tanh(xn + sigmoid(xr + hr) * hn) + update * double(h)
    np.testing.assert_allclose(gru.prepared()(x, h), expected, atol=1e-6)


def test_gru_has_the_textbooks_gradient_and_keeps_five_arrays_for_it(key):
    inputs = jax.random.normal(key, (5, 7, 4))
    weight = jnp.cos(jnp.arange(28.0)).reshape(7, 4)

    def textbook(reset, update, xn, hn, h):
        update = jax.nn.sigmoid(update)
        return (1 - update) * jnp.tanh(xn + jax.nn.sigmoid(reset) * hn) + update * h

    ours, theirs = (jax.value_and_grad(lambda x, f=f: (weight * f(*x)).sum())(inputs) for f in (gru_update, textbook))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-6)
    assert len(jax.tree.leaves(jax.vjp(gru_update, *inputs)[1])) == 5


def test_merged_gru_product_is_the_separate_ones(key):
    kx, kh, kg = jax.random.split(key, 3)
    gru, x, h = GRU(3, 4, kg), jax.random.normal(kx, (5, 3)), jax.random.normal(kh, (5, 4))
    weight, bias = gru.merged()
    merged = jnp.concatenate([x, h], -1) @ weight + bias
    from_x, from_h = gru.inputs(x), gru.hidden(h)
    expected = jnp.concatenate([from_x[:, :8] + from_h[:, :8], from_x[:, 8:], from_h[:, 8:]], -1)
    np.testing.assert_allclose(merged, expected, atol=1e-6)


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


def test_elu_and_its_slope_are_the_librarys():
    x = jnp.array([-50.0, -3.0, -1e-3, 0.0, 1e-3, 2.0, 50.0])
    np.testing.assert_allclose(elu(x, "float32"), jax.nn.elu(x), rtol=1e-6, atol=1e-7)
    slope = jax.vmap(jax.grad(lambda x: elu(x, "float32")))(x)
    np.testing.assert_allclose(slope, jax.vmap(jax.grad(jax.nn.elu))(x), rtol=1e-5, atol=1e-7)


def test_elu_in_bfloat16_keeps_its_slope_to_three_digits():
    x = jnp.linspace(-4, 2, 50)
    assert elu(x, "bfloat16").dtype == jnp.bfloat16
    slope = jax.vmap(jax.grad(lambda x: elu(x, "bfloat16").astype(jnp.float32)))(x)
    np.testing.assert_allclose(slope, jnp.minimum(jnp.exp(x), 1), atol=4e-3)


def test_layer_norm_keeps_its_digits_far_from_zero(key):
    """Where the mean is thousands of deviations away."""
    x = jax.random.normal(key, (5, 50)) + 3000.0
    exact = double(x) - double(x).mean(-1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(LayerNorm(50)(x), exact, atol=2e-3)
    np.testing.assert_allclose(LayerNorm(50)(x - 3000), exact, atol=1e-5)
