"""TD-MPC: TOLD's losses against a loop, what each trains, the worth of plans, schedules and exploration."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ACTION_SIZE

from undistracted.agents import make_agent
from undistracted.agents.told import join, plan_value, policy_loss, proposals, told_losses
from undistracted.data import Batch
from undistracted.priorities import Windows
from undistracted.replay import stack

PARTS = ("encoder", "dynamics", "reward", "values")


@pytest.fixture(scope="module")
def told(tiny):
    return make_agent(tiny(agent="tdmpc"), ACTION_SIZE)


@pytest.fixture(scope="module")
def start(told):
    """Its outputs are not zero, as those of a new model are: what depends on them shows."""
    state, k = jax.jit(told.init)(jax.random.key(0)), jax.random.split(jax.random.key(1), 5)

    def noise(outputs, keys):
        return [0.3 * jax.random.normal(k, w.shape) for w, k in zip(outputs, keys, strict=True)]

    def outputs(s):
        m = s.policy.model
        return [
            m.reward.mlp.layers[-1].weight,
            *(h.rest.layers[-1].weight for h in [*m.values.heads, *s.slow.values.heads]),
        ]

    return eqx.tree_at(outputs, state, noise(outputs(state), k))


@pytest.fixture(scope="module")
def drawn(told) -> Windows:
    """Eight rows each, of noise: the two before, the row itself, and the five after it."""
    rng, shape = np.random.default_rng(0), (8, told.config.batch)
    rows = Batch(
        jnp.asarray(rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8)),
        jnp.asarray(rng.uniform(-1, 1, (*shape, ACTION_SIZE)), "float32"),
        jnp.asarray(rng.normal(size=shape), "float32"),
        jnp.zeros(shape, bool),
    )
    return Windows(rows, jnp.linspace(0.5, 1, shape[1]), jnp.arange(shape[1]))


@pytest.fixture(scope="module")
def losses(told, drawn):
    """Of a model, slow copies and a policy, with fixed noise, compiled."""
    batch = stack(drawn.rows, 3)
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


def test_losses_are_those_of_a_loop_over_time(told, start, losses):
    batch, noise, run = losses
    (model, pi, _), slow = start.policy, start.slow
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


def test_each_loss_trains_its_own_parts_and_none_the_targets(start, losses):
    _, _, run = losses
    (model, pi, _), slow = start.policy, start.slow

    @jax.jit
    def gradients(modules):
        def term(name):
            return jax.grad(lambda modules: run(*modules)[0][name].mean())

        return {name: term(name)(modules) for name in ("consistency", "reward", "value")}

    own = {"consistency": set(), "reward": {"reward"}, "value": {"values"}}
    for name, (of_model, of_slow, of_pi) in gradients((model, slow, pi)).items():
        assert {part for part in PARTS if reaches(getattr(of_model, part))} == {"encoder", "dynamics"} | own[name]
        assert not reaches(of_slow) and not reaches(of_pi), name


def test_consistency_is_with_the_slow_encoder_and_values_are_of_the_own(start, losses):
    """Swapped, both would still learn something, and badly: so each copy is moved in turn."""
    _, _, run = losses
    (model, pi, _), slow = start.policy, start.slow
    run = jax.jit(run)
    before = run(model, slow, pi)[0]

    def changed(slow):
        after = run(model, slow, pi)[0]
        return {name for name in before if not np.allclose(before[name], after[name])}

    assert changed(slow._replace(encoder=jax.tree.map(lambda x: x + 0.1, slow.encoder))) == {"consistency"}
    assert changed(slow._replace(values=jax.tree.map(lambda x: x + 0.1, slow.values))) == {"value"}


def test_the_policy_climbs_the_values_and_nothing_else_moves(told, start, key):
    (model, pi, _), z = start.policy, jax.random.normal(key, (6, 4, 8))
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


def test_gradients_pass_the_policys_clip(start):
    pi, z = start.policy.pi, jnp.ones((1, 8))
    pi = eqx.tree_at(lambda p: p.mlp.layers[-1].bias, pi, jnp.full(ACTION_SIZE, 3.0))
    action, slope = pi(z, jnp.full((1, ACTION_SIZE), 5.0)), eqx.filter_grad(lambda p: p(z, jnp.ones(2)).sum())(pi)
    assert float(action.max()) < 1 and reaches(slope)
    small = eqx.tree_at(lambda p: p.mlp.layers[-1], pi, replace_fn=lambda x: jax.tree.map(jnp.zeros_like, x))
    np.testing.assert_allclose(small(z, jnp.array([[5.0, -0.1]])), [[0.3, -0.1]], atol=1e-6)


@pytest.mark.parametrize("horizon", [1, 3, 5])
def test_a_plan_is_worth_its_rewards_and_then_the_policys_value(start, key, horizon):
    model, pi, _ = start.policy
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


def test_proposals_follow_the_policy_through_the_model(start, key):
    model, pi, _ = start.policy
    z, noise = jax.random.normal(key, (8,)), 0.05 * jax.random.normal(key, (3, 5, ACTION_SIZE))
    ours, now = proposals(model, pi, z, noise), jnp.stack([z] * 3)
    for t in range(5):
        action = pi(now, noise[:, t])
        np.testing.assert_allclose(ours[:, t], action, atol=1e-5)
        now = model.dynamics(join(now, action))


def test_schedules_are_driven_by_the_updates(told, start):
    """Steps are told by updates, of which there are 0.05 a step here: 100 steps of the schedule are 5 updates."""
    horizons = [int(told.horizon(start.policy._replace(updates=jnp.int32(n)))) for n in (0, 1, 2, 4, 5, 99)]
    assert horizons == [1, 1, 2, 4, 5, 5]
    assert float(told.progress(start.policy._replace(updates=jnp.int32(2)))) == pytest.approx(0.4)


def test_acting_remembers_its_plan_within_an_episode_and_is_clipped(told, start, drawn, key):
    policy = start.policy._replace(updates=jnp.int32(100))
    act = jax.jit(told.act)
    carry = told.initial_carry(policy, 4)
    action, after = act(policy, carry, drawn.rows.obs[0], jnp.ones(4, bool))
    again, _ = act(policy, carry, drawn.rows.obs[0], jnp.ones(4, bool))
    np.testing.assert_array_equal(action, again)
    assert int(after.count) == 1 and np.abs(after.mean).max() > 0.01
    single, _ = act(policy, told.initial_carry(policy, 1), drawn.rows.obs[0, 2:3], jnp.ones(1, bool))
    np.testing.assert_allclose(single[0], action[2], atol=1e-5, err_msg="an environment is planned for alone")
    away = after._replace(mean=after.mean + 5, count=carry.count)
    fresh, _ = act(policy, away, drawn.rows.obs[0], jnp.ones(4, bool))
    np.testing.assert_array_equal(fresh, action, "a first row forgets the plan")
    early = start.policy._replace(updates=jnp.int32(0))  # std 0.5 at least
    noisy = np.stack([act(early, after, drawn.rows.obs[1], jnp.zeros(4, bool), k)[0] for k in jax.random.split(key, 9)])
    assert np.abs(noisy).max() == 1 and noisy.std(0).min() > 0.2


def test_an_update_moves_what_it_should_and_weighs_the_windows(told, start, drawn, key):
    update = jax.jit(told.update)
    after, metrics, error = update(start, drawn, key)
    assert int(after.policy.updates) == 1 and error.shape == (told.config.batch,) and float(error.min()) > 0
    for part in PARTS:
        assert not np.array_equal(*(jax.tree.leaves(getattr(s.policy.model, part))[0] for s in (start, after)))
    for old, new, fast in zip(
        jax.tree.leaves(start.slow),
        jax.tree.leaves(after.slow),
        jax.tree.leaves((after.policy.model.encoder, after.policy.model.values)),
        strict=True,
    ):
        np.testing.assert_allclose(new - old, 0.01 * (fast - old), atol=1e-6)
    second, held, _ = update(after, drawn, key)
    for old, new in zip(jax.tree.leaves(after.slow), jax.tree.leaves(second.slow), strict=True):
        np.testing.assert_array_equal(new, old)
    assert held["plan_value"] == metrics["plan_value"] != 0, "planned for the log at the first update only"
    assert metrics["latent_variance"] > 0 and metrics["plan_horizon"] == 1
    light = update(start, drawn._replace(weight=0.5 * drawn.weight), key)[1]
    for name in ("consistency_loss", "reward_loss", "value_loss"):
        assert float(light[name]) == pytest.approx(0.5 * float(metrics[name]), rel=1e-4)
    none = update(start, drawn._replace(weight=0 * drawn.weight), key)[0]
    assert np.array_equal(none.policy.model.dynamics.layers[0].weight, start.policy.model.dynamics.layers[0].weight)
