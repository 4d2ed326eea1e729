"""Denoised MDP: both slots filtered at once are each slot by itself, y hears no action, and without y it is Dreamer."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_dreamer import SIZES, term_gradients
from test_nets import shapes
from test_repo import zero

from undistracted.agents import make_agent
from undistracted.agents.denoised_mdp import DenoisedMDP, join
from undistracted.agents.dreamer import Dreamer
from undistracted.agents.settings import Denoised
from undistracted.dists import Normal, kl
from undistracted.presets import preset_config
from undistracted.rssm import Latent, normal

OWN = Denoised(y_belief=5, y_state=3)


def build(config):
    return eqx.filter_jit(lambda key: DenoisedMDP(config, 2, key))(jax.random.key(0))


@pytest.fixture(scope="module")
def denoised(tiny):
    return tiny(agent="denoised-mdp", denoised=OWN, **SIZES)


@pytest.fixture(scope="module")
def model(denoised):
    return build(denoised)


@pytest.fixture(scope="module")
def observed(model, batch):
    """Embeddings, and the joint latents, posteriors and priors that they are filtered to."""

    @eqx.filter_jit
    def observe(model, key):
        x = model.encoder(batch.obs)
        return x, model.rssm.observe(x, batch.action, batch.first, key)

    return observe(model, jax.random.key(7))


def assert_close(actual, expected, **tolerance):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def next_belief(slot, latent, *action):
    return slot.gru.apart(jax.nn.elu(slot.inputs(jnp.concatenate([latent.state, *action], -1))), latent.belief)


def test_filtering_both_slots_at_once_is_each_by_itself(model, batch, observed):
    """Reference: one row after the other, each slot's GRU alone, then the posterior that sees both beliefs."""
    rssm, (embedding, (latents, posteriors, priors)) = model.rssm, observed
    joint, step = rssm.initial(batch.first.shape[1]), eqx.filter_jit(lambda *args: rssm.step(*args))
    for t in range(len(batch.first)):
        keep = 1.0 - batch.first[t, :, None].astype(jnp.float32)
        x, y = rssm.slots(jax.tree.map(lambda leaf, keep=keep: leaf * keep, joint))
        beliefs = next_belief(rssm.x, x, batch.action[t] * keep), next_belief(rssm.y, y)
        hidden = jax.nn.elu(rssm.posterior_hidden(jnp.concatenate([*beliefs, embedding[t]], -1)))
        posterior = normal(rssm.posterior_out(hidden))
        mode = step(joint, batch.action[t], embedding[t], batch.first[t])
        joint = jax.tree.map(lambda leaf, t=t: leaf[t], latents)
        assert_close(joint.belief, jnp.concatenate(beliefs, -1), atol=1e-5)
        assert_close(mode, Latent(joint.belief, posterior.mean), atol=1e-5)
        assert_close(Normal(posteriors.mean[t], posteriors.std[t]), posterior, atol=1e-5)
        expected = join(*(slot.prior(b) for slot, b in zip((rssm.x, rssm.y), beliefs, strict=True)))
        assert_close(Normal(priors.mean[t], priors.std[t]), expected, atol=1e-5)


def test_ys_prior_ignores_actions(model, batch, observed):
    """From one latent, whatever is done: the same belief of y, and another of x; y's prior follows from that belief."""
    rssm, (embedding, (latents, _, _)) = model.rssm, observed
    before = jax.tree.map(lambda leaf: leaf[2], latents)
    first = jnp.zeros(batch.first.shape[1], bool)
    step = eqx.filter_jit(lambda action: rssm.step(before, action, embedding[3], first))
    (ax, ay), (bx, by) = (rssm.slots(step(action)) for action in (batch.action[3], batch.action[3] + 1))
    np.testing.assert_array_equal(ay.belief, by.belief)
    assert_close(rssm.y.prior(ay.belief), rssm.y.prior(by.belief), rtol=0)
    assert (np.abs(ax.belief - bx.belief).max(-1) > 1e-4).all()
    assert rssm.y.inputs.weight.shape[0] == OWN.y_state, "it has no place for an action"


