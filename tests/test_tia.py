"""TIA: who minimises what, the adversary's inner steps, the mask, and four optimisers that keep to their groups."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_dreamer import SIZES, term_gradients
from test_nets import count, shapes
from test_repo import zero

from undistracted.agents import make_agent
from undistracted.agents.settings import TIA as Settings
from undistracted.agents.tia import TIA
from undistracted.decoder import image_nll
from undistracted.optim import adam
from undistracted.presets import preset_config

GROUPS = {
    "task": lambda m: (m.encoder, m.rssm, m.reward),
    "distractor": lambda m: m.distractor,
    "joint": lambda m: m.joint,
    "adversary": lambda m: m.adversary,
}
OWN = Settings(adversary=30.0, alone=1.5, inner_steps=3)


@pytest.fixture(scope="module")
def settings(tiny):
    return tiny(agent="tia", tia=OWN, free_nats=0.0, clip=1e9, **SIZES)


@pytest.fixture(scope="module")
def agent(settings):
    return make_agent(settings, 2)


@pytest.fixture(scope="module")
def state(agent):
    return jax.jit(agent.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def model(state):
    return state.policy.model


@eqx.filter_jit
def metrics_of(model, batch, key):
    return model.losses(batch, key)[2]


@pytest.fixture(scope="module")
def terms(model, batch):
    """Each loss's mean, and its gradient."""
    return term_gradients(model, batch, jax.random.key(7))


def test_each_loss_reaches_its_own_groups(terms):
    reached = {name: {g for g, part in GROUPS.items() if not zero(part(grad))} for name, grad in terms[1].items()}
    assert reached == {
        "image": {"task", "distractor", "joint"},
        "reward": {"task"},
        "kl": {"task"},
        "alone": {"distractor"},
        "distractor_kl": {"distractor"},
        "adversary": {"distractor"},
    }
    alone, adversary = terms[1]["alone"].distractor, terms[1]["adversary"].distractor
    assert not zero(alone.decoder) and zero(adversary.decoder)
    assert not zero(adversary.encoder) and not zero(adversary.rssm)


def test_values_of_the_terms(model, batch, key, terms):
    @eqx.filter_jit
    def parts(model):
        (task, *_), (distractor, *_) = model.observe(batch, key)
        return (
            model.joint(task.features, distractor.features),
            model.distractor.decoder(distractor.features),
            model.adversary(distractor.features),
        )

    (picture, mask, of_task, of_distractor), alone, guess = parts(model)
    assert mask.shape == (*batch.reward.shape, 16, 16, 1) and mask.min() > 0 and mask.max() < 1
    np.testing.assert_allclose(picture, mask * of_task + (1 - mask) * of_distractor, atol=1e-6)
    means, _ = terms
    metrics = metrics_of(model, batch, key)
    assert means["image"] == pytest.approx(float(image_nll(picture, batch.obs, 2.0).mean()), rel=1e-5)
    assert means["alone"] == pytest.approx(1.5 * float(image_nll(alone, batch.obs, 2.0).mean()), rel=1e-5)
    nll = np.where(batch.first, 0, 0.5 * (guess - batch.reward) ** 2 + 0.5 * np.log(2 * np.pi)).mean()
    assert means["adversary"] == pytest.approx(-30 * nll, rel=1e-4)
    assert metrics["adversary_nll"] == pytest.approx(nll, rel=1e-4)
    assert metrics["mask"] == pytest.approx(float(mask.mean()), rel=1e-4)


def test_distractor_stream_is_pushed_to_fool_the_adversary(model, batch, key, terms):
    """A step along the negative gradient of the adversary's term makes the adversary's error larger."""
    moved = jax.tree.map(lambda p, g: p - 1e-2 * g, model, terms[1]["adversary"])
    after = metrics_of(moved, batch, key)
    assert after["adversary_nll"] > -terms[0]["adversary"] / OWN.adversary + 1e-4


