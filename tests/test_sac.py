"""Soft actor-critic with an auxiliary loss: who trains what, when, and towards what."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ACTION_SIZE

from undistracted.agents import make_agent
from undistracted.agents.sac import SAC, target_value
from undistracted.data import Batch
from undistracted.dists import squash
from undistracted.replay import stack
from undistracted.seeds import in_lockstep

GAMMA = 0.99
PARTS = {
    "convs": lambda s: s.policy.convs,
    "actor": lambda s: s.policy.actor,
    "projection": lambda s: s.critic.projection,
    "heads": lambda s: s.critic.heads,
    "target": lambda s: s.target,
    "auxiliary": lambda s: s.auxiliary,
    "alpha": lambda s: s.log_alpha,
}


@pytest.fixture(scope="module")
def sac(tiny):
    return make_agent(tiny(agent="dbc"), ACTION_SIZE)


@pytest.fixture(scope="module")
def start(sac):
    return jax.jit(sac.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def rows(sac) -> Batch:
    """Four rows each, of noise: what the replay gives for one transition between stacks of three."""
    rng, shape = np.random.default_rng(0), (4, sac.config.batch)
    return Batch(
        jnp.asarray(rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8)),
        jnp.asarray(rng.uniform(-1, 1, (*shape, ACTION_SIZE)), "float32"),
        jnp.asarray(rng.normal(size=shape), "float32"),
        jnp.zeros(shape, bool),
    )


@pytest.fixture(scope="module")
def updated(sac):
    return jax.jit(sac.update)


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def moved(before, after) -> set[str]:
    return {name for name, part in PARTS.items() if not same(part(before), part(after))}


@pytest.mark.parametrize(
    ("step", "parts"),
    [
        ("update_critic", {"convs", "projection", "heads"}),
        ("update_auxiliary", {"convs", "projection", "auxiliary"}),
        ("update_actor", {"actor", "alpha"}),
    ],
)
def test_each_step_trains_its_own_parts(sac, start, rows, key, step, parts):
    """The actor does not train the convolutions that it looks through, the auxiliary trains the encoder."""
    batch = stack(rows, 3)
    done = jax.jit(getattr(sac, step))(start, batch.obs[0] if step == "update_actor" else batch, key)
    after = done if step == "update_actor" else done[0]
    assert moved(start, after) == parts
    assert not same(start.policy.actor.projection, after.policy.actor.projection) or "actor" not in parts


class Following(eqx.Module):
    """An auxiliary that asks of nothing but the next latent."""

    weight: jax.Array

    def losses(self, z, next_z, action, reward, key):
        return {"following": (self.weight * next_z).mean(-1)}, {}


def test_the_next_latent_is_held_still(tiny, rows, key):
    """What is asked of it trains the auxiliary; an encoder that felt it would make itself easy to foretell."""
    sac = SAC(lambda config, action_size, key: Following(jnp.ones(config.sac.latent)), tiny(agent="dbc"), ACTION_SIZE)
    before = jax.jit(sac.init)(jax.random.key(0))
    after, _ = jax.jit(sac.update_auxiliary)(before, stack(rows, 3), key)
    assert moved(before, after) == {"auxiliary"}


def test_actor_temperature_and_copies_move_every_other_update(start, rows, updated, key):
    first, metrics = updated(start, rows, key)
    second, held = updated(first, rows, jax.random.fold_in(key, 1))
    third, later = updated(second, rows, jax.random.fold_in(key, 2))
    assert moved(start, first) == moved(second, third) == set(PARTS)
    assert moved(first, second) == {"convs", "projection", "heads", "auxiliary"}
    assert [int(s.updates) for s in (start, first, second, third)] == [0, 1, 2, 3]
    for name in ("actor_loss", "policy_entropy", "alpha"):
        assert metrics[name] == held[name] != later[name]


def test_copies_follow_at_their_two_rates(start, rows, updated, key):
    """From copies that are far off, so that how far they moved shows."""
    away = start._replace(target=jax.tree.map(lambda x: x + 1, start.target))
    (convs, critic), after = away.target, updated(away, rows, key)[0]
    for old, new, online, tau in [
        (convs, after.target[0], after.policy.convs, 0.05),
        (critic.projection, after.target[1].projection, after.critic.projection, 0.05),
        (critic.heads, after.target[1].heads, after.critic.heads, 0.01),
    ]:
        for a, b, c in zip(*map(jax.tree.leaves, (old, new, online)), strict=True):
            np.testing.assert_allclose(b - a, tau * (c - a), atol=1e-5)


def test_critic_regresses_the_reward_and_the_soft_value_of_what_follows(sac, start, rows, key):
    """Always: no transition tells that its episode ends. That last steps are drawn too, `test_replay.py` shows."""
    far = start._replace(target=jax.tree.map(lambda x: x + 0.1, start.target), log_alpha=jnp.log(0.7))
    batch = stack(rows, 3)
    _, metrics = jax.jit(sac.update_critic)(far, batch, key)
    (convs, actor), critic = far.policy, far.critic
    dist = actor(convs(batch.obs[1]))
    action, log_prob = squash(dist, jax.random.normal(key, dist.mean.shape))
    value = target_value(*far.target, batch.obs[1], action) - 0.7 * log_prob
    target = batch.reward[1] + GAMMA * value
    q = critic(critic.projection(convs(batch.obs[0])), batch.action[1])
    assert float(jnp.abs(value).min()) > 0.01
    np.testing.assert_allclose(metrics["target_value"], target.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["critic_loss"], ((q[0] - target) ** 2 + (q[1] - target) ** 2).mean(), rtol=1e-4)


def test_actor_climbs_the_smaller_value_and_its_entropy(sac, start, rows, key):
    obs, (convs, actor) = stack(rows, 3).obs[0], start.policy
    seen, alpha = convs(obs), jnp.exp(start.log_alpha)
    action, log_prob = squash(actor(seen), jax.random.normal(key, (len(obs), ACTION_SIZE)))
    q = start.critic(start.critic.projection(seen), action)
    watched = jax.jit(sac.update_actor)(start, obs, key).watched
    assert float(watched["actor_loss"]) == pytest.approx(float((alpha * log_prob - q.min(0)).mean()), rel=1e-4)
    assert float(watched["policy_entropy"]) == pytest.approx(-float(log_prob.mean()), rel=1e-4)


@pytest.mark.parametrize(("raw_std", "sign"), [(3.0, -1), (-3.0, 1)])
def test_temperature_falls_where_the_entropy_is_above_its_target_and_rises_below(sac, start, rows, key, raw_std, sign):
    bias = jnp.repeat(jnp.array([0.0, raw_std]), ACTION_SIZE) * 0.5
    bias = bias.at[:ACTION_SIZE].set(0)
    now = eqx.tree_at(lambda s: s.policy.actor.mlp.layers[-1].bias, start, bias)
    now = eqx.tree_at(lambda s: s.policy.actor.mlp.layers[-1].weight, now, replace_fn=jnp.zeros_like)
    after = jax.jit(sac.update_actor)(now, stack(rows, 3).obs[0], key)
    assert np.sign(-ACTION_SIZE - float(after.watched["policy_entropy"])) == sign
    assert float(after.log_alpha - now.log_alpha) == pytest.approx(sign * sac.config.sac.alpha_lr, rel=0.01)


def test_std_of_the_policy_is_bounded(start):
    actor = eqx.tree_at(lambda a: a.mlp.layers[-1].weight, start.policy.actor, replace_fn=jnp.zeros_like)
    for raw, bound in ((100.0, 2), (-100.0, -10)):
        bias = jnp.concatenate([jnp.zeros(ACTION_SIZE), jnp.full(ACTION_SIZE, raw)])
        wide = eqx.tree_at(lambda a: a.mlp.layers[-1].bias, actor, bias)
        seen = jnp.ones((1, wide.projection.linear.weight.shape[0]))
        np.testing.assert_allclose(np.log(wide(seen).std), bound, rtol=1e-5)


def test_acts_by_the_mode_or_by_samples_on_the_stack(sac, start, rows, key):
    act = jax.jit(sac.act)
    carry, first = sac.initial_carry(start.policy, 4), jnp.array([True, True, False, True])
    mode, carry = act(start.policy, carry, rows.obs[0], first)
    np.testing.assert_array_equal(carry[0], np.concatenate([rows.obs[0, 0]] * 3, -1))
    dist = start.policy.actor(start.policy.convs(carry))
    np.testing.assert_allclose(mode, jnp.tanh(dist.mean), atol=1e-6)
    one, two = (act(start.policy, carry, rows.obs[1], ~first, k)[0] for k in jax.random.split(key))
    assert np.abs(one - two).min() > 1e-4 and np.abs(one).max() <= 1


def test_several_seeds_skip_together():
    calls = []

    def double(held, x):
        jax.debug.callback(lambda: calls.append(1))
        return 2 * held + x

    skip = jax.jit(jax.vmap(in_lockstep(double)))
    held, x = jnp.arange(3.0), jnp.ones(3)
    np.testing.assert_array_equal(skip(jnp.zeros(3, bool), held, x), held)
    jax.effects_barrier()
    assert not calls, "where nothing is due, nothing is computed"
    np.testing.assert_array_equal(skip(jnp.ones(3, bool), held, x), [1, 3, 5])
