import sys

if sys.version_info < (3, 11):  # noqa: UP036 - in a checkout, where no installer has looked
    raise ImportError("frodo-rl needs Python 3.11 or later, this is " + sys.version.split()[0])
