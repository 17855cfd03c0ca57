"""Errors that a person can act on, and from when on any other is a bug."""

run_is_open = False  # from there on a ValueError is a bug, and shows where it comes from


class UsageError(ValueError):
    """What a person asked for cannot be done: shown as one line, exit code 2."""


class RunError(RuntimeError):
    """A run cannot go on, through no bug: shown as one line, exit code 1."""
