"""RePo's objective: the dual variable, the bottleneck, masked rewards, episode boundaries, the table by domain."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.agents.repo import RePo
from undistracted.dists import kl
from undistracted.presets import complete, preset_config

PARTS = ("encoder", "rssm", "reward")


@pytest.fixture(scope="module")
def run(state):
    """`losses` of a model, compiled."""
    return eqx.filter_jit(lambda model, batch, key: model.losses(batch, key))


def zero(tree) -> bool:
    return not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(tree))


def far_posterior(state):
    """The same agent with posterior means far from the prior's, so that the KL is large."""
    return eqx.tree_at(lambda s: s.policy.model.rssm.posterior_out.bias, state, replace_fn=lambda bias: bias + 9)


@pytest.mark.parametrize(("change", "sign"), [(lambda state: state, -1), (far_posterior, 1)])
def test_beta_rises_above_the_budget_and_falls_below(config, state, update, batch, key, change, sign):
    """By about its rate in log beta at each update, however large the violation is: Adam's step."""
    now = change(state)
    for i in range(1, 4):
        now, metrics = update(now, batch, jax.random.fold_in(key, i))
        assert np.sign(metrics["kl"] - config.epsilon) == sign
        moved = float(now.policy.model.log_beta) - np.log(config.beta0)
        assert moved == pytest.approx(sign * i * config.beta_lr, rel=0.02)


def test_dual_step_is_its_own_and_unclipped(tiny, state):
    """A clip far below Adam's epsilon stops the model and not beta; a huge dual gradient does not clip the model."""
    config = tiny(clip=1e-12)
    model = state.policy.model

    def step(config, gradients):
        optimiser = RePo.optimiser(config)
        return jax.jit(lambda model, gradients: optimiser.update(gradients, optimiser.init(model), model)[0])(
            model, gradients
        )

    gradients = jax.tree.map(jnp.ones_like, model)
    updates = step(config, gradients)
    assert float(updates.log_beta) == pytest.approx(-config.beta_lr, rel=1e-4)
    assert max(np.abs(u).max() for part in PARTS for u in jax.tree.leaves(getattr(updates, part))) < 1e-6

    config = tiny(clip=1.0, model_lr=0.5)
    gradients = eqx.tree_at(
        lambda m: m.log_beta, jax.tree.map(lambda x: jnp.full_like(x, 1e-6), model), jnp.float32(1e9)
    )
    updates = step(config, gradients)
    for part in PARTS:
        for u in jax.tree.leaves(getattr(updates, part)):
            np.testing.assert_allclose(u, -0.5 * 1e-6 / (1e-6 + 1e-8), rtol=1e-3)


def test_losses_are_the_objective(config, state, batch, run, key):
    """Per row: the KL of posterior and prior against its budget, by beta in the bottleneck and log beta in the dual."""
    model = far_posterior(state).policy.model
    z, losses, metrics = run(model, batch, key)
    observe = eqx.filter_jit(lambda model: model.rssm.observe(model.encoder(batch.obs), batch.action, batch.first, key))
    latent, posterior, prior = observe(model)
    np.testing.assert_allclose(z.features, latent.features, atol=1e-5)
    violation = np.asarray(kl(posterior, prior)) - config.epsilon
    np.testing.assert_allclose(losses["bottleneck"], config.beta0 * violation, rtol=1e-3)
    np.testing.assert_allclose(losses["dual"], -np.log(config.beta0) * violation, rtol=1e-3)
    np.testing.assert_allclose(metrics["kl"], violation.mean() + config.epsilon, rtol=1e-4)
    assert metrics["beta"] == pytest.approx(config.beta0)


def test_each_loss_reaches_its_own_parameters(state, batch, key):
    model = state.policy.model

    @eqx.filter_jit
    def gradients(model):
        def term(name):
            return eqx.filter_grad(lambda model: model.losses(batch, key)[1][name].mean())(model)

        return {name: term(name) for name in ("reward", "bottleneck", "dual")}, model.losses(batch, key)[2]["kl"]

    grads, divergence = gradients(model)
    assert all(zero(getattr(grads["dual"], part)) for part in PARTS)
    assert float(grads["dual"].log_beta) == pytest.approx(float(model.epsilon - divergence), rel=1e-4)
    assert float(grads["bottleneck"].log_beta) == float(grads["reward"].log_beta) == 0
    assert zero(grads["bottleneck"].reward)
    assert zero((grads["reward"].rssm.prior_hidden, grads["reward"].rssm.prior_out))
    for name in ("reward", "bottleneck"):
        assert not zero(grads[name].encoder)
        assert not zero(grads[name].rssm.posterior_out)
    assert not zero(grads["bottleneck"].rssm.prior_out)


