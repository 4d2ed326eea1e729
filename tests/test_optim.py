"""The clip of the global norm, by hand and against optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from undistracted.optim import adam, clip_by_norm

TREE = {"a": jnp.array([[1.0, -2.0, 4.0]]), "one": jnp.array([2.0]), "scalar": jnp.float32(-5.0)}  # of norm sqrt(50)


@pytest.mark.parametrize("limit", [1.0, 7.0, 7.1, 100.0])
def test_only_longer_gradients_are_shortened_to_the_limit(limit):
    ours, _ = clip_by_norm(limit).update(TREE, optax.EmptyState())
    theirs, _ = optax.clip_by_global_norm(limit).update(TREE, optax.EmptyState())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)
    assert float(optax.tree.norm(ours)) == pytest.approx(min(limit, 50**0.5), rel=1e-6)


def test_no_gradient_at_all_is_no_division_by_zero():
    zeros = jax.tree.map(jnp.zeros_like, TREE)
    updates, _ = (optimiser := adam(0.1, clip=1.0)).update(zeros, optimiser.init(TREE), TREE)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), updates)
