"""Ctrl-C and SIGTERM as a request, and runs that end where nothing is lost."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from undistracted.rollout import Diverged
from undistracted.workers import DeadEnvironment

SHOW_CURSOR = b"\x1b[?25h"  # which a progress bar hides
ONE_PRESS = 1.0  # seconds: what ends a process may tell it and its group, which are two signals for one


class Request:
    """Whether an end was asked for."""

    stop = False

    def heed(self) -> None:
        """End here, where nothing is lost, if that was asked for."""
        if self.stop:
            raise KeyboardInterrupt


@contextlib.contextmanager
def asked_to_stop():
    """While this lasts, Ctrl-C and SIGTERM are a request, for a clean end; a second one ends the process at once."""
    request, asked = Request(), None

    def ask(number, frame):
        nonlocal asked
        now, request.stop = time.monotonic(), True
        asked = asked or now
        if now - asked > ONE_PRESS:  # no exception: JAX, interrupted anywhere, may not survive it
            if os.isatty(2):
                os.write(2, SHOW_CURSOR)
            os._exit(128 + number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def drive(make: Callable[[Request], Any]) -> dict:
    """Run the trainer that is made to its end, or until asked to stop, and leave nothing running."""
    with asked_to_stop() as request:  # already now, while programs are compiled
        try:
            trainer = make(request)
        except DeadEnvironment:
            request.heed()  # an environment that is still being made does not know yet that Ctrl-C is not for it
            raise
        try:
            return trainer.run()
        except Diverged:
            raise
        except Exception:
            trainer.rescue()
            raise
        finally:
            trainer.close()
