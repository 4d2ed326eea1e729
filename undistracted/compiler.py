"""What XLA is told of an update, by the devices it is compiled for."""

import warnings

import jax

# Vectors as wide as the CPU has them: on one without such, the option says nothing.
WIDE = {"xla_cpu_prefer_vector_width": "512"}
# On one device for all cores products not by XLA's newer library, which computes one of a few hundred rows, as
# imagination has them, on one core: Eigen spreads it.
ONE_CPU_DEVICE = WIDE | {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}
# On a GPU nothing that adds up in another order each time, as convolutions of its library may, and no choice between
# operations by their time, which another compilation may decide otherwise.
SAME_BITS = {"xla_gpu_deterministic_ops": True}


def same_bits(devices, sync: bool) -> dict | None:
    """Of all that computes, where the same seed is to give the same bits; a CPU gives them in any case."""
    if not sync or devices[0].platform == "cpu":
        return None
    options = known(SAME_BITS)
    if options is None:
        warnings.warn("this JAX cannot keep a GPU to the same bits: --sync may not give them", stacklevel=2)
    return options


def update_options(devices, sync: bool = False) -> dict | None:
    if devices[0].platform != "cpu":
        return same_bits(devices, sync)
    return known(ONE_CPU_DEVICE if len(devices) == 1 else WIDE)


def known(options: dict) -> dict | None:
    """A compiler that does not know them goes without."""
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return None
    return options
