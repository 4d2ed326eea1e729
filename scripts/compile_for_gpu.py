"""Compile an agent's update for an NVIDIA H200 on a machine without a GPU, as `train` with the same arguments would:

    pip install "jax[cuda12]==0.11.2"      # beside the package, in an environment of its own
    python scripts/compile_for_gpu.py dmc/walker-walk --agent dreamer --preset original [--seeds 4]

A program that the GPU's compiler does not take fails here with the same message. Kernels are not timed against each
other, as they would be on the device, so the result is no measure of speed. It knows nothing of actions but a walker's,
nor of what --sync asks of the compiler, which finds deterministic products on the device alone.
"""

import os
import sys
import time

os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from undistracted import presets, replay
from undistracted.__main__ import parse, value_of
from undistracted.agents import make_agent
from undistracted.config import Config
from undistracted.seeds import Seeds

ACTIONS, ROWS = 6, 1_000
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048  core_count: 132  fpus_per_core: 128
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  registers_per_core_limit: 65536  registers_per_block_limit: 65536  l2_cache_size: 62914560
  memory_bandwidth: 4814000000000  clock_rate_ghz: 1.98  device_memory_size: 149000000000
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H200"
"""


def settings(args: list[str]) -> Config:
    presets.on_gpu = lambda: True
    agent, preset = value_of(args, "--agent") or "repo", value_of(args, "--preset") or "paper"
    config = parse(Config, args, "train", presets.preset_config(args[0], preset, agent))
    return presets.complete(config)


def block_of_updates(agent, seeds: int):
    """The update of all seeds, and a block of them, as in `learner.py`."""

    update_agent = jax.jit(agent.update, inline=True)

    def update_one(state, ring, key):
        return update_agent(state, agent.sample(ring, key), key)[:2]

    update = Seeds(seeds).map(update_one, in_axes=(0, 0, 0))

    def block(state, totals, rings, keys):
        def body(i, carry):
            state, metrics = update(carry[0], rings, jax.vmap(jax.random.fold_in, (0, None))(keys, i))
            return state, jax.tree.map(jnp.add, carry[1], metrics)

        return jax.lax.fori_loop(0, 4, body, (state, totals))

    return update, block


def main(args: list[str]) -> None:
    config = settings(args)
    agent = make_agent(config, ACTIONS)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), config.seeds))
    state = jax.eval_shape(jax.vmap(agent.init), keys)
    prioritised = hasattr(agent, "window")
    rings = jax.eval_shape(jax.vmap(lambda _: replay.empty(ROWS, config.envs, ACTIONS, prioritised)), keys)
    update, block = block_of_updates(agent, config.seeds)
    metrics = jax.eval_shape(update, state, rings, keys)[1]
    (device,) = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1").devices
    there = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), (state, metrics, rings, keys)
    )
    began = time.perf_counter()
    compiled = jax.jit(block, donate_argnums=(0, 1)).trace(*shapes).lower(lowering_platforms=("cuda",)).compile()
    memory = compiled.memory_analysis().temp_size_in_bytes / 1e9
    print(f"compiled in {time.perf_counter() - began:.0f} s; {memory:.1f} GB beside state and replay")


main(sys.argv[1:])
