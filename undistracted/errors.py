"""The one exception that is meant for people, and the name that they may have meant."""

import difflib


class UserError(Exception):
    """A mistake the user can fix: the command line prints it as one `error:` line and exits with code 2."""


def did_you_mean(name: str, names) -> str:
    """`; did you mean 'x'?`, or nothing when no name is close."""
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""
