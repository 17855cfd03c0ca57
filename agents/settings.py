"""What a setting means is said once, in the `Attributes:` of its class's docstring: help() and --help show it."""

import docstring_parser.google


def descriptions(settings: type) -> dict[str, str]:
    """Return what the docstring of a class says of each of its settings."""
    found = docstring_parser.google.parse(settings.__doc__).params
    return {one.arg_name: " ".join((one.description or "").split()) for one in found}


class Settings:
    """A base of settings: the docstring of a subclass shows inherited settings, too, in the words of its bases."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own, *bases = (docstring_parser.google.parse(one.__doc__) for one in (cls, *cls.__bases__))
        known = {one.arg_name for one in own.params}
        own.blank_after_short_description = True
        own.meta += [one for base in bases for one in base.params if one.arg_name not in known]
        cls.__doc__ = docstring_parser.google.compose(own, indent="  ")
