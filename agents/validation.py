"""A choice that is not one of the known ones, answered in one line."""

import difflib
from collections.abc import Iterable


def check(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise a ValueError that names the setting, its value, all choices and the nearest of them."""
    choices = list(choices)
    if value not in choices:
        nearest = difflib.get_close_matches(value, choices, n=1)
        hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(choices)}{hint}")
