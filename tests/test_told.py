"""TOLD, the model of TD-MPC: its losses against a loop, what each trains, and the worth of plans."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ACTION_SIZE

from undistracted.agents.told import join, plan_value, policy_loss, proposals, told_losses
from undistracted.replay import stack

PARTS = ("encoder", "dynamics", "reward", "values")


@pytest.fixture(scope="module")
def losses(told, told_windows):
    """Of a model, slow copies and a policy, with fixed noise, compiled."""
    batch = stack(told_windows.rows, 3)
    noise = 0.05 * jax.random.normal(jax.random.key(2), (5, told.config.batch, ACTION_SIZE))

    def run(model, slow, pi):
        return told_losses(model, slow, pi, batch, model.encoder(batch.obs[1:]), noise, told.config)

    return batch, noise, run


def reaches(tree) -> bool:
    return any(np.asarray(leaf).any() for leaf in jax.tree.leaves(tree))


def test_a_new_model_foretells_no_reward_and_no_value(told):
    model = jax.jit(told.init)(jax.random.key(0)).policy.model
    z, action = jnp.ones((3, 8)), jnp.ones((3, ACTION_SIZE))
    assert not model.reward(join(z, action)).any() and not model.values(z, action).any()
    assert model.dynamics(join(z, action)).all()


def test_losses_are_those_of_a_loop_over_time(told, told_state, losses):
    batch, noise, run = losses
    (model, pi, _), slow = told_state.policy, told_state.slow
    ours, latents, error = jax.jit(run)(model, slow, pi)
    z, expected, priority = model.encoder(batch.obs[0]), dict.fromkeys(ours, 0.0), 0.0
    for t in range(5):
        a, r, rho = batch.action[t + 1], batch.reward[t + 1], 0.5**t
        np.testing.assert_allclose(latents[t], z, atol=1e-4)
        seen = model.encoder(batch.obs[t + 1])
        y = r + 0.99 * slow.values(seen, pi(seen, noise[t])).min(0)
        q = model.values(z, a)
        expected["reward"] += 0.5 * rho * (model.reward(join(z, a)) - r) ** 2
        expected["value"] += 0.1 * rho * ((q[0] - y) ** 2 + (q[1] - y) ** 2)
        priority += rho * (jnp.abs(q[0] - y) + jnp.abs(q[1] - y))
        z = model.dynamics(join(z, a))
        expected["consistency"] += 2 * rho * ((z - slow.encoder(batch.obs[t + 1])) ** 2).mean(-1)
    for name, loss in ours.items():
        np.testing.assert_allclose(loss, expected[name], rtol=1e-3)
    np.testing.assert_allclose(error, priority, rtol=1e-4)


def test_each_loss_trains_its_own_parts_and_none_the_targets(told_state, losses):
    _, _, run = losses
    (model, pi, _), slow = told_state.policy, told_state.slow

    @jax.jit
    def gradients(modules):
        def term(name):
            return jax.grad(lambda modules: run(*modules)[0][name].mean())

        return {name: term(name)(modules) for name in ("consistency", "reward", "value")}

    own = {"consistency": set(), "reward": {"reward"}, "value": {"values"}}
    for name, (of_model, of_slow, of_pi) in gradients((model, slow, pi)).items():
        assert {part for part in PARTS if reaches(getattr(of_model, part))} == {"encoder", "dynamics"} | own[name]
        assert not reaches(of_slow) and not reaches(of_pi), name


def test_consistency_is_with_the_slow_encoder_and_values_are_of_the_own(told_state, losses):
    """Swapped, both would still learn something, and badly: so each copy is moved in turn."""
    _, _, run = losses
    (model, pi, _), slow = told_state.policy, told_state.slow
    run = jax.jit(run)
    before = run(model, slow, pi)[0]

    def changed(slow):
        after = run(model, slow, pi)[0]
        return {name for name in before if not np.allclose(before[name], after[name])}

    assert changed(slow._replace(encoder=jax.tree.map(lambda x: x + 0.1, slow.encoder))) == {"consistency"}
    assert changed(slow._replace(values=jax.tree.map(lambda x: x + 0.1, slow.values))) == {"value"}


def test_the_policy_climbs_the_values_and_nothing_else_moves(told, told_state, key):
    (model, pi, _), z = told_state.policy, jax.random.normal(key, (6, 4, 8))
    noise = 0.05 * jax.random.normal(key, (6, 4, ACTION_SIZE))

    @jax.jit
    def step(pi, values, z):
        loss = lambda *args: policy_loss(*args, noise, 0.5).mean()  # noqa: E731
        return loss(pi, values, z), jax.grad(loss, (0, 2))(pi, values, z)

    value, (of_pi, of_z) = step(pi, model.values, z)
    expected = sum(0.5**t * model.values(z[t], pi(z[t], noise[t])).min(0).mean() for t in range(6))
    assert float(value) == pytest.approx(-float(expected), rel=1e-4)
    assert reaches(of_pi) and not reaches(of_z)
    better = jax.tree.map(lambda p, g: p - 0.01 * g, pi, of_pi)
    assert float(step(better, model.values, z)[0]) < float(value)


def test_gradients_pass_the_policys_clip(told_state):
    pi, z = told_state.policy.pi, jnp.ones((1, 8))
    pi = eqx.tree_at(lambda p: p.mlp.layers[-1].bias, pi, jnp.full(ACTION_SIZE, 3.0))
    action, slope = pi(z, jnp.full((1, ACTION_SIZE), 5.0)), eqx.filter_grad(lambda p: p(z, jnp.ones(2)).sum())(pi)
    assert float(action.max()) < 1 and reaches(slope)
    small = eqx.tree_at(lambda p: p.mlp.layers[-1], pi, replace_fn=lambda x: jax.tree.map(jnp.zeros_like, x))
    np.testing.assert_allclose(small(z, jnp.array([[5.0, -0.1]])), [[0.3, -0.1]], atol=1e-6)


@pytest.mark.parametrize("horizon", [1, 3, 5])
def test_a_plan_is_worth_its_rewards_and_then_the_policys_value(told_state, key, horizon):
    model, pi, _ = told_state.policy
    z, k = jax.random.normal(key, (8,)), jax.random.split(key)
    actions, noise = jax.random.uniform(k[0], (6, 5, ACTION_SIZE)), 0.05 * jax.random.normal(k[1], (6, ACTION_SIZE))
    ours = jax.jit(lambda h: plan_value(model, pi, z, actions, noise, h, 0.9))(horizon)
    for i in range(6):
        now, total = z[None], 0.0
        for t in range(horizon):
            total += 0.9**t * model.reward(join(now, actions[i, t][None]))[0]
            now = model.dynamics(join(now, actions[i, t][None]))
        total += 0.9**horizon * model.values(now, pi(now, noise[i][None])).min()
        assert float(ours[i]) == pytest.approx(float(total), rel=1e-3, abs=1e-4)


def test_proposals_follow_the_policy_through_the_model(told_state, key):
    model, pi, _ = told_state.policy
    z, noise = jax.random.normal(key, (8,)), 0.05 * jax.random.normal(key, (3, 5, ACTION_SIZE))
    ours, now = proposals(model, pi, z, noise), jnp.stack([z] * 3)
    for t in range(5):
        action = pi(now, noise[:, t])
        np.testing.assert_allclose(ours[:, t], action, atol=1e-5)
        now = model.dynamics(join(now, action))
