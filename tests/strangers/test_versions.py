"""Versions: every requirement has a lower bound, constraints.txt keeps to the bounds, and CI tests both ends."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests import lowest_versions
from tests.lowest_versions import lowest, requirements

ROOT = Path(__file__).parents[2]


def pins(lines):
    """Return the version of each package in lines such as `name==1.2`, by normalized names."""
    pairs = [line.split("==") for line in lines]
    versions = {canonicalize_name(name): version for name, version in pairs}
    assert len(versions) == len(pairs)
    return versions


def test_every_requirement_has_a_lower_bound_and_a_package_has_one_alone():
    printed = subprocess.check_output([sys.executable, lowest_versions.__file__], text=True).splitlines()
    assert printed == sorted({lowest(requirement) for requirement in requirements()})
    versions = pins(printed)
    assert set(versions) == {canonicalize_name(Requirement(requirement).name) for requirement in requirements()}
    assert {"jax", "envpool", "rliable", "navix", "wandb", "pytest"} <= set(versions)  # of extras, too


@pytest.mark.parametrize("requirement", requirements())
def test_the_lowest_version_and_that_of_the_constraints_are_within_the_bounds(requirement):
    pinned = pins((ROOT / "constraints.txt").read_text().splitlines())
    parsed = Requirement(requirement)
    assert pinned[canonicalize_name(parsed.name)] in parsed.specifier
    assert lowest(requirement).partition("==")[2] in parsed.specifier


def test_what_the_constraints_name_installs_with_the_first_version_of_python_that_is_allowed():
    """That of Debian 12 is 3.11.2; `pip` leaves a version out that wants a later one, and finds none."""
    pinned, found = pins((ROOT / "constraints.txt").read_text().splitlines()), {}
    for package in importlib.metadata.distributions():
        name = canonicalize_name(package.metadata["Name"])
        if pinned.get(name) == package.version:
            found[name] = package.metadata.get("Requires-Python") or ""
    if len(found) < len(pinned) / 2:
        pytest.skip("what is installed is not what constraints.txt names")
    assert not {name: python for name, python in found.items() if "3.11.0" not in SpecifierSet(python)}


@pytest.mark.parametrize(
    "requirement, expected",
    [
        ("absl-py>=2.3.1", "absl-py==2.3.1"),
        ("pandas>=2.2.2,<3", "pandas==2.2.2"),
        ("jax[cuda13]>=0.8", "jax==0.8"),
        ("envpool>=1.2.5; sys_platform == 'linux'", "envpool==1.2.5"),
    ],
)
def test_the_lowest_version_is_that_of_the_bound(requirement, expected):
    assert lowest(requirement) == expected


@pytest.mark.parametrize("requirement", ["pandas", "pandas<3", "jax[cuda13]", "pandas>2.2", "pandas>=2.2rc1"])
def test_a_requirement_without_a_lower_bound_is_named(requirement):
    with pytest.raises(ValueError, match=re.escape(repr(requirement)) + ".*expected name>=version$"):
        lowest(requirement)


@pytest.mark.parametrize("versions, option", [("lowest", "--constraint .venv-lowest/lowest.txt"), ("newest", "")])
def test_one_command_tests_the_lowest_and_one_the_newest_here_and_in_ci(versions, option):
    command = f"make test-{versions}"
    assert f"`{command}" in (ROOT / "CONTRIBUTING.md").read_text()
    assert f"- command: {command}\n" in (ROOT / ".github/workflows/ci.yml").read_text()
    dry = subprocess.check_output([*command.split(), "--dry-run", "--no-print-directory"], cwd=ROOT, text=True)
    assert f"pip install --quiet {option} --editable '.[dev]'\n" in dry
    for path in re.findall(r"\btests/[\w/.]+", dry):
        assert (ROOT / path).exists(), path


def test_the_lowest_python_is_tested_with_the_lowest_versions():
    python = lowest_versions.project()["requires-python"].removeprefix(">=")
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert f'command: make test-lowest\n            python: "{python}"' in workflow
