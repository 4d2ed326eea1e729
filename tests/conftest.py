"""Tiny settings, agents of that size and what they learn from, shared by all tests.

Nearly all the time of the tests is XLA's: it optimises less here, and what one test compiled no other compiles again
(subprocesses included). Set before the first import of JAX.
"""

import os
import tempfile
from importlib.metadata import version

if "PYTEST_XDIST_WORKER" not in os.environ:  # else the process that started this one has made it
    CACHE = tempfile.TemporaryDirectory(prefix="undistracted-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE.name
    os.environ["UNDISTRACTED_CACHE"] = f"{CACHE.name}/films"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=1",  # what remains of optimisation where `optimised` asks for it
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_force_host_platform_device_count=4",  # to spread seeds over, or to play the host
        # Halves the time to compile an update; XLA aborts at flags that it does not know, as others may not.
        *(["--xla_cpu_use_fusion_emitters=false"] if version("jaxlib").startswith("0.10.") else []),
    ]
)

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from undistracted.agents import make_agent  # noqa: E402
from undistracted.config import Config  # noqa: E402
from undistracted.data import Batch  # noqa: E402
from undistracted.presets import complete, preset_config  # noqa: E402
from undistracted.priorities import Windows  # noqa: E402

settings.register_profile("tests", deadline=None, derandomize=True)
settings.load_profile("tests")

ACTION_SIZE = 2


@pytest.fixture(scope="module")
def optimised():
    """For tests that run what they compile hundreds of times: code that takes a little longer to make, and runs several
    times as fast."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def tiny():
    """Complete settings of the debug preset in float32, with overrides."""

    def make(task: str = "distracted/walker-walk", **overrides) -> Config:
        defaults = dict(precision="float32", native_conv=False, replay_size=64, model_lr=3e-3, beta_lr=1e-2)
        return complete(preset_config(task, "debug", **defaults | overrides))

    return make


@pytest.fixture(scope="session")
def config(tiny) -> Config:
    return tiny()


@pytest.fixture
def key():
    return jax.random.key(7)


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    """A folder of its own for decoded films, empty at first."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("UNDISTRACTED_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def agent(config):
    return make_agent(config, ACTION_SIZE)


@pytest.fixture(scope="session")
def state(agent):
    return jax.jit(agent.init)(jax.random.key(0))


@pytest.fixture(scope="session")
def update(agent):
    """The agent's update, compiled once."""
    return jax.jit(agent.update)


@pytest.fixture(scope="session")
def batch(config) -> Batch:
    """Noise of (T, B) rows; an episode starts at row 3 of the first sequence, and nowhere else."""
    rng, rows = np.random.default_rng(0), (config.length, config.batch)
    first = np.zeros(rows, bool)
    first[3, 0] = True
    action = rng.uniform(-1, 1, (*rows, ACTION_SIZE)) * ~first[..., None]
    return Batch(
        jax.numpy.asarray(rng.integers(0, 256, (*rows, 64, 64, 3), np.uint8)),
        jax.numpy.asarray(action, "float32"),
        jax.numpy.asarray(rng.normal(size=rows) * ~first, "float32"),
        jax.numpy.asarray(first),
    )


@pytest.fixture(scope="session")
def told(tiny):
    return make_agent(tiny(agent="tdmpc"), ACTION_SIZE)


@pytest.fixture(scope="session")
def told_state(told):
    """Its outputs are not zero, as those of a new model are: what depends on them shows."""
    state, k = jax.jit(told.init)(jax.random.key(0)), jax.random.split(jax.random.key(1), 5)

    def noise(outputs, keys):
        return [0.3 * jax.random.normal(k, w.shape) for w, k in zip(outputs, keys, strict=True)]

    def outputs(s):
        m = s.policy.model
        return [
            m.reward.mlp.layers[-1].weight,
            *(h.rest.layers[-1].weight for h in [*m.values.heads, *s.slow.values.heads]),
        ]

    return eqx.tree_at(outputs, state, noise(outputs(state), k))


@pytest.fixture(scope="session")
def told_windows(told) -> Windows:
    """Eight rows each, of noise: the two before, the row itself, and the five after it."""
    rng, shape = np.random.default_rng(0), (8, told.config.batch)
    rows = Batch(
        jax.numpy.asarray(rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8)),
        jax.numpy.asarray(rng.uniform(-1, 1, (*shape, ACTION_SIZE)), "float32"),
        jax.numpy.asarray(rng.normal(size=shape), "float32"),
        jax.numpy.zeros(shape, bool),
    )
    return Windows(rows, jax.numpy.linspace(0.5, 1, shape[1]), jax.numpy.arange(shape[1]))
