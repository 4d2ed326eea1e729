"""Pictures moved at random, so that a network cannot learn them by heart."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt8


def random_shift(key, pictures: UInt8[Array, "*n h w c"], most: int) -> UInt8[Array, "*n h w c"]:
    """Each picture moved by up to `most` pixels each way, all its channels alike; its edge is repeated outside."""
    *n, h, w, _ = pictures.shape
    shift = jax.random.randint(key, (*n, 2), -most, most + 1)
    rows = jnp.clip(jnp.arange(h) + shift[..., :1], 0, h - 1)
    columns = jnp.clip(jnp.arange(w) + shift[..., 1:], 0, w - 1)
    moved = jnp.take_along_axis(pictures, rows[..., :, None, None], -3)
    return jnp.take_along_axis(moved, columns[..., None, :, None], -2)
