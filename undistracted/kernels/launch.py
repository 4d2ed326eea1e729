"""CUDA kernels inside of compiled programs, without a compiler on the machine: NVRTC, which comes with JAX for NVIDIA's
GPUs, turns their text into PTX, and XLA launches that as any kernel of its own."""

import contextlib
import ctypes
import hashlib
import re
import sys
from ctypes.util import find_library
from functools import cache
from pathlib import Path

import jax
import numpy as np

from undistracted.files import cache_folder, write_whole

ARCHITECTURE, PTX_VERSION = "compute_90", "8.0"  # what the kernels use came with these
OPTIONS = f"--gpu-architecture={ARCHITECTURE}", "--std=c++17", "--device-as-default-execution-space", "--use_fast_math"
SHARED_MEMORY, PROCESSORS = 232_448, 132  # bytes that a block can have, and where blocks run, of an H200


def text(*names: str) -> str:
    return "".join((Path(__file__).parent / name).read_text() for name in names)


def constants(**sizes) -> str:
    """The two lines that come before a kernel's text: its sizes."""
    ints = ", ".join(f"{name} = {x}" for name, x in sizes.items() if isinstance(x, int))
    floats = ", ".join(f"{name} = {x!r}" for name, x in sizes.items() if isinstance(x, float))
    return f"constexpr int {ints};\n" + (f"constexpr float {floats};\n" if floats else "\n")


def kernel_call(name: str, source: str, outs: list, grid: tuple[int, ...], threads: int, memory: int):
    """The kernel of this name as a function of arrays: their addresses, and then its outputs', are its arguments."""

    def call(*args):
        grid_x, grid_y, grid_z = (*grid, 1, 1)[:3]
        sizes = dict(grid_x=grid_x, grid_y=grid_y, grid_z=grid_z, block_x=threads, block_y=1, block_z=1)
        sizes = {key: np.int32(size) for key, size in (sizes | dict(shared_mem_bytes=memory)).items()}
        places = tuple(range(len(args), len(args) + len(outs)))
        kernel = dict(name=name, kernel_type="ptx", kernel_data=ptx(source), output_indices=places)
        return jax.ffi.ffi_call("__gpu$xla.gpu.ptx", outs)(*args, **kernel, **sizes)

    return call


def wanted(config) -> bool:
    """Whether a run uses the kernels, which are written for bfloat16."""
    return config.kernels and config.precision == "bfloat16" and available()


@cache
def available() -> bool:
    """Whether kernels run here: on Hopper, whose shared memory and clusters of blocks they are made for."""
    if jax.default_backend() != "gpu" or library() is None:
        return False
    return str(getattr(jax.devices()[0], "compute_capability", "")) == "9.0"


@cache
def ptx(source: str) -> str:
    """A kernel's translation, kept with other caches: NVRTC takes up to ten seconds for one. Where they cannot be
    written, they are made each time; one that is not whole, as its first line tells, is made anew."""
    version = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(*map(ctypes.byref, version))
    name = digest("\n".join([*OPTIONS, *(str(x.value) for x in version), PTX_VERSION, source]))
    path = cache_folder() / "kernels" / f"{name}.ptx"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        head, _, text = path.read_text().partition("\n")
        if head == f"// {digest(text)}":
            return text
    text = translated(source)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"// {digest(text)}\n{text}")
    return text


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def translated(source: str) -> str:
    """By NVRTC. The version in its head is the translator's own, which a driver that is older than the translator would
    refuse."""
    nvrtc, program, size = library(), ctypes.c_void_p(), ctypes.c_size_t()

    def read(what: str) -> str:
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()

    options = (ctypes.c_char_p * len(OPTIONS))(*[option.encode() for option in OPTIONS])
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    try:
        if status := nvrtc.nvrtcCompileProgram(program, len(options), options):
            raise RuntimeError(f"NVRTC does not compile the kernels (status {status}): {read('ProgramLog')}")
        return re.sub(r"\.version \d+\.\d+", f".version {PTX_VERSION}", read("PTX"), count=1)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def library():
    """NVRTC, of the packages that JAX brings, or of the system; None where there is none."""
    packages = [str(path) for folder in sys.path for path in Path(folder).glob("nvidia/*/lib/libnvrtc.so.*")]
    for name in filter(None, [*sorted(packages), find_library("nvrtc"), "libnvrtc.so"]):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