def test_inner_steps_fit_the_adversary_and_nothing_else(settings, state, model, batch, key):
    """Reference: as many plain Adam steps on the detached latents of the distractor stream."""
    moments = state.moments["model"]
    after, new_moments = eqx.filter_jit(lambda m, moments: m.prepare(moments, batch, key))(model, moments)
    for name in ("task", "distractor", "joint"):
        for a, b in zip(jax.tree.leaves(GROUPS[name](after)), jax.tree.leaves(GROUPS[name](model)), strict=True):
            np.testing.assert_array_equal(a, b)
    features = eqx.filter_jit(lambda m: m.observe(batch, key)[1][0].features)(model)

    def loss(head):
        return jnp.where(batch.first, 0, 0.5 * (head(features) - batch.reward) ** 2).mean()

    optimiser, head = adam(settings.model_lr, settings.clip), model.adversary
    moment, before = optimiser.init(head), loss(head)
    step = eqx.filter_jit(lambda head, moment: optimiser.update(jax.grad(loss)(head), moment))
    for _ in range(OWN.inner_steps):
        updates, moment = step(head, moment)
        head = eqx.apply_updates(head, updates)
    for a, b in zip(jax.tree.leaves(after.adversary), jax.tree.leaves(head), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert loss(after.adversary) < before
    assert [int(x) for x in jax.tree.leaves(new_moments.adversary) if x.dtype == jnp.int32] == [OWN.inner_steps]
    for a, b in zip(jax.tree.leaves(new_moments.groups), jax.tree.leaves(moments.groups), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_gradient_serves_all_groups(model, settings, terms):
    """The update of a group is that of Adam, first step, on the gradient of what the group minimises, clipped alone."""
    grads = terms[1]
    total = jax.tree.map(lambda *g: sum(g), *grads.values())
    line = {
        "task": ["image", "reward", "kl"],
        "distractor": ["image", "alone", "distractor_kl", "adversary"],
        "joint": ["image", "image"],
    }
    tight = settings.__class__(**{**vars(settings), "clip": 1e-6, "adam_eps": 1e-6})
    optimiser = TIA.optimiser(tight)
    updates, _ = jax.jit(lambda g: optimiser.update(g, optimiser.init(model), model))(total)
    for name, losses in line.items():
        part = GROUPS[name]
        gradient = jax.tree.map(lambda *g: sum(g), *[part(grads[loss]) for loss in losses])
        shorter = min(1, 1e-6 / float(optax.tree.norm(gradient)))
        clipped = jax.tree.map(lambda g, shorter=shorter: g * shorter, gradient)
        for u, g in zip(jax.tree.leaves(part(updates)), jax.tree.leaves(clipped), strict=True):
            np.testing.assert_allclose(u, -tight.model_lr * g / (np.abs(g) + 1e-6), rtol=1e-2, atol=1e-9)
    assert zero(updates.adversary)


def test_joint_decoders_take_the_picture_twice(model, settings, terms):
    """Both lines hold the joint picture: against an epsilon far above the gradient, the step is twice as long."""
    loose = settings.__class__(**{**vars(settings), "adam_eps": 1e12})
    optimiser = TIA.optimiser(loose)
    gradient = terms[1]["image"]
    updates, _ = jax.jit(lambda g: optimiser.update(g, optimiser.init(model), model))(gradient)
    for name, factor in (("task", 1), ("distractor", 1), ("joint", 2)):
        for u, g in zip(*(jax.tree.leaves(GROUPS[name](tree)) for tree in (updates, gradient)), strict=True):
            np.testing.assert_allclose(u * 1e12, -factor * loose.model_lr * g, rtol=1e-3, atol=1e-9)


def test_an_update_moves_every_group_and_the_refreshed_adversary_judges(agent, state, batch, key):
    after, metrics = jax.jit(agent.update)(state, batch, key)
    for part in GROUPS.values():
        moved = [(a != b).any() for a, b in zip(*(jax.tree.leaves(part(s.policy.model)) for s in (state, after)),
                                                strict=True)]  # fmt: skip
        assert all(moved)
    model_key, _ = jax.random.split(key)
    prepare = eqx.filter_jit(lambda m, moments, key: m.prepare(moments, batch, key))
    fresh, _ = prepare(state.policy.model, state.moments["model"], model_key)
    expected, stale = (float(metrics_of(m, batch, model_key)["adversary_nll"]) for m in (fresh, state.policy.model))
    assert metrics["adversary_nll"] == pytest.approx(expected, rel=1e-3)
    assert metrics["adversary_nll"] < stale - 1e-4
    for a, b in zip(*(jax.tree.leaves(x) for x in (after.policy.model.adversary, fresh.adversary)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_pictures_of_both_streams(model, batch, key):
    one = jax.tree.map(lambda leaf: leaf[:, :1], batch)

    def films(bias):
        masked = eqx.tree_at(lambda m: m.joint.mask.bias, model, jnp.full(1, bias))
        return eqx.filter_jit(lambda m: m.pictures(one, key))(masked)

    names = {"seen", "joint", "task", "distractor", "mask", "distractor alone"}
    for bias, white, all_of in ((50.0, 255, "task"), (-50.0, 0, "distractor")):
        shown = films(bias)
        assert set(shown) == names and all(film.shape == batch.obs[:, 0].shape for film in shown.values())
        assert (shown["mask"] == white).all()
        np.testing.assert_array_equal(shown["joint"], shown[all_of])
        other = "distractor" if all_of == "task" else "task"
        assert (shown[other] == 128).all()


def test_published_settings():
    original, ours = (preset_config("dmc/walker-walk", preset, "tia") for preset in ("original", "paper"))
    assert original.tia == ours.tia == Settings(adversary=20_000.0, alone=1.5, inner_steps=20)
    model = shapes(lambda key: make_agent(original, 6).init(key)).policy.model
    assert model.encoder.size == model.distractor.encoder.size == 832
    assert model.joint.task.layers[-1].weight.shape == model.joint.distractor.layers[-1].weight.shape == (26, 6, 6, 6)
    assert model.distractor.decoder.layers[-1].weight.shape == (26, 6, 6, 3)
    assert [layer.weight.shape[1] for layer in model.adversary.mlp.layers] == [400, 400, 1]
    assert original.image_std == ours.image_std == 2.0, "what the weights were published for"
    assert (ours.channels, ours.hidden, ours.model_lr) == ((32, 64, 128, 256), 200, 3e-4)
    assert count(model.rssm) == count(model.distractor.rssm)
