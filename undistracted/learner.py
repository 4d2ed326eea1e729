"""What lives on the device: agent, replay and random keys of every seed, and the compiled calls on them.

Agents are written for one seed; here they are mapped over the leading seed axis S. Calls are dispatched and return at
once: the host goes on to step the environments while the device learns. Keys are derived from the seed and a counter,
so a resumed run draws what an uninterrupted one would have drawn.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp

from undistracted import replay as ring
from undistracted.agents import make_agent
from undistracted.config import Config
from undistracted.data import Batch


class Learner:
    def __init__(self, config: Config, action_size: int, *, replay: bool = True):
        self.config, self.agent = config, make_agent(config, action_size)
        self.updates = 0
        seeds = jnp.arange(config.seed, config.seed + config.seeds)
        init_key, self.act_keys, self.update_keys = (
            jax.vmap(lambda s, stream=stream: jax.random.fold_in(jax.random.key(s), stream))(seeds)
            for stream in range(3)
        )
        self.device = jax.devices()[0]
        self.state = self.put(jax.jit(jax.vmap(self.agent.init))(init_key))
        self.act_keys, self.update_keys = self.put((self.act_keys, self.update_keys))
        capacity = config.replay_size // config.envs if replay else config.length
        new_ring = partial(ring.empty, capacity, config.envs, action_size)
        home = replay_device(jax.eval_shape(new_ring), config.seeds)
        with jax.default_device(home):
            self.replay = jax.device_put(jax.jit(jax.vmap(lambda _: new_ring()))(jnp.arange(config.seeds)), home)
        self.on_device = home == self.device
        self.sample_keys = jax.device_put(self.update_keys, home)
        # One call of the device a pass of all environments; on a CPU, where XLA's loops are slow, one a gradient step.
        blocks = jax.default_backend() != "cpu" and self.on_device
        self.block = max(1, round(config.updates_per_step * config.envs)) if blocks else 1
        self._compile()
        self.totals = None

    def _compile(self):
        c, agent = self.config, self.agent

        def act_one(policy, carry, obs, first, key, count, explore):
            return agent.act(policy, carry, obs, first, jax.random.fold_in(key, count) if explore else None)

        def sample_one(replay, key, count):
            key = jax.random.fold_in(jax.random.fold_in(key, count), 1)
            return ring.sample(replay, key, c.length, c.batch)

        def update_one(state, batch, key, count):
            return agent.update(state, batch, jax.random.fold_in(key, count))

        each = partial(over_seeds, seeds=c.seeds)
        sample, act = each(sample_one, in_axes=(0, 0, None)), {}
        for explore in (True, False):
            act[explore] = each(partial(act_one, explore=explore), in_axes=(0, 0, 0, 0, 0, None))

        def update(state, totals, batch, keys, count):
            state, metrics = each(update_one, in_axes=(0, 0, 0, None))(state, batch, keys, count)
            return state, jax.tree.map(jnp.add, totals, metrics)

        def block(state, totals, replay, keys, count):
            def body(i, carry):
                return update(*carry, sample(replay, keys, count + i), keys, count + i)

            # A constant number of rounds, so that the host need not read a loop's condition back between them.
            carry = state, totals
            return body(0, carry) if self.block == 1 else jax.lax.fori_loop(0, self.block, body, carry)

        self._act = {explore: jax.jit(fn) for explore, fn in act.items()}
        self._add = jax.jit(each(ring.add), donate_argnums=0)
        self._sample = jax.jit(sample)
        self._update = jax.jit(update, donate_argnums=(0, 1))
        self._block = jax.jit(block, donate_argnums=(0, 1))
        batch = jax.eval_shape(sample, self.replay, self.sample_keys, 0)
        metrics = jax.eval_shape(jax.vmap(agent.update), self.state, batch, self.update_keys)[1]
        self._zeros = jax.jit(lambda: jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), metrics))
        self._copy = jax.jit(partial(jax.tree.map, jnp.copy))

    def put(self, arrays):
        """Arrays tied to the device. What a compiled call returns is tied; given loose arrays, it compiles anew."""
        return jax.device_put(arrays, self.device)

    def initial_carry(self, n: int):
        """The policy's memory of n environments per seed, before their first observation."""
        return self.put(jax.vmap(lambda policy: self.agent.initial_carry(policy, n))(self.state.policy))

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
            self.totals, self.since = self.put(self._zeros()), 0
        for count in range(self.updates, self.updates + steps, self.block):
            if self.on_device:
                done = self._block(self.state, self.totals, self.replay, self.update_keys, count)
            else:
                batch = self.put(self._sample(self.replay, self.sample_keys, count))
                done = self._update(self.state, self.totals, batch, self.update_keys, count)
            self.state, self.totals = done
            self.since += self.block
        self.updates += steps
        return steps

    def metrics(self) -> list[dict]:
        """Means over the updates since the last call, one dictionary a seed; the only copy to the host."""
        if self.totals is None:
            return [{} for _ in range(self.config.seeds)]
        totals, self.totals = jax.device_get(self.totals), None
        return [{name: float(x[s]) / self.since for name, x in totals.items()} for s in range(self.config.seeds)]

    def policy_copy(self):
        """The policy as it is now, safe from the updates that follow."""
        return self._copy(self.state.policy)


def over_seeds(fn, seeds: int, in_axes=0):
    """`fn` mapped over the leading seed axis; a single seed runs unmapped, since batched products are slower."""
    if seeds > 1:
        return jax.vmap(fn, in_axes)

    def single(*args):
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        args = [
            x if axis is None else jax.tree.map(lambda leaf: leaf[0], x) for x, axis in zip(args, axes, strict=True)
        ]
        return jax.tree.map(lambda leaf: leaf[None], fn(*args))

    return single


def replay_device(shapes, seeds: int):
    """The default device where the replay fits beside the learner, else the host."""
    device = jax.devices()[0]
    need = seeds * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is None or need < 0.7 * limit:
        return device
    warnings.warn(
        f"the replay needs {need / 1e9:.1f} GB and does not fit on the device: it stays on the host, which slows "
        "learning; a smaller --replay-size avoids that",
        stacklevel=2,
    )
    return jax.devices("cpu")[0]
