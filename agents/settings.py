"""What a setting means and may be, said once.

Its meaning stands in the `Attributes:` of its class's docstring, which help() and --help show; its bounds in its type.
"""

import math
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple, TypeAlias

import docstring_parser.google

from agents.validation import check_choice, is_whole


class Bounds(NamedTuple):
    """What a setting may be: in words, as a test, and whether a number must be finite besides."""

    expected: str
    holds: Callable[[Any], bool]
    is_finite: bool = False

    def check(self, name: str, value: Any) -> None:
        if self.is_finite and math.isinf(value):
            raise ValueError(f"{name} is {value}, expected a finite number")
        if not self.holds(value):
            raise ValueError(f"{name} is {value!r}, expected {self.expected}")


class OneOf:
    """What a text, or each entry of a tuple of texts, may be."""

    def __init__(self, choices: Iterable[str]):
        self._choices = choices

    def check(self, name: str, value: str | tuple[str, ...]) -> None:
        for one in (value,) if isinstance(value, str) else value:
            check_choice(name, one, self._choices)


POSITIVE = Bounds("a positive number", lambda x: x > 0, is_finite=True)
NOT_NEGATIVE = Bounds("a number of at least 0", lambda x: x >= 0, is_finite=True)
Positive = Annotated[float, POSITIVE]
PositiveOrInf = Annotated[float, POSITIVE._replace(is_finite=False)]
NotNegative: TypeAlias = Annotated[float, NOT_NEGATIVE]
"""The type of a setting that is a finite number of at least 0."""
Fraction: TypeAlias = Annotated[float, Bounds("a number from 0 to 1", lambda x: 0 <= x <= 1)]
"""The type of a setting that is a number from 0 to 1."""
Count: TypeAlias = Annotated[int, Bounds("an integer of at least 1", lambda x: is_whole(x) and x >= 1)]
"""The type of a setting that is an integer of at least 1."""
CountOrNone = Annotated[int | None, Bounds("an integer of at least 1", lambda x: x is None or is_whole(x) and x >= 1)]
CountOrZero = Annotated[int, Bounds("an integer of at least 0", lambda x: is_whole(x) and x >= 0)]
Sizes = Annotated[
    tuple[int, ...],
    Bounds(
        "a tuple of positive layer sizes",
        lambda x: isinstance(x, tuple) and all(is_whole(size) and size >= 1 for size in x),
    ),
]


def check_settings(settings: Any, prefix: str = "") -> None:
    """Raise a ValueError that names the first setting that is not as its type says, its value and what was expected."""
    for name, hint in typing.get_type_hints(type(settings), include_extras=True).items():
        for bounds in getattr(hint, "__metadata__", ()):
            bounds.check(f"{prefix}{name}", getattr(settings, name))


def descriptions(settings: type) -> dict[str, str]:
    """Return what the docstring of a class says of each of its settings."""
    found = docstring_parser.google.parse(settings.__doc__).params
    return {one.arg_name: " ".join((one.description or "").split()) for one in found}


class Settings:
    """A base of dataclasses of settings, whose types, such as `Fraction`, say what values are allowed.

    The docstring of a subclass shows inherited settings, too, in the words of its bases.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own, *bases = (docstring_parser.google.parse(one.__doc__) for one in (cls, *cls.__bases__))
        known = {one.arg_name for one in own.params}
        own.blank_after_short_description = True
        own.meta += [one for base in bases for one in base.params if one.arg_name not in known]
        cls.__doc__ = docstring_parser.google.compose(own, indent="  ")

    def validate(self) -> None:
        """Raise a ValueError that names the first bad setting, its value and what was expected."""
        check_settings(self)
