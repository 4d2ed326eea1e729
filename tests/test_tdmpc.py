"""TD-MPC as an agent: its schedules, how it acts and explores, and what one update moves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import ACTION_SIZE

from undistracted.agents.tdmpc import TDMPC


def test_schedules_are_driven_by_the_updates(told, told_state):
    """Steps are told by updates, of which there are 0.05 a step here: 100 steps of the schedule are 5 updates."""
    horizons = [int(told.horizon(told_state.policy._replace(updates=jnp.int32(n)))) for n in (0, 1, 2, 4, 5, 99)]
    assert horizons == [1, 1, 2, 4, 5, 5]
    assert float(told.progress(told_state.policy._replace(updates=jnp.int32(2)))) == pytest.approx(0.4)


def test_acting_remembers_its_plan_within_an_episode_and_is_clipped(told, told_state, told_windows, key):
    policy = told_state.policy._replace(updates=jnp.int32(100))
    act = jax.jit(told.act)
    carry = told.initial_carry(policy, 4)
    action, after = act(policy, carry, told_windows.rows.obs[0], jnp.ones(4, bool))
    again, _ = act(policy, carry, told_windows.rows.obs[0], jnp.ones(4, bool))
    np.testing.assert_array_equal(action, again)
    assert int(after.count) == 1 and np.abs(after.mean).max() > 0.01
    single, _ = act(policy, told.initial_carry(policy, 1), told_windows.rows.obs[0, 2:3], jnp.ones(1, bool))
    np.testing.assert_allclose(single[0], action[2], atol=1e-5, err_msg="an environment is planned for alone")
    away = after._replace(mean=after.mean + 5, count=carry.count)
    fresh, _ = act(policy, away, told_windows.rows.obs[0], jnp.ones(4, bool))
    np.testing.assert_array_equal(fresh, action, "a first row forgets the plan")
    early = told_state.policy._replace(updates=jnp.int32(0))  # std 0.5 at least
    noisy = np.stack(
        [act(early, after, told_windows.rows.obs[1], jnp.zeros(4, bool), k)[0] for k in jax.random.split(key, 9)]
    )
    assert np.abs(noisy).max() == 1 and noisy.std(0).mean() > 0.2  # less where the plan is at a bound


@pytest.mark.parametrize(("updates", "std"), [(0, 0.3), (100, 0.1)])
def test_explores_by_the_std_of_its_plan_whose_floor_falls(tiny, told_state, told_windows, key, updates, std):
    """A single elite has no spread of its own, so that the plan's std is its floor, and its mean that elite,
    here the policy's best proposal."""
    own = dict(samples=0, elites=1, rounds=1, momentum=0.0, first_std=0.3, last_std=0.1)
    config = tiny(agent="tdmpc")
    agent = TDMPC(dataclasses.replace(config, tdmpc=dataclasses.replace(config.tdmpc, **own)), ACTION_SIZE)
    policy, obs = told_state.policy._replace(updates=jnp.int32(updates)), jnp.repeat(told_windows.rows.obs[0], 64, 0)
    carry, first = agent.initial_carry(policy, len(obs)), jnp.ones(len(obs), bool)
    for explore, expected in ((key, std), (None, 0)):
        action, after = jax.jit(agent.act)(policy, carry, obs, first, explore)
        noise = (action - after.mean[:, 0])[jnp.abs(after.mean[:, 0]) < 0.4]  # hardly ever clipped
        assert len(noise) > 100 and float(noise.std()) == pytest.approx(expected, rel=0.15, abs=1e-6)


def test_the_gradient_is_divided_by_the_horizon_before_it_is_clipped(told, told_state):
    model = told_state.policy.model
    gradient = jax.tree.map(jnp.ones_like, model)
    gradient = jax.tree.map(lambda g: 40 * g / optax.tree.norm(gradient), gradient)  # 8 of 10 by then
    _, moments = told.optimisers["model"].update(gradient, told_state.moments["model"], model)
    assert float(optax.tree.norm(optax.tree.get(moments, "mu"))) == pytest.approx(0.1 * 8, rel=1e-4)


def test_an_update_moves_what_it_should_and_weighs_the_windows(told, told_state, told_windows, key):
    update = jax.jit(told.update)
    after, metrics, error = update(told_state, told_windows, key)
    assert int(after.policy.updates) == 1 and error.shape == (told.config.batch,) and float(error.min()) > 0
    for part in ("encoder", "dynamics", "reward", "values"):
        assert not np.array_equal(*(jax.tree.leaves(getattr(s.policy.model, part))[0] for s in (told_state, after)))
    for old, new, fast in zip(
        jax.tree.leaves(told_state.slow),
        jax.tree.leaves(after.slow),
        jax.tree.leaves((after.policy.model.encoder, after.policy.model.values)),
        strict=True,
    ):
        np.testing.assert_allclose(new - old, 0.01 * (fast - old), atol=1e-6)
    second, held, _ = update(after, told_windows, key)
    for old, new in zip(jax.tree.leaves(after.slow), jax.tree.leaves(second.slow), strict=True):
        np.testing.assert_array_equal(new, old)
    assert held["plan_value"] == metrics["plan_value"] != 0, "planned for the log at the first update only"
    assert metrics["latent_variance"] > 0 and metrics["plan_horizon"] == 1
    other = update(told_state, told_windows, jax.random.fold_in(key, 1))[1]
    assert other["latent_variance"] != metrics["latent_variance"], "pictures are moved at random"
    light = update(told_state, told_windows._replace(weight=0.5 * told_windows.weight), key)[1]
    for name in ("consistency_loss", "reward_loss", "value_loss"):
        assert float(light[name]) == pytest.approx(0.5 * float(metrics[name]), rel=1e-4)
    none = update(told_state, told_windows._replace(weight=0 * told_windows.weight), key)[0]
    assert np.array_equal(
        none.policy.model.dynamics.layers[0].weight, told_state.policy.model.dynamics.layers[0].weight
    )
