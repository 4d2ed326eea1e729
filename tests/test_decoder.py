"""The decoder and its transposed convolutions against plain loops and plain gradients, and the pixels' likelihood."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_nets import FEATURES, PAPER, count, double, shapes

from undistracted.decoder import Decoder, image_nll, native_deconv, patch_deconv, to_picture
from undistracted.encoder import scaled
from undistracted.errors import UserError

CONVS = pytest.mark.parametrize("conv", [patch_deconv, native_deconv])


def loop_deconv(x, weight):
    """Each pixel adds its window, times its value, to the picture; the next pixel's is two further on."""
    x, weight = double(x), double(weight)
    h, w, _ = x.shape
    _, k, _, m = weight.shape
    out = np.zeros((2 * (h - 1) + k, 2 * (w - 1) + k, m))
    for i, j in np.ndindex(h, w):
        out[2 * i : 2 * i + k, 2 * j : 2 * j + k] += np.einsum("c,cklm->klm", x[i, j], weight)
    return out


@CONVS
@pytest.mark.parametrize("kernel", [4, 5, 6])
@pytest.mark.parametrize("size", [(1, 1, 7), (2, 5, 3)])
def test_transposed_convolutions_are_the_loop(conv, kernel, size):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 3, *size)), rng.normal(size=(size[-1], kernel, kernel, 5))
    expected = np.stack([[loop_deconv(image, weight) for image in images] for images in x])
    np.testing.assert_allclose(conv(jnp.float32(x), jnp.float32(weight)), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "shrink", "sides"),
    [(PAPER.channels, 1, [1, 5, 13, 30]), ((8, 16, 32), 2, [1, 5, 14]), ((4, 8), 4, [1, 6])],
)
def test_decoder_ends_at_the_size_of_the_picture(channels, shrink, sides):
    seen = []

    def conv(x, weight):
        seen.append(x.shape)
        return patch_deconv(x, weight)

    decoder = shapes(Decoder, FEATURES, 1024, channels, shrink=shrink, conv=conv, outputs=6)
    out = eqx.filter_eval_shape(lambda d, x: d(x), decoder, jax.ShapeDtypeStruct((7, 5, FEATURES), jnp.float32))
    assert out.shape == (7, 5, 64 // shrink, 64 // shrink, 6) and out.dtype == jnp.float32
    inputs = [1024, *channels[-2::-1]]
    assert seen == [(7, 5, side, side, c) for side, c in zip(sides, inputs, strict=True)]


def test_paper_size_in_parameters():
    layers = [FEATURES * 1024 + 1024, 1024 * 25 * 128 + 128, 128 * 25 * 64 + 64, 64 * 36 * 32 + 32, 32 * 36 * 3 + 3]
    assert count(shapes(Decoder, FEATURES, 1024, PAPER.channels)) == sum(layers)


def test_sizes_without_a_decoder(key):
    with pytest.raises(UserError, match="no decoder has 4 channels at shrink 2; choose 4 channels at shrink 1, 3"):
        Decoder(3, 4, (4, 4, 4, 4), key, shrink=2)


def reference(decoder, features):
    """The decoder as one would write it, with the library's gradient."""
    x = features @ decoder.inputs.weight + decoder.inputs.bias
    x = jax.nn.relu(x) if decoder.relu else x
    x = x[:, None, None]
    for i, layer in enumerate(decoder.layers):
        n, h, w, _ = x.shape
        _, k, _, m = layer.weight.shape
        y = jnp.zeros((n, 2 * (h - 1) + k, 2 * (w - 1) + k, m))
        for a, b in np.ndindex(k, k):
            y = y.at[:, a : a + 2 * h - 1 : 2, b : b + 2 * w - 1 : 2].add(x @ layer.weight[:, a, b])
        x = y + layer.bias
        x = jax.nn.relu(x) if i + 1 < len(decoder.layers) else x
    return x


def loss_and_gradient(apply, decoder, features):
    def loss(both):
        picture = apply(*both)
        return (jnp.cos(3 * picture) * jnp.arange(picture.size).reshape(picture.shape) / picture.size).sum()

    return eqx.filter_value_and_grad(loss)((decoder, features))


def make(key, conv, relu=False, dtype="float32"):
    return Decoder(3, 8, (8, 4, 8), key, dtype, shrink=2, conv=conv, relu=relu)


@CONVS
@pytest.mark.parametrize("relu", [False, True])
def test_value_and_gradient_are_the_plain_ones(key, conv, relu):
    decoder, features = make(key, conv, relu), 3 * jax.random.normal(key, (2, 3))
    np.testing.assert_allclose(decoder(features), reference(decoder, features), atol=1e-5)
    ours = loss_and_gradient(lambda decoder, x: decoder(x), decoder, features)
    theirs = loss_and_gradient(reference, decoder, features)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


@CONVS
def test_several_seeds_are_each_seed_alone(key, conv):
    def run(key, features):
        return loss_and_gradient(lambda decoder, x: decoder(x), make(key, conv), features)

    keys, features = jax.random.split(key, 3), jax.random.normal(key, (3, 2, 3))
    together = jax.jit(jax.vmap(run))(keys, features)
    for seed in range(3):
        alone = jax.jit(run)(keys[seed], features[seed])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[seed], b, rtol=1e-4, atol=1e-5)


def test_bfloat16_tells_the_same_picture(key):
    features = jax.random.normal(key, (5, 3))
    exact, rough = (make(key, patch_deconv, dtype=dtype)(features) for dtype in ("float32", "bfloat16"))
    assert rough.dtype == jnp.float32
    assert 0 < np.abs(exact - rough).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize(("side", "std"), [(64, 1.0), (64, 2.0), (32, 1.0)])
def test_likelihood_of_the_pixels(side, std):
    """The Gaussian's, in closed form, summed over all pixels and channels of the (averaged) picture."""
    rng = np.random.default_rng(0)
    obs, mean = rng.integers(0, 256, (2, 3, 64, 64, 3), np.uint8), rng.normal(size=(2, 3, side, side, 3))
    pixels = double(obs).reshape(2, 3, side, 64 // side, side, 64 // side, 3).mean((3, 5)) / 127.5 - 1
    density = np.exp(-0.5 * ((pixels - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(image_nll(jnp.float32(mean), obs, std), -np.log(density).sum((2, 3, 4)), rtol=1e-5)


def test_a_deviation_of_two_is_the_unit_one_of_half_the_range(key):
    obs = jax.random.randint(key, (1, 64, 64, 3), 0, 256).astype(jnp.uint8)
    mean = jax.random.normal(key, (1, 64, 64, 3))
    gradient = jax.grad(lambda mean: image_nll(mean, obs, 2.0).sum())(mean)
    halved = (mean / 2 - (obs / 255 - 0.5)) / 2  # of 0.5 (m / 2 - o)^2
    np.testing.assert_allclose(gradient, halved, atol=1e-5)


def test_a_picture_survives_scaling_and_back(key):
    obs = jax.random.randint(key, (2, 64, 64, 3), 0, 256).astype(jnp.uint8)
    np.testing.assert_array_equal(to_picture(scaled(obs, 1, jnp.float32)), obs)
    flat = jnp.full((1, 64, 64, 3), 77, jnp.uint8)
    np.testing.assert_array_equal(to_picture(scaled(flat, 4, jnp.float32)), flat)
    assert to_picture(jnp.array([[[[-9.0, 0, 9]]]]))[0, 0, 0].tolist() == [0, 128, 255]
