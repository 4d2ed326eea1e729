"""Kernels of our own against XLA on the GPU at hand, at the sizes that `train` with the same arguments would have:

    python scripts/check_kernels.py distracted/walker-walk [--seeds 4]

One update of each from the same state: how far apart the gradients of every network are, as a share of their norm, and
whether the kernels' have the same bits when asked once more. bfloat16 keeps eight bits, so a hundredth is what rounding
makes of it.
"""

import dataclasses
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

from undistracted.__main__ import parse, value_of
from undistracted.agents import make_agent
from undistracted.config import Config
from undistracted.data import Batch
from undistracted.kernels import launch
from undistracted.presets import complete, preset_config

ACTIONS, MOST = 6, 0.05


def random_batch(config: Config, key) -> Batch:
    keys, shape = jax.random.split(key, 4), (config.seeds, config.length, config.batch)
    obs = jax.random.randint(keys[0], (*shape, 64, 64, 3), 0, 256).astype(jnp.uint8)
    action = jax.random.uniform(keys[1], (*shape, ACTIONS), minval=-1)
    return Batch(obs, action, jax.random.uniform(keys[2], shape), jax.random.bernoulli(keys[3], 0.02, shape))


def first_update(config: Config, batch: Batch):
    """A function that gives the moments of a first update, which are its gradients."""
    agent = make_agent(config, ACTIONS)
    states = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), config.seeds))
    update = jax.jit(jax.vmap(agent.update, (0, 0, None)))

    def moments() -> dict:
        found = update(states, batch, jax.random.key(1))[0].moments
        return {name: jax.tree.leaves(eqx.filter(x, eqx.is_inexact_array)) for name, x in found.items()}

    return moments


def apart(x, y) -> float:
    """The largest difference of an array, as a share of its norm."""
    return max(float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in zip(x, y, strict=True) if jnp.any(b))


def main(args: list[str]) -> None:
    preset, agent = value_of(args, "--preset") or "paper", value_of(args, "--agent") or "repo"
    config = complete(parse(Config, args, "train", preset_config(args[0], preset, agent)))
    if not launch.available():
        sys.exit("error: kernels need an NVIDIA GPU of compute capability 9.0 and its NVRTC")
    batch = random_batch(config, jax.random.key(2))
    by_kernels, by_xla = (first_update(dataclasses.replace(config, kernels=by), batch) for by in (True, False))
    ours, again, plain = by_kernels(), by_kernels(), by_xla()
    differences = {name: apart(ours[name], plain[name]) for name in plain}
    print({name: f"{difference:.4f}" for name, difference in differences.items()})
    alike = all(apart(again[name], ours[name]) == 0 for name in plain)
    print("the same bits once more:", alike)
    sys.exit(max(differences.values()) > MOST or not alike)


if __name__ == "__main__":
    main(sys.argv[1:])