def test_ys_belief_ignores_x(model, observed, batch):
    """The prior of y is a function of y alone; x reaches y through the posterior only."""
    rssm, (embedding, (latents, _, _)) = model.rssm, observed
    x, y = rssm.slots(jax.tree.map(lambda leaf: leaf[2], latents))
    other = jax.tree.map(lambda leaf: leaf + 1, x)
    first = jnp.zeros(batch.first.shape[1], bool)
    a, b = (rssm.slots(rssm.step(join(x, y), batch.action[3], embedding[3], first))[1] for x in (x, other))
    np.testing.assert_array_equal(a.belief, b.belief)
    assert np.abs(a.state - b.state).max() > 1e-4


def test_losses_are_the_objective(denoised, model, batch, observed, key):
    z, losses, metrics = eqx.filter_jit(lambda m: m.losses(batch, key))(model)
    _, (latents, posterior, prior) = observed
    x, y = model.rssm.slots(latents)
    assert_close(z, x, atol=1e-5)
    assert z.features.shape[-1] == denoised.belief + denoised.state and y.features.shape[-1] == 5 + 3
    zx = denoised.state
    parts = [kl(Normal(*(p[..., s] for p in posterior)), Normal(*(q[..., s] for q in prior)))
             for s in (slice(None, zx), slice(zx, None))]  # fmt: skip
    np.testing.assert_allclose(losses["kl"], np.maximum(parts[0], denoised.free_nats), rtol=1e-4)
    np.testing.assert_allclose(losses["kl_y"], denoised.denoised.beta * parts[1], rtol=1e-3, atol=1e-6)
    r_x, r_y = np.asarray(model.reward(x.features)), np.asarray(model.reward_y(y.features))
    error = r_x + r_y - np.asarray(batch.reward)
    expected = np.where(batch.first, 0, 0.5 * error**2 + 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(losses["reward"], expected, rtol=1e-4)
    assert metrics["reward_x_share"] == pytest.approx(r_x.var() / (r_x.var() + r_y.var()), rel=1e-2)
    assert metrics["reward_x_share"] + metrics["reward_y_share"] == pytest.approx(1)


def test_each_loss_reaches_its_own_parameters(tiny, model, batch, key):
    settings = tiny(agent="denoised-mdp", denoised=OWN, free_nats=0.0, **SIZES)
    structure = jax.tree.structure(eqx.filter_eval_shape(lambda key: DenoisedMDP(settings, 2, key), key))
    model = jax.tree.unflatten(structure, jax.tree.leaves(model))

    _, grads = term_gradients(model, batch, key)
    priors = {name: [not zero(slot.prior_out) for slot in (g.rssm.x, g.rssm.y)] for name, g in grads.items()}
    assert priors == {"image": [False] * 2, "reward": [False] * 2, "kl": [True, False], "kl_y": [False, True]}
    heads = {name: [not zero(part) for part in (g.reward, g.reward_y, g.decoder)] for name, g in grads.items()}
    no = [False] * 3
    assert heads == {"image": [False, False, True], "reward": [True, True, False], "kl": no, "kl_y": no}
    for g in grads.values():
        assert not zero(g.encoder) and not zero(g.rssm.posterior_out)


def test_without_y_it_is_dreamer(tiny, batch, key):
    """The same parameters, the same losses and gradients."""
    config = tiny(agent="denoised-mdp", denoised=Denoised(y_state=0), **SIZES)
    denoised = build(config)
    dreamer = eqx.filter_jit(lambda key: Dreamer(config, 2, key))(jax.random.key(0))
    slots, rssm = denoised.rssm, dreamer.rssm

    def parts(d):
        own = [d.encoder, d.reward, d.decoder]
        prior = [d.rssm.inputs, d.rssm.gru, d.rssm.prior_hidden, d.rssm.prior_out]
        return [*own, *prior, d.rssm.posterior_hidden, d.rssm.posterior_out]

    x = slots.x
    same = [denoised.encoder.convolutions, denoised.reward, denoised.decoder]
    same += [x.inputs, x.gru, x.prior_hidden, x.prior_out, slots.posterior_hidden, slots.posterior_out]
    dreamer = eqx.tree_at(parts, dreamer, same)
    assert slots.y.sizes == (0, 0) and rssm.sizes == x.sizes

    @eqx.filter_jit
    def run(model):
        def total(model):
            z, losses, metrics = model.losses(batch, key)
            return sum(loss.mean() for loss in losses.values()), (z, losses, metrics)

        return eqx.filter_value_and_grad(total, has_aux=True)(model)

    (a, (za, losses, _)), ga = run(denoised)
    (b, (zb, expected, _)), gb = run(dreamer)
    assert float(a) == pytest.approx(float(b), rel=1e-6)
    assert_close(za, zb, atol=1e-6)
    for name in expected:
        np.testing.assert_allclose(losses[name], expected[name], rtol=1e-5)
    assert zero(losses["kl_y"]) and zero(ga.reward_y)
    assert_close(ga.rssm.posterior_hidden, gb.rssm.posterior_hidden, rtol=1e-4, atol=1e-5)
    assert_close(ga.encoder.convolutions, gb.encoder, rtol=1e-4, atol=1e-5)


def test_behaviour_is_learned_from_x_and_its_reward_alone(denoised, batch, key):
    """Another R_y changes nothing that is imagined; another y in the picture of the carry does not reach the policy."""
    agent = make_agent(denoised, 2)
    state = jax.jit(agent.init)(jax.random.key(0))
    start = Latent(jnp.ones((3, denoised.belief)), jnp.ones((3, denoised.state)))
    other = eqx.tree_at(lambda m: m.reward_y, state.policy.model, replace_fn=lambda r: jax.tree.map(lambda p: p + 1, r))
    dream = jax.jit(lambda model: agent.dream(state.policy.actor, state.critic, model, start, key))
    a, b = dream(state.policy.model), dream(other)
    np.testing.assert_array_equal(a.returns, b.returns)
    assert a.features.shape[-1] == denoised.belief + denoised.state

    carry = agent.initial_carry(state.policy, 3)
    assert carry.latent.belief.shape == (3, denoised.belief + 5) and carry.latent.state.shape == (3, denoised.state + 3)
    action, carry = jax.jit(agent.act)(state.policy, carry, batch.obs[0, :3], batch.first[0, :3])
    x = state.policy.model.rssm.task(carry.latent)
    np.testing.assert_allclose(action, state.policy.actor.act(x.features), atol=1e-6)


def test_pictures_with_a_slot_held(model, batch, key):
    one = jax.tree.map(lambda leaf: leaf[:, :1], batch)
    films = eqx.filter_jit(lambda m: m.pictures(one, key))(model)
    assert set(films) == {"seen", "decoded", "y held", "x held"}
    assert all(film.shape == batch.obs[:, 0].shape and film.dtype == jnp.uint8 for film in films.values())
    np.testing.assert_array_equal(films["seen"], batch.obs[:, 0])
    for held in ("y held", "x held"):
        np.testing.assert_array_equal(films[held][0], films["decoded"][0])

    silent = eqx.tree_at(
        lambda m: m.decoder.inputs.weight, model, replace_fn=lambda w: w.at[16:21].set(0).at[-3:].set(0)
    )
    films = eqx.filter_jit(lambda m: m.pictures(one, key))(silent)  # a decoder that does not look at y
    np.testing.assert_array_equal(films["y held"], films["decoded"])
    assert (films["x held"] == films["x held"][:1]).all()


def test_published_settings():
    config = preset_config("dmc/walker-walk", "original", "denoised-mdp")
    model = shapes(lambda key: make_agent(config, 6).init(key)).policy.model
    assert model.rssm.x.sizes == model.rssm.y.sizes == (120, 20)
    assert model.rssm.x.inputs.weight.shape == (26, 120) and model.rssm.y.inputs.weight.shape == (20, 120)
    assert model.rssm.posterior_hidden.weight.shape == (1264, 240)
    assert model.rssm.posterior_out.weight.shape == (240, 80)
    assert model.encoder.linear.weight.shape == (1024, 1024)
    assert model.decoder.inputs.weight.shape == (280, 1024) and model.decoder.relu
    assert [layer.weight.shape for layer in model.reward_y.mlp.layers] == [(140, 400), (400, 400), (400, 1)]
    assert not config.free_nats_of_mean and config.denoised.beta == 0.25
    ours = preset_config("dmc/walker-walk", "paper", "denoised-mdp")
    assert config.image_std == ours.image_std == 2.0, "what the prices of x and y were published for"
