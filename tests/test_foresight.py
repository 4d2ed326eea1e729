"""Rewards foretold by the prior alone: which rows, from where, by which actions, and what learns from them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.agents.repo import RePo
from undistracted.errors import UserError
from undistracted.foresight import foretold_nll, pieces
from undistracted.nets import elu
from undistracted.rssm import Latent

STEPS = 2


@pytest.fixture(scope="module")
def latents(state, batch):
    rng = np.random.default_rng(1)
    rssm = state.policy.model.rssm
    return Latent(*(jnp.asarray(rng.normal(size=(*batch.first.shape, n)), "float32") for n in rssm.sizes))


def test_pieces_are_side_by_side():
    rows = np.arange(7)[:, None] + 100 * np.arange(2)  # 7 rows of 2 sequences
    assert pieces(rows, 3).tolist() == [[0, 3, 100, 103], [1, 4, 101, 104], [2, 5, 102, 105]]


def test_each_row_is_foretold_from_the_last_latent_before_its_piece(state, latents, batch, key):
    """By a loop over starts and steps; the first sequence's second piece crosses the start of an episode."""
    model = state.policy.model
    got = foretold_nll(model, latents, batch, STEPS, key)
    times = range(STEPS - 1, len(batch.first) - STEPS, STEPS)
    starts = [(t, b) for b in range(batch.first.shape[1]) for t in times]
    noise = jax.random.normal(key, (STEPS, len(starts), model.rssm.sizes[1]))
    expected = np.zeros((STEPS, len(starts)))
    for i, (t, b) in enumerate(starts):
        belief, z = (x[t, b][None] for x in latents)
        for k in range(STEPS):
            if batch.first[t + 1 + k, b]:
                break
            inputs = jnp.concatenate([z, batch.action[t + 1 + k, b][None]], -1)
            belief = model.rssm.gru.prepared()(elu(model.rssm.inputs(inputs), "float32"), belief)
            prior = model.rssm.prior(belief)
            z = prior.mean + prior.std * noise[k, i]
            error = model.reward(Latent(belief, z).features)[0] - batch.reward[t + 1 + k, b]
            expected[k, i] = 0.5 * error**2 + 0.5 * np.log(2 * np.pi)
    assert got.shape == expected.shape
    assert (expected == 0).sum() == 1  # row 3 of the first sequence is an episode's first, and the last of its piece
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_nothing_is_told_beyond_an_episode(state, latents, batch, key):
    """What follows a first row within a piece has no part in the loss, nor in what is learned from it."""
    first = batch.first.at[2, 1].set(True)  # the first row of a piece of rows 2 and 3
    loss = foretold_nll(state.policy.model, latents, batch._replace(first=first), STEPS, key)
    piece = (len(first) - STEPS) // STEPS  # the second sequence's first
    assert loss[:, piece].tolist() == [0, 0]
    assert loss[:, piece + 1].all()


def test_the_prior_learns_from_rewards(tiny, batch, key):
    """At no price it learns nothing without foresight, and encoder, posterior and prior learn with it."""

    def gradient(steps):
        model = RePo(tiny(foresight=steps, beta0=1e-30), batch.action.shape[-1], jax.random.key(0))
        names = ["reward", "foresight"] if steps else ["reward"]
        assert set(model.losses(batch, key)[1]) == {*names, "bottleneck", "dual"}
        by = "foresight" if steps else "reward"
        return eqx.filter_grad(lambda m: m.losses(batch, key)[1][by].mean())(model)

    prior = lambda model: np.abs(model.rssm.prior_out.weight).max()  # noqa: E731
    blind, told = gradient(0), gradient(STEPS)
    assert prior(blind) == 0 < prior(told)
    for weight in (told.rssm.posterior_out.weight, told.encoder.layers[0].weight):
        assert np.abs(weight).max() > 0


def test_foresight_needs_two_pieces(tiny):
    assert tiny(foresight=4).foresight == 4
    with pytest.raises(UserError, match="--foresight 5 .* sequence of 8 rows; use --foresight 4 or less"):
        tiny(foresight=5)
