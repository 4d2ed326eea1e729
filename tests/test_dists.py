"""The two distributions against closed forms in float64, sampling and numerical integration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from undistracted.dists import Normal, kl, log_prob, squash, unit_nll

MEANS = arrays(np.float32, (4, 3), elements=st.floats(-5, 5, width=32))
STDS = arrays(np.float32, (4, 3), elements=st.floats(0.125, 4, width=32))


def double(*xs):
    return [np.asarray(x, np.float64) for x in xs]


def gaussian(x, mean, std):
    return -0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)


@given(MEANS, STDS, MEANS)
def test_log_prob_is_the_sum_of_gaussian_log_densities(mean, std, x):
    expected = gaussian(*double(x, mean, std)).sum(-1)
    np.testing.assert_allclose(log_prob(Normal(mean, std), x), expected, rtol=1e-5, atol=1e-5)


@given(MEANS, STDS, MEANS, STDS)
def test_kl_is_the_closed_form(mean_p, std_p, mean_q, std_q):
    m, s, n, t = double(mean_p, std_p, mean_q, std_q)
    expected = (np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5).sum(-1)
    actual = kl(Normal(mean_p, std_p), Normal(mean_q, std_q))
    assert actual.shape == (4,)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@given(MEANS, STDS, st.sampled_from(["mean", "std"]), st.integers(0, 2))
def test_kl_is_zero_between_equals_and_positive_otherwise(mean, std, part, i):
    p = Normal(mean, std)
    np.testing.assert_array_equal(kl(p, p), 0)
    moved = p._asdict()
    moved[part] = moved[part].copy()
    moved[part][:, i] += 0.25
    assert (np.asarray(kl(p, Normal(**moved))) > 1e-4).all()
    assert (np.asarray(kl(Normal(**moved), p)) > 1e-4).all()


def test_kl_is_the_expected_log_ratio():
    rng = np.random.default_rng(0)
    p = Normal(np.float32([0.5, -1, 2]), np.float32([0.3, 1, 2]))
    q = Normal(np.float32([0, -1.5, 1]), np.float32([0.8, 0.7, 1.5]))
    x = (p.mean + p.std * rng.normal(size=(100_000, 3))).astype(np.float32)
    ratio = np.asarray(log_prob(p, x) - log_prob(q, x), np.float64)
    error = ratio.std() / np.sqrt(len(ratio))
    assert error < 0.01
    assert abs(ratio.mean() - float(kl(p, q))) < 4 * error


@given(MEANS, st.floats(0.125, 1, width=32), arrays(np.float32, (4, 3), elements=st.floats(-2, 2, width=32)))
def test_squash_density_is_the_change_of_variables(mean, std, noise):
    dist = Normal(mean / 2, np.full_like(mean, std))
    action, density = squash(dist, noise)
    m, s, e = double(*dist, noise)
    x = m + s * e
    np.testing.assert_allclose(action, np.tanh(x), atol=1e-6)
    expected = (gaussian(x, m, s) - np.log1p(-(np.tanh(x) ** 2))).sum(-1)
    np.testing.assert_allclose(density, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.5), (0.7, 1.0), (-1.5, 0.3)])
def test_squash_density_integrates_to_one(mean, std):
    noise = np.linspace(-9, 9, 20_001, dtype=np.float32)[:, None]
    dist = Normal(np.full_like(noise, mean), np.full_like(noise, std))
    density = np.exp(np.asarray(squash(dist, noise)[1], np.float64))
    action = np.tanh(mean + std * noise[:, 0].astype(np.float64))
    assert abs(np.trapezoid(density, action) - 1) < 1e-3


@pytest.mark.parametrize("x", [-40.0, 40.0])
def test_squash_density_stays_exact_where_tanh_saturates(x):
    action, density = squash(Normal(np.float32([x]), np.float32([1])), np.zeros(1, np.float32))
    assert float(action[0]) == np.sign(x)
    log_det = 2 * (np.log(2) - abs(x))  # log(1 - tanh(x)^2) = 2 log 2 - 2 |x| up to exp(-2 |x|)
    np.testing.assert_allclose(density, gaussian(0, 0, 1) - log_det, rtol=1e-6)


def test_unit_nll_is_minus_the_log_density_of_a_unit_gaussian():
    mean, target = np.float32([0, 1, -2]), np.float32([0, 3, 1])
    np.testing.assert_allclose(unit_nll(mean, target), np.array([0, 2, 4.5]) + 0.5 * np.log(2 * np.pi), rtol=1e-6)
