"""From a function of one seed to a call on all seeds: mapped on a device, and spread where there are several devices;
where there are more of them than seeds, over parts of each seed's batch too (`parts.py`).

Arrays of all seeds have a leading axis S. They are tied to their devices from the start: what a compiled call returns
is tied, so a call that was first given loose arrays would be compiled a second time, which takes a minute on a GPU.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from undistracted import parts

BATCH = "batch"  # the axis of what `put_batch` ties


class Seeds:
    """An equal share of the seeds on each device, of as many devices as divide their number. For parts each of these
    is several, which hold the same but for their part of a batch."""

    def __init__(self, count: int, devices=None, parts_of: Callable[[int], int] | None = None):
        """`parts_of(most)` is the number of parts where there are devices for `most`; without it, one."""
        devices = devices or jax.devices()
        used = max(n for n in range(1, len(devices) + 1) if count % n == 0)
        self.count, self.share = count, count // used
        self.parts = parts_of(len(devices) // used) if parts_of else 1
        self.devices = devices[: used * self.parts]
        if len(self.devices) == 1:
            self.mesh = None
            self.sharding = self.batch_sharding = SingleDeviceSharding(devices[0])
            return
        self.mesh = Mesh(np.reshape(self.devices, (used, self.parts)), ("seed", parts.AXIS))
        # Of one group of devices the axis has no name, since it has none in what JAX returns: calls that were first
        # given arrays with it would be compiled again.
        each = PartitionSpec("seed") if used > 1 else PartitionSpec()
        # Without parts a batch is like all else: some of its arrays have no axis of rows.
        batch = PartitionSpec("seed", None, parts.AXIS) if self.parts > 1 else each
        self.specs = {0: each, BATCH: batch, None: PartitionSpec()}
        self.sharding, self.batch_sharding = (NamedSharding(self.mesh, self.specs[axis]) for axis in (0, BATCH))

    def put(self, arrays):
        """Arrays (S, ...), tied to the devices."""
        return jax.device_put(arrays, self.sharding)

    def put_batch(self, arrays):
        """Arrays (S, T, B, ...), of which each part's device gets its own rows."""
        return jax.device_put(arrays, self.batch_sharding)

    def map(self, fn, in_axes=0):
        """A function of one seed, mapped over one device's share; axis None marks an argument that all seeds share."""
        if self.share > 1:
            return jax.vmap(fn, in_axes)

        def single(*args):  # unmapped, since products with a batch axis are slower
            axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
            args = [
                x if axis is None else jax.tree.map(lambda leaf: leaf[0], x) for x, axis in zip(args, axes, strict=True)
            ]
            return jax.tree.map(lambda leaf: leaf[None], fn(*args))

        return single

    def spread(self, fn, in_axes: tuple):
        """A function of one device's share, as a function of all seeds; axis BATCH marks what `put_batch` ties."""
        if self.mesh is None:
            return fn
        specs = tuple(self.specs[axis] for axis in in_axes)
        return jax.shard_map(fn, mesh=self.mesh, in_specs=specs, out_specs=self.specs[0], check_vma=False)


def each_seed(fn):
    """`fn`, which a vmap calls once for every seed. Values that only such functions exchange are never copied: the
    compiler sees that a slice of a stack is what was stacked."""
    fn = jax.custom_batching.custom_vmap(fn)

    @fn.def_vmap
    def loop(seeds, mapped, *args):
        def of(seed):
            return fn(*jax.tree.map(lambda x, mapped: x[seed] if mapped else x, args, tuple(mapped)))

        out = jax.tree.map(lambda *x: jnp.stack(x), *[of(seed) for seed in range(seeds)])
        return out, jax.tree.map(lambda _: True, out)

    return fn


def in_lockstep(fn):
    """`when_due(due, held, *args)`: fn(held, *args) where it is due, else what is held. Seeds are trained in lockstep,
    so that a vmap skips the work for all of them: it takes the first seed's word for all."""

    @jax.custom_batching.custom_vmap
    def when_due(due, held, *args):
        return jax.lax.cond(due, fn, lambda held, *_: held, held, *args)

    @when_due.def_vmap
    def all_seeds(seeds, mapped, *args):
        def spread(x, mapped):
            return x if mapped else jnp.broadcast_to(x, (seeds, *x.shape))

        due, held, *args = jax.tree.map(spread, args, tuple(mapped))
        out = jax.lax.cond(due[0], jax.vmap(fn), lambda held, *_: held, held, *args)
        return out, jax.tree.map(lambda _: True, out)

    return when_due
