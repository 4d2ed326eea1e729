"""Filtering and imagination against step-by-step references, episode starts, and the balance of the KL."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.dists import Normal, kl
from undistracted.rssm import RSSM, Latent, balanced_kl, fresh_start, official_start

T, B, A, X, D, Z = 6, 3, 2, 7, 5, 4
START = 3  # where an episode starts, in the middle one of the B sequences


def make(boundary=fresh_start):
    sizes = dict(belief=D, state=Z, hidden=8)
    return RSSM(A, X, **sizes, key=jax.random.key(1), dtype="float32", unroll=2, boundary=boundary)


@pytest.fixture(scope="module")
def rssm():
    return make()


@pytest.fixture(scope="module")
def rows():
    """Encodings, actions and first flags; the first rows of sequence 0 (row 0) and sequence 1 (row START)."""
    kx, ka = jax.random.split(jax.random.key(2))
    first = jnp.zeros((T, B), bool).at[0, 0].set(True).at[START, 1].set(True)
    action = jax.random.normal(ka, (T, B, A))  # not zeroed at first rows: the model has to do that
    return jax.random.normal(kx, (T, B, X)), action, first


@eqx.filter_jit
def observe(rssm, x, action, first, key):
    return rssm.observe(x, action, first, key)


def gaussian(out) -> Normal:
    return Normal(out[..., :Z], jnp.log1p(jnp.exp(out[..., Z:])) + 0.1)


def next_belief(rssm, latent, action):
    inputs = jax.nn.elu(rssm.inputs(jnp.concatenate([latent.state, action], -1)))
    return rssm.gru.apart(inputs, latent.belief)


def slow_prior(rssm, belief) -> Normal:
    return gaussian(rssm.prior_out(jax.nn.elu(rssm.prior_hidden(belief))))


def slow_posterior(rssm, belief, x) -> Normal:
    return gaussian(rssm.posterior_out(jax.nn.elu(rssm.posterior_hidden(jnp.concatenate([belief, x], -1)))))


def noise_of(state, dist: Normal):
    return (state - dist.mean) / dist.std


def assert_close(actual, expected, atol=1e-5):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


def test_observe_is_a_loop_over_the_rows(rssm, rows, key):
    x, action, first = rows
    latents, posteriors, priors = observe(rssm, x, action, first, key)
    latent = rssm.initial(B)
    for t in range(T):
        keep = 1.0 - first[t, :, None].astype(jnp.float32)
        latent = jax.tree.map(lambda leaf, keep=keep: leaf * keep, latent)
        belief = next_belief(rssm, latent, action[t] * keep)
        posterior = slow_posterior(rssm, belief, x[t])
        noise = noise_of(latents.state[t], posterior)
        latent = Latent(belief, posterior.mean + posterior.std * noise)
        assert_close((latents.belief[t], Normal(posteriors.mean[t], posteriors.std[t])), (belief, posterior))
        assert_close(Normal(priors.mean[t], priors.std[t]), slow_prior(rssm, belief))


def test_observe_samples_the_posterior(rssm, key):
    rows = jnp.zeros((100, 30, X)), jnp.zeros((100, 30, A)), jnp.zeros((100, 30), bool)
    latents, posteriors, _ = observe(rssm, *rows, key)
    noise = np.asarray(noise_of(latents.state, posteriors)).reshape(-1, Z)
    bound = 5 / np.sqrt(noise.size)
    assert abs(noise.mean()) < bound
    assert abs((noise**2).mean() - 1) < 2 * bound
    assert np.abs(np.corrcoef(noise.T) - np.eye(Z)).max() < 5 / np.sqrt(len(noise))
    assert abs((noise[1:] * noise[:-1]).mean()) < bound


def test_step_filters_as_observe_does(rssm, rows, key):
    x, action, first = rows
    latents, posteriors, _ = observe(rssm, x, action, first, key)
    noise = noise_of(latents.state, posteriors)
    step = eqx.filter_jit(lambda *args: rssm.step(*args))
    latent = rssm.initial(B)
    for t in range(T):
        mode = step(latent, action[t], x[t], first[t], None)
        latent = step(latent, action[t], x[t], first[t], noise[t])
        assert_close(latent, jax.tree.map(lambda leaf, t=t: leaf[t], latents))
        assert_close(mode, Latent(latents.belief[t], posteriors.mean[t]))


@pytest.mark.parametrize("what", ["encoding", "action", "both"])
def test_nothing_leaks_across_an_episode_start(rssm, rows, key, what):
    x, action, first = rows
    before = (jnp.arange(T)[:, None] < START) & (jnp.arange(B) == 1)
    other_x = jnp.where(before[..., None] & (what != "action"), x + 1, x)
    other_action = jnp.where(before[..., None] & (what != "encoding"), action + 1, action)
    a, b = observe(rssm, x, action, first, key), observe(rssm, other_x, other_action, first, key)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(left[START:, 1], right[START:, 1])
        assert not np.allclose(left[:START, 1], right[:START, 1])
        np.testing.assert_array_equal(left[:, ::2], right[:, ::2])  # the other sequences


def test_a_first_row_forgets_its_own_action(rssm, rows, key):
    x, action, first = rows
    a, b = observe(rssm, x, action, first, key), observe(rssm, x, action.at[START, 1].add(1.0), first, key)
    assert_close(a, b, atol=0)
    assert not np.allclose(observe(rssm, x, action.at[START, 2].add(1.0), first, key)[0].belief, a[0].belief)


def test_official_start_lets_belief_and_last_action_flow_on_but_no_state(rows, key):
    rssm, (x, action, first) = make(official_start), rows
    latents, posteriors, _ = observe(rssm, x, action, first, key)
    old = jax.tree.map(lambda leaf: leaf[START - 1, 1:2], latents)
    forgotten = Latent(old.belief, jnp.zeros_like(old.state))
    belief = next_belief(rssm, forgotten, action[START - 1, 1:2])
    assert_close(latents.belief[START, 1:2], belief)
    expected = slow_posterior(rssm, belief, x[START, 1:2])
    assert_close(jax.tree.map(lambda leaf: leaf[START, 1:2], posteriors), expected)


def test_starts_differ_only_from_the_start_on(rows, key):
    a, b = (observe(make(boundary), *rows, key)[0].belief for boundary in (fresh_start, official_start))
    np.testing.assert_array_equal(a[:START], b[:START])
    np.testing.assert_array_equal(a[:, ::2], b[:, ::2])
    assert (np.abs(a - b)[START:, 1].max(-1) > 1e-4).all()


def test_imagine_is_a_loop_over_the_actions(rssm, rows, key):
    actions = rows[1]
    start = Latent(jax.random.normal(key, (B, D)), jax.random.normal(jax.random.key(3), (B, Z)))

    def policy(latent, action):
        return action, latent.belief + action.sum()

    imagine = eqx.filter_jit(lambda rssm, start, key: rssm.imagine(start, policy, actions, key))
    (latents, notes), latent, noises = imagine(rssm, start, key), start, []
    assert latents.state.shape == (T, B, Z)
    for t in range(T):
        belief = next_belief(rssm, latent, actions[t])
        prior = slow_prior(rssm, belief)
        assert_close(latents.belief[t], belief)
        assert_close(notes[t], latent.belief + actions[t].sum())  # what the policy noted where it acted
        noises.append(noise_of(latents.state[t], prior))
        latent = Latent(belief, latents.state[t])
    noise = np.stack(noises)
    assert abs(noise.mean()) < 4 / np.sqrt(noise.size)
    assert 0.7 < noise.std() < 1.3
    other = noise_of(imagine(rssm, start, jax.random.key(9))[0].state[0], slow_prior(rssm, latents.belief[0]))
    assert np.abs(other - noise[0]).max() > 0.1  # the key decides


def test_policy_sees_the_newest_latent(rssm, key):
    start = Latent(jax.random.normal(key, (B, D)), jax.random.normal(key, (B, Z)))

    def policy(latent, scale):
        return scale * latent.features[..., :A]

    latents, _ = rssm.imagine(start, lambda *step: (policy(*step), None), jnp.array([1.0, 2.0]), key)
    assert_close(latents.belief[0], next_belief(rssm, start, policy(start, 1.0)))
    after = jax.tree.map(lambda leaf: leaf[0], latents)
    assert_close(latents.belief[1], next_belief(rssm, after, policy(after, 2.0)))


@pytest.mark.parametrize("alpha", [0.0, 0.75, 1.0])
def test_balanced_kl_keeps_the_value_and_splits_the_gradient(key, alpha):
    k = jax.random.split(key, 4)
    posterior, prior = (
        Normal(jax.random.normal(k[i], (B, Z)), jnp.exp(jax.random.normal(k[i + 1], (B, Z)))) for i in (0, 2)
    )
    np.testing.assert_allclose(balanced_kl(posterior, prior, alpha), kl(posterior, prior), rtol=1e-6)
    plain = jax.grad(lambda p, q: kl(p, q).sum(), argnums=(0, 1))(posterior, prior)
    balanced = jax.grad(lambda p, q: balanced_kl(p, q, alpha).sum(), argnums=(0, 1))(posterior, prior)
    for share, a, b in zip((1 - alpha, alpha), balanced, plain, strict=True):
        assert_close(a, jax.tree.map(lambda leaf, share=share: share * leaf, b), atol=1e-4)
        assert min(np.abs(leaf).max() for leaf in b) > 0.1
