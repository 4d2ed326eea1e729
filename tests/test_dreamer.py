"""Dreamer's objective, who learns from which of its terms, and the published settings that it shares with others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_nets import count, double, shapes
from test_repo import zero

from undistracted.agents import make_agent
from undistracted.agents.dreamer import Dreamer
from undistracted.agents.model import free
from undistracted.behaviour import Actor, behaviour_losses, dream
from undistracted.decoder import image_nll
from undistracted.dists import kl
from undistracted.presets import preset_config
from undistracted.rssm import Latent

PARTS = ("encoder", "rssm", "reward", "decoder")
SIZES = dict(channels=(4, 8), shrink=4)  # pictures of 16x16: quick to compile and to learn from


def term_gradients(model, batch, key) -> tuple[dict, dict]:
    """The mean of each term of a model's objective, and its gradient."""

    @eqx.filter_jit
    def run(model):
        def means(model):
            losses = model.losses(batch, key)[1]
            return jnp.stack([loss.mean() for loss in losses.values()]), tuple(losses)

        values, pullback, names = eqx.filter_vjp(means, model, has_aux=True)
        return values, jax.vmap(pullback)(jnp.eye(len(values))), names

    values, (gradients,), names = run(model)
    return dict(zip(names, values, strict=True)), {
        name: jax.tree.map(lambda g, i=i: g[i], gradients) for i, name in enumerate(names)
    }


@pytest.fixture(scope="module")
def dreamer(tiny):
    return tiny(agent="dreamer", **SIZES)


@pytest.fixture(scope="module")
def model(dreamer):
    return eqx.filter_jit(lambda key: Dreamer(dreamer, 2, key))(jax.random.key(0))


@pytest.fixture(scope="module")
def run():
    return eqx.filter_jit(lambda model, batch, key: model.losses(batch, key))


def test_free_nats_by_hand():
    divergence = jnp.array([[1.0, 5.0], [2.0, 8.0]])
    np.testing.assert_array_equal(free(divergence, 3.0, False), [[3, 5], [3, 8]])
    np.testing.assert_array_equal(free(divergence, 3.0, True), [[4, 4], [4, 4]])
    np.testing.assert_array_equal(free(divergence, 4.5, True), [[4.5, 4.5], [4.5, 4.5]])

    def slope(nats, of_mean):
        return jax.grad(lambda kl: free(kl, nats, of_mean).mean())(divergence)

    np.testing.assert_array_equal(slope(3.0, False), [[0, 0.25], [0, 0.25]])
    np.testing.assert_array_equal(slope(3.0, True), [[0.25, 0.25], [0.25, 0.25]])
    np.testing.assert_array_equal(slope(4.5, True), 0 * divergence)


def test_losses_are_the_bound(dreamer, model, batch, run, key):
    z, losses, metrics = run(model, batch, key)
    latent, posterior, prior = eqx.filter_jit(
        lambda m: m.rssm.observe(m.encoder(batch.obs), batch.action, batch.first, key)
    )(model)
    np.testing.assert_allclose(z.features, latent.features, atol=1e-5)
    divergence = double(kl(posterior, prior))
    np.testing.assert_allclose(losses["kl"], np.maximum(divergence, dreamer.free_nats), rtol=1e-4)
    np.testing.assert_allclose(metrics["kl"], divergence.mean(), rtol=1e-4)
    np.testing.assert_allclose(losses["image"], image_nll(model.decoder(z.features), batch.obs, 1.0), rtol=1e-4)
    error = double(model.reward(z.features) - batch.reward)
    np.testing.assert_allclose(
        losses["reward"], np.where(batch.first, 0, 0.5 * error**2 + 0.5 * np.log(2 * np.pi)), rtol=1e-4
    )


def test_each_loss_reaches_its_own_parameters(model, batch, key):
    model = eqx.tree_at(lambda m: m.rssm.posterior_out.bias, model, replace_fn=lambda b: b + 9)  # above the free nats

    _, grads = term_gradients(model, batch, key)
    reached = {name: {part for part in PARTS if not zero(getattr(g, part))} for name, g in grads.items()}
    assert reached == {
        "image": {"encoder", "rssm", "decoder"},
        "reward": {"encoder", "rssm", "reward"},
        "kl": {"encoder", "rssm"},
    }
    assert not zero(grads["kl"].rssm.prior_out) and not zero(grads["kl"].rssm.posterior_out)
    for name in ("image", "reward"):
        assert zero(grads[name].rssm.prior_out) and not zero(grads[name].rssm.posterior_out)


def test_nothing_pushes_a_kl_below_the_free_nats(tiny, model, batch, key):
    def gradient(nats):
        settings = tiny(agent="dreamer", free_nats=nats, **SIZES)
        other = eqx.filter_eval_shape(lambda key: Dreamer(settings, 2, key), key)
        other = jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(model))
        return eqx.filter_jit(eqx.filter_grad(lambda m: m.losses(batch, key)[1]["kl"].mean()))(other)

    assert zero(gradient(1e3))
    assert not zero(gradient(0.0))


