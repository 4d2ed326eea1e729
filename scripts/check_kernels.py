"""Kernels of our own against XLA on the GPU at hand, at the sizes that `train` with the same arguments would have:

    python scripts/check_kernels.py distracted/walker-walk [--seeds 4]

The gradients of one update of each, from the same state, and of XLA in float32: the kernels' may be about as far from
these as XLA's own in bfloat16, which is rounding. Then the kernels' update is asked for again and again and must give
the same bits: XLA takes nothing into its part that would give others. Tests only emulate the kernels.
"""

import dataclasses
import os
import re
import sys
from collections import Counter

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_exclude_nondeterministic_ops=true"

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from undistracted.__main__ import parse, value_of  # noqa: E402
from undistracted.agents import make_agent  # noqa: E402
from undistracted.config import Config  # noqa: E402
from undistracted.data import Batch  # noqa: E402
from undistracted.kernels import launch  # noqa: E402
from undistracted.presets import complete, preset_config  # noqa: E402

ACTIONS, TIMES = 6, 20
FACTOR, LEAST = 1.5, 0.005  # how many times as far from float32 as XLA they may be, and what is near in any case


def random_batch(config: Config, key) -> Batch:
    keys, shape = jax.random.split(key, 4), (config.seeds, config.length, config.batch)
    obs = jax.random.randint(keys[0], (*shape, 64, 64, 3), 0, 256).astype(jnp.uint8)
    action = jax.random.uniform(keys[1], (*shape, ACTIONS), minval=-1)
    return Batch(obs, action, jax.random.uniform(keys[2], shape), jax.random.bernoulli(keys[3], 0.02, shape))


def first_update(config: Config, batch: Batch):
    """A function that gives the first moments of a first update, which are its gradients, by their names."""
    agent = make_agent(config, ACTIONS)
    states = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), config.seeds))
    update = jax.jit(jax.vmap(agent.update, (0, 0, None)))

    def gradients() -> dict:
        moments = eqx.filter(update(states, batch, jax.random.key(1))[0].moments, eqx.is_inexact_array)
        named = [(jax.tree_util.keystr(path), x) for path, x in jax.tree_util.tree_leaves_with_path(moments)]
        return {re.sub(r"^\['(\w+)'\].*\.mu\.", r"\1: ", name): x for name, x in named if ".mu." in name}

    return gradients


def apart(x, y) -> float:
    """As a share of y's norm."""
    return float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y))


def main(args: list[str]) -> None:
    preset, agent = value_of(args, "--preset") or "paper", value_of(args, "--agent") or "repo"
    config = complete(parse(Config, args, "train", preset_config(args[0], preset, agent)))
    if not launch.available():
        sys.exit("error: kernels need an NVIDIA GPU of compute capability 9.0 and its NVRTC")
    batch = random_batch(config, jax.random.key(2))
    ways = dict(kernels=True, precision="bfloat16"), dict(kernels=False), dict(kernels=False, precision="float32")
    by_kernels, by_xla, exactly = (first_update(dataclasses.replace(config, **way), batch) for way in ways)
    ours, xla, exact = by_kernels(), by_xla(), exactly()
    print("from float32, kernels and XLA; from each other")
    far = []
    for name, x in ours.items():
        if jnp.any(exact[name]):
            own, other, between = apart(x, exact[name]), apart(xla[name], exact[name]), apart(x, xla[name])
            far += [name] * (not own <= max(FACTOR * other, LEAST))  # nor is what is no number near
            print(f"{own:.4f} {other:.4f}  {between:.4f}  {name}")
    moved = Counter()
    for _ in range(TIMES):
        again = by_kernels()
        moved.update(name for name, x in ours.items() if not jnp.array_equal(x, again[name]))
    print(f"too far: {far or 'none'}\nother bits, of {TIMES} times: {dict(moved) or 'none'}")
    sys.exit(bool(far or moved))


if __name__ == "__main__":
    main(sys.argv[1:])
