"""The auxiliary losses of DeepMDP and DBC: by hand, and what each of their terms trains."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ACTION_SIZE

from undistracted.agents import settings
from undistracted.agents.dbc import DBC, distances, mean_distance, smooth_l1, wasserstein
from undistracted.agents.deepmdp import DeepMDP, transition_loss
from undistracted.dists import Normal


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
