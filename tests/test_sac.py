"""Soft actor-critic and its auxiliary losses, DeepMDP's and DBC's: who trains what, when, and towards what."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ACTION_SIZE

from undistracted.agents import make_agent, settings
from undistracted.agents.dbc import DBC, distances, mean_distance, smooth_l1, wasserstein
from undistracted.agents.deepmdp import DeepMDP, transition_loss
from undistracted.agents.sac import target_value
from undistracted.data import Batch
from undistracted.dists import Normal, squash
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
    """Through the end of an episode too: nothing in a transition tells that the time limit comes next."""
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


# The auxiliary losses


@pytest.fixture(scope="module")
def latents():
    rng = np.random.default_rng(1)
    z, next_z, action, reward = rng.normal(size=(6, 8)), rng.normal(size=(6, 8)), rng.normal(size=(6, 2)), [0, 1] * 3
    return tuple(jnp.float32(x) for x in (z, next_z, action, reward))


def test_transition_loss_by_hand():
    predicted = Normal(jnp.array([[[0.0, 2.0]], [[1.0, 1.0]]]), jnp.array([[[1.0, 1.0]], [[2.0, 0.5]]]))
    error = [0.5 * 1, 0.5 * 1, 0.5 / 4 * 0 + np.log(2), 0.5 * 4 * 0 + np.log(0.5)]
    np.testing.assert_allclose(transition_loss(predicted, jnp.array([[1.0, 1.0]])), [np.mean(error)], rtol=1e-5)


@pytest.mark.parametrize("transition", ["deterministic", "probabilistic", "ensemble"])
@pytest.mark.parametrize("method", [DeepMDP, DBC])
def test_each_auxiliary_term_reaches_its_own_parameters(tiny, latents, key, method, transition):
    z, next_z, action, reward = latents
    own = {name: kind(transition=transition) for name, kind in [("deepmdp", settings.DeepMDP), ("dbc", settings.DBC)]}
    module = method(tiny(agent="dbc", **own), ACTION_SIZE, key)
    members = {"deterministic": 1, "probabilistic": 1, "ensemble": 5}[transition]
    assert len(module.transition.members) == members

    @eqx.filter_jit
    def gradients(module, z):
        def term(name):
            return eqx.filter_grad(lambda args: args[0].losses(args[1], next_z, action, reward, key)[0][name].mean())

        names = module.losses(z, next_z, action, reward, key)[0]
        return {name: term(name)((module, z)) for name in names}

    def reaches(tree) -> bool:
        return any(np.asarray(leaf).any() for leaf in jax.tree.leaves(tree))

    for name, (grads, of_z) in gradients(module, z).items():
        assert reaches(of_z), f"the {name} loss trains the encoder"
        assert reaches(grads.reward) == (name == "reward")
        through_transition = name == "transition" or (name == "reward" and method is DBC)
        trained = [reaches(member) for member in grads.transition.members]
        if name == "reward" and method is DBC:
            assert sum(trained) == 1, "one member's sample"
        else:
            assert set(trained) == {through_transition}
        assert np.isfinite(jax.flatten_util.ravel_pytree(grads)[0]).all()


def test_deepmdp_tells_the_reward_from_latent_and_action_and_the_next_latent(tiny, latents, key):
    z, next_z, action, reward = latents
    module = DeepMDP(tiny(agent="deepmdp"), ACTION_SIZE, key)
    losses, _ = module.losses(z, next_z, action, reward, key)
    predicted = module.transition(z, action).mean[0]
    np.testing.assert_allclose(losses["transition"], 0.5 * ((predicted - next_z) ** 2).mean(-1), rtol=1e-5)
    assert (module.losses(z, next_z, -action, reward, key)[0]["reward"] != losses["reward"]).all()


def test_distances_on_a_two_state_mdp_by_hand():
    """State 0 pays 0 and is predicted to lead to 0, state 1 pays 3 and leads to 1.5, in one dimension.

    Smooth L1 makes |z_0 - z_1| = 4 a distance of 3.5, the rewards 2.5 and the predictions 1.0."""
    z, reward = jnp.array([[0.0], [4.0]]), jnp.array([0.0, 3.0])
    predicted, pair = Normal(jnp.array([[[0.0], [1.5]]]), jnp.ones((1, 2, 1))), jnp.array([1, 0])
    dz, dr, dp = distances(z, reward, predicted, pair, mean_distance)
    np.testing.assert_allclose([dz, dr, dp], [[[3.5]] * 2, [[2.5]] * 2, [[1.0]] * 2])
    unpaired = distances(z, reward, predicted, jnp.array([0, 1]), mean_distance)
    np.testing.assert_array_equal(unpaired, np.zeros((3, 2, 1)))
    apart = Normal(jnp.array([[[0.0], [3.0]]]), jnp.array([[[1.0], [5.0]]]))
    np.testing.assert_allclose(distances(z, reward, apart, pair, wasserstein)[2], [[5.0]] * 2)  # sqrt(3^2 + 4^2)


class TwoStates(eqx.Module):
    """State 0 leads to 0, state 1 to 1.5, in all 8 dimensions."""

    def __call__(self, z, action):
        return Normal(jnp.stack([jnp.zeros((1, 8)), jnp.full((1, 8), 1.5)], 1), jnp.ones((1, 2, 8)))

    def sample(self, predicted, key):
        return predicted.mean[0]


def test_bisimulation_loss_vanishes_at_the_metric_and_pulls_towards_it(tiny, key):
    """The same MDP: the target is 2.5 + 0.99 x 1.0, which is the distance of latents that are 3.99 apart."""
    module = eqx.tree_at(lambda m: m.transition, DBC(tiny(agent="dbc"), ACTION_SIZE, key), TwoStates())
    reward, action = jnp.array([0.0, 3.0]), jnp.zeros((2, ACTION_SIZE))
    swap = next(k for k in jax.random.split(key, 20) if jax.random.permutation(jax.random.split(k)[0], 2)[0] == 1)

    @jax.jit
    @jax.value_and_grad
    def loss(x):
        z = jnp.stack([jnp.zeros(8), jnp.full(8, x)])
        return module.losses(z, z, action, reward, swap)[0]["bisimulation"].mean()

    assert float(loss(3.99)[0]) == pytest.approx(0, abs=1e-6)
    assert float(loss(4.99)[0]) == pytest.approx(0.5 * 1.0, rel=1e-4)
    assert float(loss(2.99)[1]) == pytest.approx(-1.0, rel=1e-4) and float(loss(4.99)[1]) == pytest.approx(
        1.0, rel=1e-4
    )


def test_smooth_l1():
    np.testing.assert_allclose(smooth_l1(jnp.array([0.0, 0.5, 1.0, -3.0]), 0.0), [0, 0.125, 0.5, 2.5])
