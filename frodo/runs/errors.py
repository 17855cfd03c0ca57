"""Errors that a person can act on, and the moment from which any other is a bug."""

import contextlib
from collections.abc import Iterator

run_is_open = False  # from there on a ValueError is a bug, and shows where it comes from


class UsageError(ValueError):
    """A person asked for something that cannot be done: shown as one line, exit code 2."""


class RunError(RuntimeError):
    """A run cannot go on, through no bug: shown as one line, exit code 1."""


@contextlib.contextmanager
def caused_by(cause: str) -> Iterator[None]:
    """Turn a ValueError into a UsageError that begins with its cause, such as the flag "--rule".

    A UsageError that begins with a flag stays as it is.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, UsageError) and str(error).startswith("--"):
            raise
        raise UsageError(f"{cause}: {error}") from None
