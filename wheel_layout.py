"""The build backend: setuptools', but a wheel has one package at its top, `frodo`, with the others under it.

`agents` and `meta` are names that others have, too. A checkout and an editable install keep the five packages side by
side; in a wheel `agents` is `frodo.agents`, and so on. Imports are rewritten, as tools do that vendor a package, and so
are names of modules in strings and comments. A wheel is not written where an old name is left.
"""

import ast
import base64
import csv
import hashlib
import io
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 - hooks; without one for a wheel's metadata they are read from it
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

# pip builds before it reads Requires-Python, and an older Python cannot parse the packages in `moved`.
if sys.version_info < (3, 11):  # noqa: UP036 - an older Python does come here
    sys.exit(f"error: frodo-rl needs Python 3.11 or later, this is {sys.version.split()[0]}")

TOP = "frodo"
INNER = ("agents", "experiments", "meta", "toy_envs")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build a wheel as setuptools does, and move its packages under `frodo`."""
    shutil.rmtree(Path("build", "lib"), ignore_errors=True)  # of an earlier build, with files that are gone
    with tempfile.TemporaryDirectory() as folder:
        name = build_meta.build_wheel(folder, config_settings)
        move(Path(folder, name), Path(wheel_directory, name))
    return name


def move(wheel: Path, to: Path) -> None:
    """Write a wheel again, with the packages of INNER under TOP.

    Raises:
      ValueError: if a name of the old layout would be left, or a variable would change.
    """
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as new:
        names, rows = old.namelist(), []
        pattern = names_of_modules(names)
        for info in old.infolist():
            data = old.read(info)
            folder, _, file = info.filename.partition("/")
            if folder in INNER:
                info.filename = f"{TOP}/{info.filename}"
            if file.endswith(".py"):
                data = moved(data.decode(), pattern, info.filename).encode()
            elif folder.endswith(".dist-info") and file == "entry_points.txt":
                data = re.sub(rf"= *({'|'.join(INNER)})\.", rf"= {TOP}.\1.", data.decode()).encode()
            elif folder.endswith(".dist-info") and file == "top_level.txt":
                data = f"{TOP}\n".encode()
            elif folder.endswith(".dist-info") and file == "RECORD":
                continue  # it is written last, of what is in the wheel
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append((info.filename, f"sha256={digest}", len(data)))
            new.writestr(info, data)
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (record, "", "")])
        new.writestr(record, text.getvalue())


def names_of_modules(names: Collection[str]) -> re.Pattern[str]:
    """Return what finds the first name of modules of INNER: in imports, in dotted names, and in paths of files."""
    found: dict[str, set[str]] = {name: set() for name in INNER}
    for folder, second, *_ in (name.split("/") for name in names if name.endswith(".py") and "/" in name):
        if folder in found and second != "__init__.py":
            found[folder].add(second.removesuffix(".py"))
    inside = "|".join(rf"{name}(?=[./](?:{'|'.join(sorted(seconds))})\b)" for name, seconds in found.items())
    whole = rf"(?<=\bfrom )(?:{'|'.join(INNER)})(?= import\b)"
    return re.compile(rf"(?<![\w./])(?:{inside}|{whole})")


def moved(source: str, pattern: re.Pattern[str], path: str) -> str:
    """Return the source of a module in the layout of a wheel; errors as of `move`."""
    changed = pattern.sub(rf"{TOP}.\g<0>", source)
    changed = re.sub(rf"\b{TOP}\.(?=(?:{'|'.join(INNER)})/)", f"{TOP}/", changed)
    before, after = ast.parse(source), ast.parse(changed)
    for node in ast.walk(before):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and pattern.match(ast.unparse(node)):
            name = node.value.id
            raise ValueError(f"{path}:{node.lineno}: the variable {name!r} reads as a module: call it otherwise")
    for old, new in zip(ast.walk(before), ast.walk(after), strict=True):
        where = f"{path}:{getattr(new, 'lineno', 0)}"
        if isinstance(new, ast.Import | ast.ImportFrom):
            own = [new.module or ""] if isinstance(new, ast.ImportFrom) else [alias.name for alias in new.names]
            if getattr(new, "level", 0) or any(name.partition(".")[0] in INNER for name in own):
                raise ValueError(f"{where}: {ast.unparse(new)!r} has no place in a wheel: expected from PACKAGE import")
            if isinstance(new, ast.Import) and new.names[0].name != old.names[0].name and not new.names[0].asname:
                raise ValueError(f"{where}: {ast.unparse(old)!r} binds another name in a wheel: expected from ...")
        if isinstance(new, ast.Constant) and re.match(rf"(?:{'|'.join(INNER)})\.", str(new.value)):
            raise ValueError(f"{where}: {new.value!r} is a name in a checkout alone: make it from __name__")
    return changed