def test_reward_loss_is_that_of_a_unit_gaussian_and_zero_on_first_rows(state, batch, run, key):
    model = state.policy.model
    z, losses, _ = run(model, batch, key)
    error = np.asarray(model.reward(z.features) - batch.reward)
    expected = np.where(batch.first, 0, 0.5 * error**2 + 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(losses["reward"], expected, rtol=1e-4)
    assert batch.first.sum() == 1

    wrong = batch._replace(reward=jnp.where(batch.first, 1e6, batch.reward))
    np.testing.assert_array_equal(run(model, wrong, key)[1]["reward"], losses["reward"])
    wrong = batch._replace(reward=batch.reward + 1)
    assert (run(model, wrong, key)[1]["reward"] != losses["reward"]).sum() == batch.first.size - 1


def test_official_boundary_changes_what_follows_an_episode_start_and_nothing_else(tiny, state, batch, run, key):
    """Same parameters; same latents up to the start and in the other sequences; reward masks alike."""
    make = jax.eval_shape(lambda key: RePo(tiny(official_boundary=True), batch.action.shape[-1], key), key)
    _, structure = jax.tree.flatten(make)
    official = jax.tree.unflatten(structure, jax.tree.leaves(state.policy.model))
    (a, losses, _), (b, official_losses, _) = run(state.policy.model, batch, key), run(official, batch, key)
    start = int(np.argmax(batch.first[:, 0]))
    differs = np.abs(a.features - b.features).max(-1) > 1e-5
    expected = np.zeros_like(differs)
    expected[start:, 0] = True
    np.testing.assert_array_equal(differs, expected)
    assert losses["reward"][start, 0] == official_losses["reward"][start, 0] == 0

    unbroken = batch._replace(first=jnp.zeros_like(batch.first))
    for x, y in zip(
        *(jax.tree.leaves(run(model, unbroken, key)) for model in (state.policy.model, official)), strict=True
    ):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("task", "beta0", "epsilon", "r"),
    [
        ("distracted/walker-walk", 1e-5, 3, 5),
        ("dmc/cheetah-run", 1e-5, 3, 5),
        ("scoreboard/hopper-stand", 1e-4, 1, 3),
        ("distracted/cartpole-swingup", 1e-4, 3, 4),
        ("distracted/finger-spin", 1e-5, 3, 5),
    ],
)
def test_bottleneck_settings_come_from_the_papers_table(tiny, task, beta0, epsilon, r):
    config = tiny(task)
    assert (config.beta0, config.epsilon, config.r) == (beta0, epsilon, r)
    model = jax.eval_shape(lambda key: RePo(config, 1, key), jax.random.key(0))
    assert (model.epsilon, model.alpha) == (epsilon, pytest.approx(r / (r + 1)))
    config = tiny(task, epsilon=0.0, r=1.5)
    assert (config.beta0, config.epsilon, config.r) == (beta0, 0.0, 1.5)


def test_tuned_is_the_papers_run_but_for_rates_price_and_moved_pictures():
    tuned, paper = (complete(preset_config("distracted/walker-walk", name)) for name in ("tuned", "paper"))
    changes = dict(preset="tuned", model_lr=6e-4, beta0=1e-4, beta_lr=3e-4, shift=4)
    assert tuned == dataclasses.replace(paper, **changes)


def test_losses_mix_no_dtypes(state, batch, agent, key):
    """Nothing in model, imagination or behaviour relies on implicit promotion (Optax does, so no whole update)."""

    def everything(state, batch):
        (model, actor), critic = state.policy, state.critic
        z, losses, metrics = model.losses(batch, key)
        start = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), z)
        return losses, metrics, agent.dream(actor, critic, model, start, key)

    with jax.numpy_dtype_promotion("strict"):
        shapes = jax.eval_shape(everything, state, batch)
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {np.dtype("float32")}
