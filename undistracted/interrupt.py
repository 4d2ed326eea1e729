"""Ctrl-C and SIGTERM as a request."""

import contextlib
import signal


class Request:
    """Whether an end was asked for."""

    stop = False

    def heed(self) -> None:
        """End here, where nothing is lost, if that was asked for."""
        if self.stop:
            raise KeyboardInterrupt


@contextlib.contextmanager
def asked_to_stop():
    """While this lasts, Ctrl-C and SIGTERM are a request, for a clean end; a second one ends at once."""
    request = Request()

    def ask(number, frame):
        request.heed()
        request.stop = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
