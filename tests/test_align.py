"""The support constraint against closed forms on discrete distributions, and the signs of every player's step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.adapt.align import (
    DISTRIBUTION,
    SUPPORT,
    Aligner,
    Rates,
    Rows,
    calibration_loss,
    conjugate,
    gradient_penalty,
    lagrangian,
    spread,
)
from undistracted.adapt.networks import Dual

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


class Shift(eqx.Module):
    """The simplest encoder: adds an offset."""

    offset: jax.Array

    def __call__(self, obs):
        return obs + self.offset


def rows(key, target_at=3.0):
    source, target = jax.random.normal(key, (2, 64, 2))
    return Rows(source, target + target_at, jnp.zeros((4, 2)), jnp.ones((4, 2)))


def play(aligner, encoder, batch, n, key, **sizes):
    """Encoder and players after n steps, with the players at the start and the log."""
    begin = players = aligner.init(encoder, 2, key, hidden=16, **sizes)
    step, log = jax.jit(aligner.step), []
    for i in range(n):
        encoder, players, metrics = step(encoder, players, batch, jax.random.key(i))
        log.append(jax.device_get(metrics))
    return encoder, players, begin, log


FAST = Rates(encoder=1e-2, tau=1e-2, f=1e-2, multiplier=1e-2)


@pytest.mark.parametrize("divergence", [SUPPORT, DISTRIBUTION])
def test_the_game_moves_the_target_onto_the_source(key, divergence):
    batch = rows(key)._replace(paired_source=None, paired_target=None)
    encoder, _, _, log = play(Aligner(divergence, FAST), Shift(jnp.zeros(2)), batch, 400, key)
    assert (encoder.offset < -1).all(), "towards the source, three to the lower left"
    assert (log[-1].keys() >= {"tau", "lambda"}) == divergence.reweighted


def test_calibration_alone_recovers_the_offset_and_touches_nothing_else(key):
    encoder, players, begin, log = play(Aligner(None, FAST), Shift(jnp.zeros(2)), rows(key), 300, key)
    np.testing.assert_allclose(encoder.offset, -1, atol=0.05)
    assert log[-1]["calibration_loss"] < 0.01 * log[0]["calibration_loss"]
    for name in ("f", "tau", "multiplier", "kl_multiplier"):
        for a, b in zip(jax.tree.leaves(getattr(begin, name)), jax.tree.leaves(getattr(players, name)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_one_step_of_the_encoder_is_that_of_its_losses(key):
    """The gradient through the encodings equals that of the whole loss in the encoder's parameters."""
    aligner, batch, encoder = Aligner(SUPPORT, Rates(f=0.0), dynamics=0.5), rows(key), Shift(jnp.array([1.0, -2.0]))
    players = aligner.init(encoder, 2, key, hidden=16)
    noise = jax.random.split(key, 3)[1]

    def loss(encoder):
        x, pairs = encoder(batch.target), encoder(batch.paired_target)
        f = players.f(x, noise)[0]
        return -conjugate(f).mean() + calibration_loss(batch.paired_source, pairs) + 0.5 * (x**2).mean()

    after = aligner.step(encoder, players, batch, key, lambda x: (x**2).mean())[0]
    gradient = jax.grad(loss)(encoder).offset
    assert (abs(gradient) > 1e-3).all()
    np.testing.assert_allclose(after.offset - encoder.offset, -3e-4 * jnp.sign(gradient), rtol=1e-2)  # Adam's first


def test_tau_falls_where_f_is_high_and_lambda_holds_its_mean(key):
    """tau minimises E[tau f]: beside a target that covers half the source, it leaves the other half."""
    source = jax.random.uniform(key, (256, 2), minval=-1, maxval=1)
    batch = Rows(source, source * jnp.array([0.5, 1.0]) - jnp.array([0.5, 0.0]))
    aligner = Aligner(SUPPORT, FAST._replace(encoder=0.0), penalty=0.1, budget=3.0)
    _, players, _, log = play(aligner, Shift(jnp.zeros(2)), batch, 800, key)
    tau = players.tau(source)
    left = source[:, 0] < 0
    assert tau[left].mean() > 2 * tau[~left].mean()
    assert 0.7 < log[-1]["tau"] < 1.3


def test_each_player_steps_the_way_it_should(key):
    """One step each: f raises the game's value, tau lowers it, lambda follows E[tau] - 1."""
    batch, encoder, aligner = rows(key), Shift(jnp.zeros(2)), Aligner(SUPPORT, Rates(encoder=0.0), penalty=0.0)
    before = aligner.init(encoder, 2, key, hidden=16)._replace(kl_multiplier=jnp.float32(0))
    _, after, metrics = aligner.step(encoder, before, batch, key)
    f_key, _, tau_key = jax.random.split(key, 3)

    def value(f, tau):
        source_key, target_key = jax.random.split(f_key)
        return (tau(batch.source) * f(batch.source, source_key)[0]).mean() - conjugate(
            f(batch.target, target_key)[0]
        ).mean()

    def price(tau):
        return (tau(batch.source) * after.f(batch.source, tau_key)[0]).mean()

    assert value(after.f, before.tau) > value(before.f, before.tau)
    assert price(after.tau) < price(before.tau)
    np.testing.assert_allclose(after.multiplier - before.multiplier, 5e-3 * jnp.sign(metrics["tau"] - 1), rtol=1e-3)


@pytest.mark.parametrize("budget, sign", [(0.0, 1), (1e6, -1)])
def test_the_bottlenecks_multiplier_moves_against_the_violation(key, budget, sign):
    _, players, begin, _ = play(Aligner(SUPPORT, budget=budget), Shift(jnp.zeros(2)), rows(key), 1, key)
    assert jnp.sign(players.kl_multiplier - begin.kl_multiplier) == sign
    assert players.kl_multiplier >= 0


def test_the_bottlenecks_kl_is_that_of_its_code(key):
    f = Dual(2, key, hidden=8, code=3)
    f = eqx.tree_at(lambda f: f.encoder.layers[-1].weight, f, jnp.zeros((8, 6)))
    f = eqx.tree_at(lambda f: f.encoder.layers[-1].bias, f, jnp.array([1.0, 2.0, 0.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(f(jnp.ones((5, 2)), key)[1], 0.5 * (1 + 4), rtol=1e-6)


def test_spread_is_the_mean_variance_and_none_for_one_point():
    np.testing.assert_allclose(spread(jnp.array([[[1.0, 5.0]], [[3.0, 5.0]]])), 0.5)
