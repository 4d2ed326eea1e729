"""A batch in equal parts of whole sequences, each on a CPU core of its own.

Half of the rows take a core half of the time, where a library that shares each product of a few hundred rows between
two cores hardly gains by the second. Where there are parts, arrays with an axis of rows are one part's, and `Seeds`
binds that axis's name. All that joins rows is here: means, and noise, which is the whole batch's, so that an update
does not depend on the number of its parts. Elsewhere there is one part, of all rows.

A part that waits holds a thread of XLA's, of which there is one a core. So no two learners of a process may learn at
once, or each may hold the thread that the other one's part needs, and the host may not run far ahead (`learner.py`).
"""

import os
from contextlib import suppress

import jax
from jax.flatten_util import ravel_pytree
from jax.lax import stop_gradient as sg

AXIS = "part"


def count() -> int:
    try:
        return jax.lax.axis_size(AXIS)
    except NameError:
        return 1


def normal(key, shape: tuple[int, ...]):
    """Standard normal noise (T, n, ...) for the n rows of this part, of that of all parts' rows."""
    steps, rows, *rest = shape
    noise = jax.random.normal(key, (steps, count() * rows, *rest))
    return noise if count() == 1 else jax.lax.dynamic_slice_in_dim(noise, jax.lax.axis_index(AXIS) * rows, rows, 1)


def mean(tree):
    """Of what each part has; exchanged as one vector, since parts wait for each other at every exchange."""
    if count() == 1:
        return tree
    flat, restore = ravel_pytree(tree)
    return restore(jax.lax.pmean(flat, AXIS))


def mean_of_rows(x):
    """Over the rows of all parts. Its gradient is that of this part's mean, since gradients are averaged by `mean`."""
    own = x.mean()
    return own + sg(mean(own) - own)


def use_cores() -> None:
    """Each CPU core as a device, unless JAX has begun already or was told a number. GPUs are not touched by it."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "") or jax.config.jax_num_cpu_devices > 0:
        return
    with suppress(RuntimeError):  # begun already: by a notebook, say
        jax.config.update("jax_num_cpu_devices", cores())


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
