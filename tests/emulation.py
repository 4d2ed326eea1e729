"""Kernels without a GPU: their own text, compiled by g++ with cuda_on_cpu.h, called from compiled programs."""

import ctypes
import hashlib
import re
import subprocess
import tempfile
import threading
from pathlib import Path

import jax
import numpy as np

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
FOLDER = Path(tempfile.mkdtemp(prefix="kernels-"))
ONE_AT_A_TIME = threading.Lock()  # a kernel's emulation has one thread whose turn it is


def emulated(name: str, source: str, outs: list, grid: tuple[int, ...], threads: int, memory: int):
    """In place of `launch.kernel_call`. What a kernel does not write is no number."""
    cluster = int(re.search(r"\bCLUSTER = (\d+)", source)[1]) if "__cluster_dims__" in source else 1
    grid = (*grid, 1, 1)[:3]
    assert grid[0] % cluster == 0
    library, sizes = compiled(name, source), (cluster, (ctypes.c_int * 3)(*grid), threads, memory)

    def run(*arrays):
        arrays = [np.ascontiguousarray(array) for array in arrays]
        results = [np.full(out.shape, np.nan, out.dtype) for out in outs]
        addresses = (ctypes.c_void_p * (len(arrays) + len(outs)))(*[x.ctypes.data for x in arrays + results])
        with ONE_AT_A_TIME:
            assert library.start_kernel(*sizes, addresses), f"{name} writes beyond its {memory} bytes of shared memory"
        return tuple(results)

    return lambda *args: jax.pure_callback(run, tuple(outs), *args)


def compiled(name: str, source: str, flags=("-O1",)):
    kernel = source.replace("extern __shared__ uint4 memory[];", "")
    arguments = "int cluster, int* grid, int threads, int memory, void** addresses"
    call = f"return start({name}, cluster, grid, threads, memory, addresses);"
    text = f'#include "{HEADER}"\n{kernel}\nextern "C" bool start_kernel({arguments}) {{ {call} }}\n'
    library = FOLDER / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        library.with_suffix(".cpp").write_text(text)
        flags = [*flags, "-std=c++17", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"]
        subprocess.run(["g++", *flags, "-o", library, library.with_suffix(".cpp")], check=True)
    return ctypes.CDLL(str(library))
