"""Environments in processes of their own, which exchange rows with the main process through shared memory.

A semaphore each tells the environments to go, one tells the main process that another is done: no message is packed or
copied, which for twenty environments takes as long as stepping them.
"""

import contextlib
import pickle
import signal
import traceback
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from undistracted.errors import UserError

STEP, RESET, CLOSE = range(3)
LOOK = 1.0  # seconds after which whoever waits looks whether the other still lives
PATIENCE = 10.0  # seconds for an environment to finish its step and close


class DeadEnvironment(UserError):
    """An environment's process is gone."""

    def __init__(self):
        super().__init__("an environment's process died, for want of memory perhaps; a run goes on with --resume")


class Stage:
    """One environment from episode to episode: after an episode's last row comes the first of the next."""

    def __init__(self, env):
        self.env, self.over = env, False
        self.spaces = env.observation_space, env.action_space

    def reset(self, seed: int):
        self.over = False
        return self.env.reset(seed=seed)[0]

    def step(self, action) -> tuple:
        """Picture, reward, whether the episode is over, and its success (nan where the environment is silent)."""
        if self.over:
            self.over = False
            return self.env.reset()[0], 0.0, False, np.nan
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.over = bool(terminated or truncated)
        return obs, reward, self.over, info.get("success", np.nan)


class Rows:
    """The arrays of N environments in a block of memory: of this process, or shared under a name."""

    def __init__(self, count: int, spaces, name: str | None = None, shared: bool = True):
        seen, action = spaces
        fields = {
            "obs": (seen.shape, seen.dtype),
            "action": (action.shape, np.float32),
            "reward": ((), np.float64),
            "success": ((), np.float64),
            "seed": ((), np.uint64),
            "over": ((), np.bool_),
            "failed": ((), np.bool_),
            "order": ((), np.uint8),
        }
        sizes = [count * int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize for shape, dtype in fields.values()]
        self.fields, places = list(fields), np.cumsum([0, *(-(-size // 64) * 64 for size in sizes)])
        self.memory = SharedMemory(name, create=name is None, size=int(places[-1])) if shared else None
        block = self.memory.buf if shared else bytearray(places[-1])
        for place, (field, (shape, dtype)) in zip(places, fields.items(), strict=False):
            setattr(self, field, np.ndarray((count, *shape), dtype, block, int(place)))

    def close(self) -> None:
        """Let go of the shared memory, which wants its arrays gone first."""
        for field in self.fields:
            delattr(self, field)
        self.memory.close()
        self.memory.unlink()

    def step(self, i: int, stage: Stage) -> None:
        self.obs[i], self.reward[i], self.over[i], self.success[i] = stage.step(self.action[i].copy())

    def reset(self, i: int, stage: Stage) -> None:
        self.obs[i] = stage.reset(int(self.seed[i]))


def work(i: int, count: int, make, pipe, go, done) -> None:
    """An environment's process. Signals are the main process's business; when that is gone, end without a word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # of the pipe, not of the environment
        try:
            stage = Stage(make())
        except Exception as e:
            pipe.send(portable(e))
            return
        pipe.send(stage.spaces)
        rows = Rows(count, stage.spaces, pipe.recv())
        while not rows.failed[i]:
            while not go.acquire(timeout=LOOK):
                if pipe.poll():  # nothing is ever sent, so it was closed
                    pipe.recv()
            if rows.order[i] == CLOSE:
                stage.env.close()
                return
            error = None
            try:
                (rows.step if rows.order[i] == STEP else rows.reset)(i, stage)
            except Exception as e:
                rows.failed[i], error = True, portable(e)
            done.release()
            if error:  # only now: a long one waits in the pipe until it is heard, and that is when all are done
                pipe.send(error)


def portable(error: Exception) -> Exception:
    """An exception that another process can raise, and which tells where it came from."""
    if not isinstance(error, UserError):
        error.add_note("in an environment's process:\n" + traceback.format_exc())
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(traceback.format_exc())


class Workers:
    """N environments, each in a process of its own. `tell` and `wait` go in turns."""

    def __init__(self, makes: list):
        context, self.count = get_context("forkserver"), len(makes)
        self.done, self.go = context.Semaphore(0), [context.Semaphore(0) for _ in makes]
        self.pipes, self.processes, self.rows = [], [], None
        for i, (make, go) in enumerate(zip(makes, self.go, strict=True)):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(i, self.count, make, theirs, go, self.done), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        try:
            self.spaces = [self._hear(pipe) for pipe in self.pipes][0]
            self.rows = Rows(self.count, self.spaces)
        except BaseException:  # the others would wait for ever, and with them the end of this process
            self.close()
            raise
        for pipe in self.pipes:
            pipe.send(self.rows.memory.name)

    def tell(self, order: int) -> None:
        self.rows.order[:] = order
        for go in self.go:
            go.release()

    def wait(self) -> None:
        """Until all are done."""
        for _ in range(self.count):
            while not self.done.acquire(timeout=LOOK):
                living = (process.is_alive() for process in self.processes)
                if not all(alive or failed for alive, failed in zip(living, self.rows.failed, strict=True)):
                    raise DeadEnvironment
        for i in np.flatnonzero(self.rows.failed):
            self._hear(self.pipes[i])

    def close(self) -> None:
        if self.rows is not None:
            self.tell(CLOSE)
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(PATIENCE)
            if process.is_alive():  # its environment hangs
                process.kill()
                process.join()
        if self.rows is not None:
            self.rows.close()

    def _hear(self, pipe):
        """What an environment's process says; its exception is raised here."""
        try:
            said = pipe.recv()
        except (EOFError, ConnectionResetError) as e:
            raise DeadEnvironment from e
        if isinstance(said, Exception):
            raise said
        return said


class Here:
    """N environments in this process, one after the other."""

    def __init__(self, makes: list):
        self.stages = [Stage(make()) for make in makes]
        self.spaces = self.stages[0].spaces
        self.rows = Rows(len(makes), self.spaces, shared=False)

    def tell(self, order: int) -> None:
        self.order = order

    def wait(self) -> None:
        for i, stage in enumerate(self.stages):
            (self.rows.step if self.order == STEP else self.rows.reset)(i, stage)

    def close(self) -> None:
        for stage in self.stages:
            stage.env.close()
