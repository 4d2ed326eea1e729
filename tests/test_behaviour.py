"""Returns against a slow reference, the actor's gradient against plain differentiation, and who learns from what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.lax import stop_gradient as sg

from undistracted.agents import make_agent
from undistracted.agents.latent import LatentAgent, in_eights
from undistracted.behaviour import Actor, behaviour_losses, dream, lambda_return
from undistracted.rssm import Latent

GAMMA, LAMBDA, H, N = 0.9, 0.8, 4, 3
VALUES = arrays(np.float32, (6, 2), elements=st.floats(-10, 10, width=32))
UNIT = st.floats(0, 1, width=32)


def slow_return(reward, value, gamma, lambda_):
    """The mixture, by lambda, of the n-step returns of every length."""
    last, out = len(reward) - 1, []
    for t in range(last):
        total, steps = 0.0, last - t
        for n in range(1, steps + 1):
            n_step = sum(gamma**k * reward[t + k] for k in range(n)) + gamma**n * value[t + n]
            total = total + (lambda_ ** (n - 1) * (1 - lambda_) if n < steps else lambda_ ** (n - 1)) * n_step
        out.append(total)
    return np.stack(out)


@given(VALUES, VALUES, UNIT, UNIT)
@example(np.ones((6, 2), np.float32), np.full((6, 2), 3, np.float32), 0.9, 0.0)
@example(np.ones((6, 2), np.float32), np.full((6, 2), 3, np.float32), 0.9, 1.0)
def test_lambda_return_is_the_mixture_of_n_step_returns(reward, value, gamma, lambda_):
    expected = slow_return(np.float64(reward), np.float64(value), gamma, lambda_)
    actual = RETURN(reward, value, jnp.float32(gamma), jnp.float32(lambda_))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


RETURN = jax.jit(lambda_return)


def test_lambda_return_known_answers():
    reward, value = jnp.array([1.0, 2, 4, 1000]), jnp.array([1000.0, 10, 20, 30])
    np.testing.assert_allclose(RETURN(reward, value, 0.5, 0.0), [6, 12, 19], rtol=1e-6)  # r + gamma V'
    np.testing.assert_allclose(RETURN(reward, value, 0.5, 1.0), [1 + 1 + 1 + 3.75, 2 + 2 + 7.5, 4 + 15], rtol=1e-6)


@pytest.fixture(scope="module")
def start(config):
    kb, ks = jax.random.split(jax.random.key(5))
    return Latent(jnp.tanh(jax.random.normal(kb, (N, config.belief))), jax.random.normal(ks, (N, config.state)))


@pytest.fixture(scope="module")
def dreamt(state, start):
    run = jax.jit(lambda *args: dream(*args, horizon=H, gamma=GAMMA, lambda_=LAMBDA))
    return run(state.policy.actor, state.critic, state.policy.model, start, jax.random.key(6))


def loss_gradients(state, dreamt, name):
    """Gradient of one of the losses with respect to (actor, critic)."""

    def loss(modules):
        return behaviour_losses(*modules, dreamt, 0.1)[0][name].mean()

    return jax.jit(jax.grad(loss))((state.policy.actor, state.critic))


def test_actor_gradient_is_that_of_the_whole_rollout(state, start, dreamt):
    """Reference: unroll the policy, which sees detached latents, in plain Python and differentiate the mean return."""
    model, critic = state.policy.model, state.critic
    beliefs, states = jnp.split(dreamt.features[1:], [start.belief.shape[-1]], -1)
    prior = model.rssm.prior(beliefs)
    state_noise = (states - prior.mean) / prior.std

    def mean_return(actor):
        latent, rewards, values = start, [], []
        for t in range(H):
            dist = actor(sg(latent.features))
            action = jnp.tanh(dist.mean + dist.std * dreamt.noise[t])
            inputs = jax.nn.elu(model.rssm.inputs(jnp.concatenate([latent.state, action], -1)))
            belief = model.rssm.gru.apart(inputs, latent.belief)
            prior = model.rssm.prior(belief)
            latent = Latent(belief, prior.mean + prior.std * state_noise[t])
            rewards.append(model.reward(latent.features))
            values.append(critic(latent.features))
        returns = values[-1]
        total = 0.0
        for t in reversed(range(H - 1)):
            returns = rewards[t] + GAMMA * ((1 - LAMBDA) * values[t + 1] + LAMBDA * returns)
            total = total + returns.mean() / (H - 1)
        return total

    value, expected = jax.jit(jax.value_and_grad(mean_return))(state.policy.actor)
    actual, to_critic = loss_gradients(state, dreamt, "actor")
    np.testing.assert_allclose(dreamt.returns.mean(), value, atol=1e-5 * np.abs(dreamt.returns).mean())
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(-a, b, rtol=1e-3, atol=1e-4 * scale)
    assert scale > 1e-3
    assert not any(leaf.any() for leaf in jax.tree.leaves(to_critic))


def test_critic_regresses_the_returns_and_leaves_the_actor_alone(state, dreamt):
    losses, metrics = behaviour_losses(state.policy.actor, state.critic, dreamt, 0.1)
    value = state.critic(dreamt.features[1:-1])
    np.testing.assert_allclose(
        losses["critic"], 0.5 * (value - dreamt.returns) ** 2 + 0.5 * np.log(2 * np.pi), rtol=1e-5
    )
    np.testing.assert_allclose(metrics["imagined_return"], dreamt.returns.mean(), rtol=1e-6)
    to_actor, to_critic = loss_gradients(state, dreamt, "critic")
    assert not any(leaf.any() for leaf in jax.tree.leaves(to_actor))
    np.testing.assert_allclose(to_critic.mlp.layers[-1].bias[0], (value - dreamt.returns).mean(), rtol=1e-4)


def test_entropy_loss_is_the_log_density_of_the_actions(state, dreamt):
    losses, metrics = behaviour_losses(state.policy.actor, state.critic, dreamt, 0.1)
    dist = state.policy.actor(dreamt.features[:-1])
    mean, std, noise = (np.float64(x) for x in (*dist, dreamt.noise))
    action = np.tanh(mean + std * noise)
    density = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi) - np.log1p(-(action**2))
    np.testing.assert_allclose(losses["entropy"], 0.1 * density.sum(-1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(metrics["policy_entropy"], -density.sum(-1).mean(), rtol=1e-3)
    np.testing.assert_allclose(metrics["policy_mean"], np.abs(mean).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["policy_std"], std.mean(), rtol=1e-5)


@pytest.mark.parametrize(("official", "latents", "targets"), [(False, 15, 14), (True, 14, 13)])
def test_horizon_counts_imagined_latents(tiny, state, start, official, latents, targets):
    agent, (model, actor) = make_agent(tiny(horizon=15, official_horizon=official), 2), state.policy
    shapes = jax.eval_shape(agent.dream, actor, state.critic, model, start, jax.random.key(0))
    assert shapes.features.shape == (1 + latents, *start.features.shape)
    assert shapes.noise.shape[0] == shapes.pull.shape[0] == latents
    assert shapes.returns.shape == (targets, N)


@pytest.mark.parametrize("every", [1, 3])
def test_imagination_starts_from_every_nth_row(tiny, state, batch, key, every):
    agent, starts = make_agent(tiny(start_every=every), 2), []

    def dream(actor, critic, model, start, key):
        starts.append(start)
        return LatentAgent.dream(agent, actor, critic, model, start, key)

    agent.dream = dream
    jax.eval_shape(agent.update, state, batch, key)
    length, sequences = batch.reward.shape
    rows = -(-length // every) * sequences
    assert starts[0].state.shape[0] == (rows - rows % 8 if rows > 8 else rows)


def test_dream_starts_at_the_given_latents(dreamt, start):
    np.testing.assert_array_equal(dreamt.features[0], start.features)


def test_model_learns_nothing_from_behaviour(state, update, batch, key):
    """The model takes the very same step beside another actor and critic, who themselves do not."""
    actor = jax.tree.map(lambda x: 0.5 * x + 0.1, state.policy.actor)
    critic = jax.tree.map(lambda x: 2 * x + 0.1, state.critic)
    other = state._replace(policy=state.policy._replace(actor=actor), critic=critic)
    (after, metrics), (after_other, metrics_other) = update(state, batch, key), update(other, batch, key)
    models = [s.policy.model for s in (state, after, after_other)]
    for old, a, b in zip(*map(jax.tree.leaves, models), strict=True):
        np.testing.assert_array_equal(a, b)
        assert (old != a).any()
    assert metrics["actor_loss"] != metrics_other["actor_loss"]
    assert metrics["critic_loss"] != metrics_other["critic_loss"]


def test_actor_keeps_its_mean_within_five_and_acts_by_its_mode(key):
    actor = Actor(3, 2, hidden=8, key=key, dtype="float32")
    actor = jax.tree.map(lambda x: 10 * x, actor)
    features = 100 * jax.random.normal(key, (50, 3))
    dist = actor(features)
    assert 4.9 < np.abs(dist.mean).max() <= 5
    assert 0.1 <= dist.std.min() < 0.11
    np.testing.assert_allclose(actor.act(features), np.tanh(dist.mean), atol=1e-6)
    noise = jax.random.normal(key, (50, 2))
    np.testing.assert_allclose(actor.act(features, noise), np.tanh(dist.mean + dist.std * noise), atol=1e-6)


@pytest.mark.parametrize(("rows", "kept"), [(5, 5), (8, 8), (9, 8), (2500, 2496)])
def test_starts_come_in_eights(rows, kept):
    start = in_eights(Latent(jnp.arange(2.0 * rows).reshape(rows, 2), jnp.arange(1.0 * rows)))
    assert len(start.belief) == len(start.state) == kept
    np.testing.assert_array_equal(start.state, np.arange(kept))
