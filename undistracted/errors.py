"""The one exception that is meant for people, how a command tells it, and the name that they may have meant."""

import difflib
import errno
import os
import re
import sys
from collections.abc import Callable

# What a disk refuses is no defect, whichever file it meets.
REFUSALS = errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EEXIST, errno.ENOTDIR, errno.EISDIR


class UserError(Exception):
    """A mistake the user can fix: the command line prints it as one `error:` line and exits with code 2."""


def told(command: Callable, *args) -> int:
    """Run a command; the code to exit with, after one line on what the user can mend."""
    try:
        command(*args)
    except UserError as e:
        print(f"error: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of stdout went away, as in `undistracted tasks | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as e:
        if e.errno not in REFUSALS:
            raise
        print(f"error: {e}; make room, or name a folder that you may write to", file=sys.stderr)
        return 2
    return 0


def did_you_mean(name: str, names) -> str:
    """`; did you mean 'x'?`, or nothing when no name is close."""
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""


def no_number(message: str) -> str:
    """What Python says of a value that is no number, in plainer words; other messages as they are."""
    kinds = {r"invalid literal for int\(\) with base 10": "whole number", "could not convert string to float": "number"}
    for words, kind in kinds.items():
        message = re.sub(rf"Error parsing (--\S+): .*{words}: (.*)", rf"\1 takes a {kind}, not \2", message)
    return message
