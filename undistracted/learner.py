"""What lives on the device: agent, replay and random keys of every seed, and the compiled calls on them.

Agents are written for one seed; `seeds.py` maps them over the leading seed axis S. Calls are dispatched and return at
once: the host goes on to step the environments while the device learns. Keys are derived from the seed and a counter,
so a resumed run draws what an uninterrupted one would have drawn.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp

from undistracted import priorities
from undistracted import replay as ring
from undistracted.agents import make_agent
from undistracted.compiler import same_bits, update_options
from undistracted.config import Config
from undistracted.data import Batch
from undistracted.memory import keep_freed_memory
from undistracted.parts import use_cores
from undistracted.seeds import BATCH, Seeds

# Updates in parts that the host may be ahead. A CPU device is given up to 32 calls, of which an update is two. One more
# waits, on a thread that a part may need for which another part waits: after a minute XLA ends the process.
AHEAD = 8


class Learner:
    def __init__(self, config: Config, action_size: int, *, agent=None, data=(), replay: bool = True, devices=None):
        """`data` are arrays (S, ...) that every update of an agent is given beside its batch."""
        if replay:  # a player, which has none, leaves JAX as it is
            use_cores()
        self.config, self.agent = config, agent or make_agent(config, action_size)
        devices = devices or jax.devices()
        on_cpu = devices[0].platform == "cpu"
        self.seeds = Seeds(config.seeds, devices, getattr(self.agent, "parts", None) if on_cpu and replay else None)
        if on_cpu:
            keep_freed_memory()
        self.data, self.updates = self.seeds.put(data), 0
        seeds = jnp.arange(config.seed, config.seed + config.seeds)
        keys = [
            jax.vmap(lambda s, stream=stream: jax.random.fold_in(jax.random.key(s), stream))(seeds)
            for stream in range(4)
        ]
        init_key, self.act_keys, self.update_keys, sample_keys = self.seeds.put(keys)
        # One seed after the other: mapped over seeds, agents with orthogonal weights hung here on two CPU cores.
        init = partial(jax.lax.map, self.agent.init)
        self.state = jax.jit(init, out_shardings=self.seeds.sharding)(init_key)
        capacity = config.replay_size // config.envs if replay else config.length
        self.window = getattr(self.agent, "window", None)  # of agents that draw by priority
        new_ring = partial(ring.empty, capacity, config.envs, action_size, self.window is not None)
        self.home = replay_home(jax.eval_shape(new_ring), self.seeds)
        new_rings = jax.vmap(lambda _: new_ring(), axis_size=config.seeds)
        self.replay = jax.jit(new_rings, out_shardings=self.home.sharding)(None)
        self.sample_keys = self.home.put(sample_keys)
        # One call of the device a pass of all environments; on a CPU, where XLA's loops are slow, one a gradient step.
        self.on_device = self.home is self.seeds
        blocks = jax.default_backend() != "cpu" and self.on_device
        self.block = max(1, round(config.updates_per_step * config.envs)) if blocks else 1
        self._compile()
        self.totals = None

    def _compile(self):
        agent, seeds, home = self.agent, self.seeds, self.home
        update_agent = jax.jit(agent.update, inline=True)  # traced once, for its metrics' shapes and for the block

        def act_one(policy, carry, obs, first, key, count, explore):
            return agent.act(policy, carry, obs, first, jax.random.fold_in(key, count) if explore else None)

        def sample_one(replay, key, count):
            return agent.sample(replay, jax.random.fold_in(key, count))

        def update_one(state, batch, key, count, data):
            state, metrics, *error = update_agent(state, batch, jax.random.fold_in(key, count), *data)
            return state, metrics, error

        def add_one(replay, row):
            replay = ring.add(replay, row)
            return replay if self.window is None else priorities.admit(replay, *self.window)

        def rate_one(priority, batch, error):
            return priorities.rate(priority, batch, *error) if error else priority

        sample = home.map(sample_one, in_axes=(0, 0, None))
        update_each = seeds.map(update_one, in_axes=(0, 0, 0, None, 0))
        rate = home.map(rate_one)

        def update(state, totals, batch, keys, count, data):
            state, metrics, error = update_each(state, batch, keys, count, data)
            return state, jax.tree.map(jnp.add, totals, metrics), error

        def block(state, totals, priority, replay, sample_keys, keys, count, data):
            """Only what changes is carried from update to update: the ring's rows are not."""

            def body(i, carry):
                state, totals, priority = carry
                batch = sample(replay._replace(priority=priority), sample_keys, count + i)
                state, totals, error = update(state, totals, batch, keys, count + i, data)
                return state, totals, rate(priority, batch, error)

            # A constant number of rounds, so that the host need not read a loop's condition back between them.
            carry = state, totals, priority
            return body(0, carry) if self.block == 1 else jax.lax.fori_loop(0, self.block, body, carry)

        axes, self._act = (0, 0, 0, 0, 0, None), {}
        options = dict(compiler_options=same_bits(seeds.devices, self.config.sync))
        for explore in (True, False):
            act = seeds.spread(seeds.map(partial(act_one, explore=explore), axes), axes)
            self._act[explore] = jax.jit(act, **options)
        self._add = jax.jit(home.spread(home.map(add_one), (0, 0)), donate_argnums=0)
        self._sample = jax.jit(home.spread(sample, (0, 0, None)))
        self._rate = jax.jit(home.spread(rate, (0, 0, 0)), donate_argnums=0)
        axes = (0, 0, BATCH, 0, None, 0)
        options = dict(compiler_options=update_options(seeds.devices, self.config.sync))
        self._update = jax.jit(seeds.spread(update, axes), donate_argnums=(0, 1), **options)
        self._block = jax.jit(seeds.spread(block, (0, 0, 0, 0, 0, 0, None, 0)), donate_argnums=(0, 1, 2), **options)

        def zeros():
            batch = jax.eval_shape(home.spread(sample, (0, 0, None)), self.replay, self.sample_keys, 0)
            learning = seeds.spread(update_each, (0, BATCH, 0, None, 0))
            metrics = jax.eval_shape(learning, self.state, batch, self.update_keys, 0, self.data)[1]
            return jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), metrics)

        self._zeros = jax.jit(zeros, out_shardings=seeds.sharding)  # traced at the first update: a player has none
        self._copy = jax.jit(partial(jax.tree.map, jnp.copy))

    def initial_carry(self, n: int):
        """The policy's memory of n environments per seed, before their first observation."""
        return self.seeds.put(jax.vmap(lambda policy: self.agent.initial_carry(policy, n))(self.state.policy))

    def act(self, carry, row: Batch, count: int, policy=None):
        """Actions (S, n, A) for a row (S, n, ...): exploring with the newest policy, or the means of a given one."""
        explore = policy is None
        policy = self.state.policy if explore else policy
        return self._act[explore](policy, carry, row.obs, row.first, self.act_keys, count)

    def add(self, row: Batch) -> None:
        """Append a row (S, E, ...) to the replay."""
        self.replay = self._add(self.replay, row)

    def update(self, owed: float) -> int:
        """As many whole blocks of gradient steps as fit into the number that is owed; how many steps that were."""
        steps = int(owed / self.block + 1e-6) * self.block
        if steps and self.totals is None:
            self.totals, self.since = self._zeros(), 0
        for count in range(self.updates, self.updates + steps, self.block):
            if self.seeds.parts > 1 and count % AHEAD == 0:
                jax.block_until_ready((self.state, self.replay.written))
            step = self._step_block if self.on_device else self._step_apart
            self.state, self.totals, priority = step(self.state, self.totals, count)
            self.replay = self.replay._replace(priority=priority)
            self.since += self.block
        self.updates += steps
        return steps

    def _step_block(self, state, totals, count: int):
        rows = self.replay._replace(priority=None)
        keys = self.sample_keys, self.update_keys
        return self._block(state, totals, self.replay.priority, rows, *keys, count, self.data)

    def _step_apart(self, state, totals, count: int):
        """One gradient step with a batch that comes from where the replay is."""
        drawn = self._sample(self.replay, self.sample_keys, count)
        batch = self.seeds.put_batch(drawn)
        state, totals, error = self._update(state, totals, batch, self.update_keys, count, self.data)
        return state, totals, self._rate(self.replay.priority, drawn, self.home.put(error))

    def metrics(self) -> list[dict]:
        """Means over the updates since the last call, one dictionary a seed; the only copy to the host."""
        if self.totals is None:
            return [{} for _ in range(self.config.seeds)]
        totals, self.totals = jax.device_get(self.totals), None
        return [{name: float(x[s]) / self.since for name, x in totals.items()} for s in range(self.config.seeds)]

    def policy_copy(self):
        """The policy as it is now, safe from the updates that follow."""
        return self._copy(self.state.policy)


@jax.jit
def all_finite(tree) -> jax.Array:
    """Whether all its numbers are numbers."""
    return jnp.all(jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]))


def replay_home(shapes, seeds: Seeds) -> Seeds:
    """The seeds' devices where each one's share of the replay fits beside the learner, else the host; on CPU cores,
    which share their memory, the device of each seed's first part."""
    if seeds.parts > 1:
        return Seeds(seeds.count, seeds.devices[:: seeds.parts])
    need = seeds.share * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    limit = (seeds.devices[0].memory_stats() or {}).get("bytes_limit")
    if limit is None or need < 0.7 * limit:
        return seeds
    warnings.warn(
        f"the replay needs {need / 1e9:.1f} GB and does not fit on the device: it stays on the host, which slows "
        "learning; a smaller --replay-size avoids that",
        stacklevel=2,
    )
    return Seeds(seeds.count, jax.devices("cpu")[:1])
