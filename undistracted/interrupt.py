"""Ctrl-C and SIGTERM as a request."""

import contextlib
import signal


@contextlib.contextmanager
def asked_to_stop(worker):
    """While this lasts, Ctrl-C and SIGTERM set `worker.stop`, for a clean end; a second one ends at once."""

    def ask(number, frame):
        if worker.stop:
            raise KeyboardInterrupt
        worker.stop = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
