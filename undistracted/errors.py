"""The one exception that is meant for people."""


class UserError(Exception):
    """A mistake the user can fix: the command line prints it as one `error:` line and exits with code 2."""
