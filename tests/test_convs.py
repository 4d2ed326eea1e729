"""Convolutions of any window against plain loops, the sizes of the baselines' encoders, and their first weights."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_nets import double, shapes

from undistracted.agents import sac_nets, told
from undistracted.convs import Conv, Convs, delta_orthogonal, orthogonal_window


def loop_conv(x, weight, kernel, stride):
    x, weight = double(x), double(weight).reshape(kernel, kernel, x.shape[-1], -1)
    h, w = ((n - kernel) // stride + 1 for n in x.shape[:2])
    out = np.zeros((h, w, weight.shape[-1]))
    for i, j, di, dj in itertools.product(range(h), range(w), range(kernel), range(kernel)):
        out[i, j] += x[stride * i + di, stride * j + dj] @ weight[dj, di]
    return out


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("window", [(3, 1), (3, 2), (5, 2), (7, 2)])
def test_convolution_is_the_loop(window, native):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(3, 9, 10, 4)), rng.normal(size=(window[0] ** 2 * 4, 5))
    y = Conv(*window, native)(jnp.float32(x), jnp.float32(weight))
    expected = np.stack([loop_conv(image, weight, *window) for image in x])
    np.testing.assert_allclose(y, expected, atol=1e-4)


@pytest.mark.parametrize(("windows", "size"), [(sac_nets.WINDOWS, 25 * 25 * 32), (told.WINDOWS, 2 * 2 * 32)])
def test_encoders_have_the_published_sizes(tiny, windows, size):
    config = tiny(channels=(32,) * 4)
    convs = shapes(Convs, config, 3, windows, orthogonal_window)
    obs = jax.ShapeDtypeStruct((7, 64, 64, 9), jnp.uint8)
    assert eqx.filter_eval_shape(lambda convs, obs: convs(obs), convs, obs).shape == (7, size) == (7, convs.size)


def test_pixels_are_scaled_from_zero_to_one(tiny, key):
    """A network of positive weights is linear in what it sees: black is zero, and white is twice as far as gray."""
    convs = Convs(tiny(channels=(2, 2)), 1, [(3, 2), (3, 2)], delta_orthogonal, key)
    convs = jax.tree.map(jnp.abs, convs)
    black, gray, white = (convs(jnp.full((64, 64, 3), value, jnp.uint8)) for value in (0, 51, 255))
    assert not black.any() and white.all()
    np.testing.assert_allclose(white, 5 * gray, rtol=1e-5)
    np.testing.assert_allclose(convs.layers[0].weight.sum(0) @ convs.layers[1].weight[8:10], white[:2], rtol=1e-5)


def test_first_weights(key):
    weight = delta_orthogonal(key, 3, 6, 4).reshape(9, 6, 4)
    np.testing.assert_allclose(weight[4].T @ weight[4], 2 * np.eye(4), atol=1e-5)
    assert not np.delete(weight, 4, 0).any()
    weight = orthogonal_window(key, 5, 3, 8)
    np.testing.assert_allclose(weight.T @ weight, 2 * np.eye(8), atol=1e-5)