def test_published_settings(tiny):
    """`--preset original` of Dreamer; the default is RePo's."""
    original, ours = (preset_config("dmc/walker-walk", preset, "dreamer") for preset in ("original", "paper"))
    repo = preset_config("dmc/walker-walk", "paper")
    assert {**vars(ours), "agent": "repo"} == vars(repo)
    sizes = shapes(lambda key: make_agent(original, 6).init(key))
    assert [layer.weight.shape for layer in sizes.policy.model.reward.mlp.layers] == [(230, 400), (400, 400), (400, 1)]
    assert [layer.weight.shape[1] for layer in sizes.critic.mlp.layers] == [400, 400, 400, 1]
    assert [layer.weight.shape[1] for layer in sizes.policy.actor.mlp.layers] == [400, 400, 400, 400, 12]
    assert count(sizes.policy.model.rssm) == 557_920
    expected = dict(model_lr=6e-4, actor_lr=8e-5, adam_eps=1e-7, exploration=0.3, entropy_bonus=0.0, image_std=2.0)
    expected |= dict(prefill=2_500, warm_up_updates=100, steps=2_500_000, replay_size=2_500_000)
    assert {name: getattr(original, name) for name in expected} == expected
    assert original.free_nats_of_mean and original.discount_weights


@pytest.mark.parametrize(("std", "min_std", "expected"), [(None, 0.1, np.log(2) + 0.1), (5.0, 1e-4, 5.0001)])
def test_deviation_of_a_fresh_policy(key, std, min_std, expected):
    actor = Actor(3, 2, hidden=8, key=key, dtype="float32", std=std, min_std=min_std)
    silent = jax.tree.map(jnp.zeros_like, actor)
    np.testing.assert_allclose(silent(jnp.ones(3)).std, expected, rtol=1e-5)


def test_exploration_adds_noise_while_collecting_only(tiny, state, key):
    plain, noisy = (make_agent(tiny(exploration=x), 2) for x in (0.0, 0.3))
    obs, first = jnp.zeros((2000, 64, 64, 3), jnp.uint8), jnp.ones(2000, bool)
    policy = state.policy
    carry = plain.initial_carry(policy, 2000)
    act = jax.jit(lambda carry, key: [agent.act(policy, carry, obs, first, key) for agent in (plain, noisy)])
    (a, _), (b, carried) = act(carry, key)
    inside = np.abs(b) < 1
    difference = np.asarray(b - a)[inside & (np.abs(a) < 0.1)]
    assert len(difference) > 100 and difference.std() == pytest.approx(0.3, rel=0.15)
    assert np.abs(b).max() == 1 and not inside.all()
    np.testing.assert_array_equal(carried.action, b)
    (a, _), (b, _) = jax.jit(lambda carry: [agent.act(policy, carry, obs, first) for agent in (plain, noisy)])(carry)
    np.testing.assert_array_equal(a, b)


def test_discounted_returns_weigh_by_powers_of_gamma(config, state):
    (model, actor), critic = state.policy, state.critic
    kb, ks = jax.random.split(jax.random.key(5))
    start = Latent(jnp.tanh(jax.random.normal(kb, (3, config.belief))), jax.random.normal(ks, (3, config.state)))
    options = dict(horizon=4, gamma=0.5, lambda_=0.8)

    @jax.jit
    def run(key):
        return [dream(actor, critic, model, start, key, **options, discounted=d) for d in (False, True)]

    plain, weighted = run(jax.random.key(6))
    np.testing.assert_allclose(plain.returns, weighted.returns, rtol=1e-6)
    (a, _), (b, _) = (behaviour_losses(actor, critic, d, 0.0) for d in (plain, weighted))
    weights = np.array([1, 0.5, 0.25])[:, None]
    np.testing.assert_allclose(b["actor"], -(weights * plain.returns).mean(), rtol=1e-5)
    np.testing.assert_allclose(b["critic"], weights * a["critic"], rtol=1e-5)
    np.testing.assert_allclose(a["actor"], -plain.returns.mean(), rtol=1e-5)
    # The last action moves the last latent only: through its value, in all three returns.
    steps = np.array([0.5 * 0.8 * 0.5 * 0.8 * 0.5, 0.5 * 0.8 * 0.5, 0.5])
    ratio = (steps * weights[:, 0]).sum() / steps.sum()
    np.testing.assert_allclose(weighted.pull[-1], ratio * plain.pull[-1], rtol=1e-3, atol=1e-9)


def test_adams_epsilon_is_that_of_the_settings(tiny, model):
    """A gradient of the size of epsilon moves by half of the rate."""
    optimiser = Dreamer.optimiser(tiny(agent="dreamer", **SIZES, adam_eps=1e-3, model_lr=0.5))
    gradients = jax.tree.map(lambda x: jnp.full_like(x, 1e-3), model)
    updates, _ = jax.jit(lambda g: optimiser.update(g, optimiser.init(model), model))(gradients)
    for update in jax.tree.leaves(updates):
        np.testing.assert_allclose(update, -0.25, rtol=1e-3)
