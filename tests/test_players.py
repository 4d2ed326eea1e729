"""The game of alignment: where it leads, the signs of every player's step, and what the players are made of."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.tree_utils import tree_get

from undistracted.adapt.align import DISTRIBUTION, SUPPORT, Aligner, Rates, Rows, gradient_penalty
from undistracted.adapt.networks import Dual, Reweighting


class Shift(eqx.Module):
    """The simplest encoder: adds an offset."""

    offset: jax.Array

    def __call__(self, obs):
        return obs + self.offset


def rows(key, target_at=3.0):
    source, target = jax.random.normal(key, (2, 64, 2))
    return Rows(source, target + target_at, jnp.zeros((4, 2)), jnp.ones((4, 2)))


def play(aligner, encoder, batch, n, key, **sizes):
    """Encoder and players after n steps, with the players at the start and the log, n long."""
    begin = aligner.init(encoder, 2, key, hidden=16, **sizes)

    def step(state, key):
        *state, metrics = aligner.step(*state, batch, key)
        return tuple(state), metrics

    loop = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys))
    (encoder, players), log = loop((encoder, begin), jax.random.split(key, n))
    return encoder, players, begin, log


FAST = Rates(encoder=1e-2, tau=1e-2, f=1e-2, multiplier=1e-2)


@pytest.mark.parametrize("divergence", [SUPPORT, DISTRIBUTION])
def test_the_game_moves_the_target_onto_the_source(key, optimised, divergence):
    batch = rows(key)._replace(paired_source=None, paired_target=None)
    encoder, _, _, log = play(Aligner(divergence, FAST), Shift(jnp.zeros(2)), batch, 400, key)
    assert (encoder.offset < -1).all(), "towards the source, three to the lower left"
    assert (log.keys() >= {"tau", "lambda"}) == (divergence is SUPPORT)


def test_calibration_alone_recovers_the_offset_and_touches_nothing_else(key):
    encoder, players, begin, log = play(Aligner(None, FAST), Shift(jnp.zeros(2)), rows(key), 300, key)
    np.testing.assert_allclose(encoder.offset, -1, atol=0.05)
    assert log["calibration_loss"][-1] < 0.01 * log["calibration_loss"][0]
    for name in ("f", "tau", "multiplier", "kl_multiplier"):
        for a, b in zip(jax.tree.leaves(getattr(begin, name)), jax.tree.leaves(getattr(players, name)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_tau_falls_where_f_is_high_and_lambda_holds_its_mean(key, optimised):
    """tau minimises E[tau f]: beside a target that covers half the source, it leaves the other half."""
    source = jax.random.uniform(key, (256, 2), minval=-1, maxval=1)
    batch = Rows(source, source * jnp.array([0.5, 1.0]) - jnp.array([0.5, 0.0]))
    aligner = Aligner(SUPPORT, FAST._replace(encoder=0.0), penalty=0.1, budget=3.0)
    _, players, _, log = play(aligner, Shift(jnp.zeros(2)), batch, 800, key)
    tau = players.tau(source)
    left = source[:, 0] < 0
    assert tau[left].mean() > 2 * tau[~left].mean()
    assert 0.7 < log["tau"][-1] < 1.3


def support_game(f_s, f_t, tau_s):
    """What f minimises, and what the encoder does."""
    return (f_t + f_t**2 / 4).mean() - (tau_s * f_s).mean(), -(f_t + f_t**2 / 4).mean()


def distribution_game(f_s, f_t, tau_s):
    return jnp.log1p(jnp.exp(-f_s)).mean() + jnp.log1p(jnp.exp(f_t)).mean(), jnp.log1p(jnp.exp(-f_t)).mean()


@pytest.mark.parametrize("divergence, game, turns", [(SUPPORT, support_game, 4), (DISTRIBUTION, distribution_game, 2)])
def test_every_player_follows_its_loss(key, divergence, game, turns):
    """In turn f, the encoder, tau and lambda: Adam's first moments are a tenth of the gradients of the losses as they
    are written in docs/adaptation.md, and its first steps are of its rate, downhill."""
    batch, encoder = rows(key), Shift(jnp.array([1.0, -2.0]))
    weights = dict(alignment=0.7, calibration=1.5, dynamics=0.3, penalty=0.4, budget=0.2)
    aligner = Aligner(divergence, Rates(1e-3, 2e-3, 0.1, 4e-3), **weights)
    before = aligner.init(encoder, 2, key, hidden=8, code=4)._replace(multiplier=jnp.float32(0.5))
    step = jax.jit(lambda *args: aligner.step(*args, lambda x: (x**2).mean()))
    moved, after, metrics = step(encoder, before, batch, key)
    zero = jnp.zeros(1)
    f_key, encoder_key, tau_key = jax.random.split(key, 3)
    source_key, target_key = jax.random.split(f_key)
    tau_s = before.tau(batch.source)

    def f_loss(f):
        (f_s, kl_s), (f_t, kl_t) = f(batch.source, source_key), f(encoder(batch.target), target_key)
        penalty = gradient_penalty(lambda x: f(x, source_key)[0], batch.source)
        kl = (kl_s.mean() + kl_t.mean()) / 2
        return game(f_s, f_t, tau_s)[0] + 0.4 * penalty + 0.1 * (kl - 0.2), kl

    def encoder_loss(encoder):
        x, pairs = encoder(batch.target), encoder(batch.paired_target)
        calibration = 0.5 * ((batch.paired_source - pairs) ** 2).sum(-1).mean()
        return 0.7 * game(zero, after.f(x, encoder_key)[0], zero)[1] + 1.5 * calibration + 0.3 * (x**2).mean()

    def tau_loss(tau):
        tau_s, f_s = tau(batch.source), after.f(batch.source, tau_key)[0]
        return (tau_s * f_s).mean() + 0.5 * (tau_s.mean() - 1)

    @jax.jit
    def gradients():
        f, kl = jax.grad(f_loss, has_aux=True)(before.f)
        return [f, jax.grad(encoder_loss)(encoder), jax.grad(tau_loss)(before.tau), 1 - tau_s.mean()], kl

    found, kl = gradients()
    named = zip(("f", "encoder", "tau", "multiplier"), found, (0.1, 1e-3, 2e-3, 4e-3), strict=True)
    old, new = before._asdict() | {"encoder": encoder}, after._asdict() | {"encoder": moved}
    for name, gradient, rate in list(named)[:turns]:
        leaves = map(jax.tree.leaves, (tree_get(after.moments[name], "mu"), gradient, old[name], new[name]))
        for moment, slope, x, y in jax.device_get(list(zip(*leaves, strict=True))):
            np.testing.assert_allclose(moment, 0.1 * slope, rtol=1e-3, atol=1e-6, err_msg=name)
            steep = np.abs(slope) > 1e-4
            np.testing.assert_allclose((y - x)[steep], (-rate * np.sign(slope))[steep], rtol=1e-2)
        assert max(np.abs(slope).max() for slope in jax.tree.leaves(gradient)) > 1e-2
    np.testing.assert_allclose(after.kl_multiplier, 0.1 + 5e-3 * (kl - 0.2), rtol=1e-5)
    if turns == 2:
        jax.tree.map(np.testing.assert_array_equal, before[1:3], after[1:3])
    np.testing.assert_allclose(metrics["target_spread"], np.asarray(batch.target).var(0).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["source_spread"], np.asarray(batch.source).var(0).mean(), rtol=1e-5)


def test_the_bottlenecks_multiplier_is_never_negative(key):
    aligner, encoder = Aligner(SUPPORT, budget=1e6), Shift(jnp.zeros(2))
    players = aligner.init(encoder, 2, key, hidden=8, code=4)
    turn = jax.jit(lambda players, batch: aligner._f_turn(players, batch.source, batch.target, key)[0])
    assert turn(players, rows(key)).kl_multiplier == 0


def test_f_sees_a_noisy_code_and_pays_for_it(key):
    """A code of mean (1, -2) and std (1, e) whatever x is: its KL is known, and what f makes of it with its noise."""
    f = Dual(2, key, hidden=8, code=2)
    last = f.encoder.layers[-1]
    f = eqx.tree_at(lambda f: (f.encoder.layers[-1].weight, f.encoder.layers[-1].bias), f,
                    (0 * last.weight, jnp.array([1.0, -2.0, 0.0, 1.0])))  # fmt: skip
    value, kl = f(jnp.ones((500, 2)), key)
    np.testing.assert_allclose(kl, 0.5 * (1 + 4 + np.e**2 - 1 - 2), rtol=1e-5)
    code = np.array([1, -2]) + np.array([1, np.e]) * jax.random.normal(key, (500, 2))
    seen = np.where(code > 0, code, 0.01 * code)
    np.testing.assert_allclose(value, (seen @ f.out.weight + f.out.bias)[:, 0], rtol=1e-4, atol=1e-5)


def test_tau_is_the_exponential_of_its_network(key):
    tau = Reweighting(1, key, hidden=1, depth=1)
    weights = [jnp.ones((1, 1)), jnp.zeros(1), jnp.full((1, 1), 2.0), jnp.full(1, -0.5)]
    tau = jax.tree.unflatten(jax.tree.structure(tau), weights)
    np.testing.assert_allclose(tau(jnp.array([[3.0], [-3.0]])), np.exp([2 * 3 - 0.5, -0.5]), rtol=1e-5)
