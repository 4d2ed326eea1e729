"""The losses of alignment against closed forms on discrete distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.adapt.align import (
    DISTRIBUTION,
    SUPPORT,
    calibration_loss,
    conjugate,
    gradient_penalty,
    lagrangian,
    spread,
)

P = np.array([0.1, 0.2, 0.3, 0.4])  # source
Q = np.array([0.25, 0.25, 0.5, 0.0])  # target, inside the source's support


def objective(f, tau, p=P, q=Q):
    """E_s[tau f] - E_t[f + f^2 / 4] on discrete distributions: `SUPPORT.f_loss` with means weighted by p and q."""
    n = len(p)
    return -SUPPORT.f_loss(n * p * f, jnp.zeros(1), tau) - (q * conjugate(f)).sum()


@jax.jit
def maximum(tau, p=P, q=Q):
    """Over f, by many small steps."""
    f = jax.lax.fori_loop(0, 2000, lambda _, f: f + 0.5 * jax.grad(objective)(f, tau, p, q), jnp.zeros(len(p)))
    return f, objective(f, tau, p, q)


@pytest.mark.parametrize("q", [np.array([0.25, 0.25, 0.25, 0.25]), np.array([0.7, 0.1, 0.1, 0.1])])
def test_the_maximum_over_f_is_the_chi_square_divergence(q):
    f, value = maximum(np.ones(4), P, q)
    np.testing.assert_allclose(value, ((P / q - 1) ** 2 * q).sum(), rtol=1e-4)
    np.testing.assert_allclose(f, 2 * (P / q - 1), atol=1e-3)


def test_the_conjugate_is_flat_below_minus_two():
    np.testing.assert_allclose(conjugate(jnp.array([-5.0, -2.0, 0.0, 2.0])), [-1, -1, 0, 3])
    assert jax.grad(conjugate)(-5.0) == 0


def test_a_target_inside_the_support_costs_nothing_once_tau_is_the_ratio():
    f, value = maximum(Q / P)
    np.testing.assert_allclose(value, 0, atol=1e-6)
    np.testing.assert_allclose(f[:3], 0, atol=1e-3)


def test_a_target_outside_the_support_costs_whatever_tau_is():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    for tau in (np.ones(3), np.array([0.5, 0.5, 9.0])):
        f, value = maximum(tau, p, q)
        assert value >= 0.5 - 1e-6, "the mass outside"
        np.testing.assert_allclose(f[2], -2, atol=1e-3)


def test_distribution_matching_is_the_jensen_shannon_divergence_at_its_best_f():
    p, q = P[:3] / P[:3].sum(), Q[:3]
    f = np.log(p / q)
    # Losses are means; weighted by repeating rows in proportion to the probabilities.
    counts_p, counts_q = (p * 600).round().astype(int), (q * 600).round().astype(int)
    loss = DISTRIBUTION.f_loss(jnp.repeat(f, counts_p), jnp.repeat(f, counts_q), None)
    m = (p + q) / 2
    js = 0.5 * ((p * np.log(p / m)).sum() + (q * np.log(q / m)).sum())
    np.testing.assert_allclose(2 * np.log(2) - loss, 2 * js, rtol=1e-3)


def test_calibration_and_penalty_known_answers():
    np.testing.assert_allclose(calibration_loss(jnp.array([[1.0, 2.0]]), jnp.array([[0.0, 4.0]])), 0.5 * 5)
    slopes = jnp.array([3.0, 4.0])
    np.testing.assert_allclose(gradient_penalty(lambda x: x @ slopes, jnp.ones((7, 2))), 25)


def test_lambda_ascends_while_tau_exceeds_one():
    assert jax.grad(lagrangian)(1.0, jnp.array([2.0, 1.0])) == 0.5
    assert jax.grad(lagrangian)(1.0, jnp.array([0.5, 0.5])) == -0.5


def test_spread_is_the_mean_variance_and_none_for_one_point():
    np.testing.assert_allclose(spread(jnp.array([[[1.0, 5.0]], [[3.0, 5.0]]])), 0.5)
