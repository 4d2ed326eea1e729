"""Initial weights: bounds, variances and orthogonality by the formulas, and what they do to a deep network's output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted.agents import make_agent
from undistracted.decoder import Deconv
from undistracted.encoder import Encoder
from undistracted.gru import GRU
from undistracted.initial import as_drawn, glorot, orthogonal
from undistracted.nets import MLP, Linear
from undistracted.presets import complete, preset_config

KEYS = jax.random.split(jax.random.key(0), 2)


def is_uniform_in(bound, weight):
    weight = np.asarray(weight, np.float64)
    assert np.abs(weight).max() <= bound
    np.testing.assert_allclose(weight.std(), bound / 3**0.5, rtol=0.03)


@pytest.mark.parametrize(
    ("layer", "inputs", "outputs"),
    [(Linear(300, 100, KEYS[0]), 300, 100), (Deconv(40, 20, 5, KEYS[0]), 25 * 40, 25 * 20)],
)
def test_glorot_by_its_formula(layer, inputs, outputs):
    layer = glorot(layer, KEYS[1])
    is_uniform_in((6 / (inputs + outputs)) ** 0.5, layer.weight)
    assert not layer.bias.any()


def test_a_convolutions_outputs_are_counted_by_the_window():
    """A layer of the encoder does not know that it is a convolution; the encoder does."""
    first, second = glorot(Encoder((32, 64), KEYS[0]), KEYS[1]).layers
    is_uniform_in((6 / (16 * 3 + 16 * 32)) ** 0.5, first.weight)
    is_uniform_in((6 / (16 * 32 + 16 * 64)) ** 0.5, second.weight)
    assert not first.bias.any() and not second.bias.any()


def test_a_grus_state_begins_orthogonal():
    cell = glorot(GRU(50, 40, KEYS[0]), KEYS[1])
    is_uniform_in((6 / (50 + 120)) ** 0.5, cell.inputs.weight)
    np.testing.assert_allclose(cell.hidden.weight @ cell.hidden.weight.T, np.eye(40), atol=1e-5)
    assert not cell.inputs.bias.any() and not cell.hidden.bias.any()


def test_every_layer_of_a_module_is_renewed_and_no_two_alike():
    mlp = MLP(32, 32, 2, 32, KEYS[0])
    weights = [layer.weight for layer in orthogonal(mlp, KEYS[1], gain=2.0).layers]
    for weight in weights:
        np.testing.assert_allclose(weight @ weight.T, 4 * np.eye(32), atol=1e-5)
    assert not np.allclose(weights[0], weights[1])
    assert as_drawn(mlp, KEYS[1]) is mlp


def test_a_deep_network_begins_with_a_say_for_its_inputs():
    """Drawn in 1 / sqrt(inputs), four layers leave next to nothing of them: what comes out is the biases."""
    x = jax.random.normal(KEYS[0], (500, 230))
    mlp = MLP(230, 400, 4, 12, KEYS[1])
    assert float(mlp(x).std(0).mean()) < 0.06
    assert float(glorot(mlp, KEYS[0])(x).std(0).mean()) > 0.2


@pytest.mark.parametrize(
    ("agent", "preset", "initial"),
    [
        ("repo", "paper", "uniform"),
        ("dreamer", "paper", "uniform"),
        ("dreamer", "original", "glorot"),
        ("tia", "original", "glorot"),
        ("denoised-mdp", "original", "uniform"),
    ],
)
def test_who_begins_how(agent, preset, initial):
    """As the frameworks of their sources draw them."""
    assert preset_config("dmc/walker-walk", preset, agent).initial == initial


def test_the_setting_reaches_model_actor_and_critic_and_no_dual_variable():
    drawn, anew = (
        make_agent(complete(preset_config("dmc/walker-walk", "debug", initial=name)), 6).init(KEYS[0])
        for name in ("uniform", "glorot")
    )
    assert anew.policy.model.log_beta == drawn.policy.model.log_beta
    biases = (
        anew.policy.model.encoder.layers[0].bias,
        anew.policy.model.rssm.gru.inputs.bias,
        anew.policy.model.reward.mlp.layers[0].bias,
        anew.policy.actor.mlp.layers[0].bias,
        anew.critic.mlp.layers[0].bias,
    )
    assert not jnp.concatenate(biases).any()
    assert drawn.critic.mlp.layers[0].bias.all()
