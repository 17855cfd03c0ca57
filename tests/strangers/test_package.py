"""The package as others install it: what is in a wheel, that it clashes with nobody, and what it learns without."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import wheel_layout
from experiments.results import plots
from frodo.runs.errors import UsageError
from frodo.runs.provenance import git_revision
from tests import lowest_versions
from tests.test_structure import LAYERS, MODULES, PROGRAMS, ROOT

FILES = ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in", "constraints.txt")
FILES += ("pyproject.toml", "setup.py", "wheel_layout.py")
VERSION = lowest_versions.project()["version"]
has_setuptools = pytest.mark.skipif(
    int(version("setuptools").split(".")[0]) < 77, reason="the build needs setuptools 77: make .venv/.installed"
)

# What learning does without, as folders and files of packages begin.
OPTIONAL = ("matplotlib", "pandas", "wandb", "tensorboardx", "plotnine", "seaborn", "rliable", "distributed", "dask")
OPTIONAL += ("bsuite", "envpool", "gymnasium", "gymnax", "craftax", "navix", "xminigrid")

TEN_LINES = """
import jax
import frodo

result = frodo.discover_online("toy/catch/5x5", "impala", num_steps=2e3, key=jax.random.key(0), batch_size=4)
result.save("agent.npz")
agent = frodo.load("agent.npz")
environment = frodo.make_environment("toy/catch/5x5")
step = environment.init(jax.random.key(1))[1]
actions, _ = agent.act(step.observation[None])
print(result.metrics["return"].shape, actions.shape)
"""


# What is rewritten, and what is refused.
PATTERN = wheel_layout.names_of_modules(
    ["agents/__init__.py", "agents/rule.py", "agents/rules/ppo.py", "meta/targets/disco.py", "experiments/online.py"]
    + ["toy_envs/base.py", "frodo/files.py", "x-1.dist-info/RECORD"]
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from agents.rules.ppo import x", "from frodo.agents.rules.ppo import x"),
        ("from agents import rule, rules", "from frodo.agents import rule, rules"),
        ("def f():\n    import meta.targets.disco as d", "def f():\n    import frodo.meta.targets.disco as d"),
        ("from frodo.files import write", "from frodo.files import write"),
        ("x = ['-m', 'experiments.online']", "x = ['-m', 'frodo.experiments.online']"),
        (
            '"""By `toy_envs.base`, in `toy_envs/base.py`."""',
            '"""By `frodo.toy_envs.base`, in `frodo/toy_envs/base.py`."""',
        ),
        ("x = 1  # as agents.rule has it", "x = 1  # as frodo.agents.rule has it"),
        ("population.agents.rule = agents[0]", "population.agents.rule = agents[0]"),
        ("'its agents. And meta.other'", "'its agents. And meta.other'"),
    ],
)
def test_a_module_is_rewritten(source, expected):
    assert wheel_layout.moved(source, PATTERN, "a.py") == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nimport agents", r"^a\.py:2: 'import agents' has no place in a wheel"),
        ("from . import rule", r"has no place in a wheel"),
        ("from meta.other import x", r"'from meta\.other import x' has no place in a wheel"),
        ("import meta.targets", r"'import meta\.targets' binds another name in a wheel: expected from"),
        ("agents = f()\nagents.rule", r"^a\.py:2: the variable 'agents' reads as a module: call it otherwise"),
        ("x = f'experiments.{name}'", r"'experiments\.' is a name in a checkout alone: make it from __name__"),
    ],
)
def test_what_would_not_be_found_in_a_wheel_is_refused(source, message):
    with pytest.raises(ValueError, match=message):
        wheel_layout.moved(source, PATTERN, "a.py")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_module_has_its_form_in_a_wheel(path):
    pattern = wheel_layout.names_of_modules([one.as_posix() for one in MODULES])
    source = (ROOT / path).read_text(encoding="utf-8")
    changed = wheel_layout.moved(source, pattern, path.as_posix())
    assert len(changed.splitlines()) == len(source.splitlines())


def test_the_layers_are_those_of_the_layout():
    assert {*wheel_layout.INNER, wheel_layout.TOP} == set(LAYERS)


# The metadata.
def test_the_version_is_that_of_the_changelog_and_of_the_citation():
    released = re.search(r"^## \[(\d[\d.]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert released and released[1] == VERSION
    assert f"\nversion: {VERSION}\n" in citation and f"\ndate-released: {released[2]}\n" in citation


def test_learning_needs_no_package_for_figures_and_logs():
    names = {re.split(r"[^\w.-]", one)[0].lower() for one in lowest_versions.project()["dependencies"]}
    assert names >= {"jax", "dm-haiku", "optax", "rlax", "dm-env", "bsuite", "envpool", "absl-py"}
    assert not names & {"matplotlib", "pandas", "wandb", "tensorboardx"}


def test_setup_py_is_a_line():
    assert (ROOT / "setup.py").read_text(encoding="utf-8").count("\n") == 1


# A wheel and an sdist.
@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist of this checkout, and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in LAYERS:
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, source)
    call(source, "import wheel_layout; print(wheel_layout.build_sdist('../sdist'))")
    (sdist,) = (folder / "sdist").iterdir()
    with tarfile.open(sdist) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    stale = unpacked / "build" / "lib" / "agents" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    call(unpacked, "import wheel_layout; print(wheel_layout.build_wheel('../../wheel'))")
    (wheel,) = (folder / "wheel").iterdir()
    return sdist, wheel


def call(folder, code):
    (folder / "..").mkdir(exist_ok=True)
    for out in ("../sdist", "../../wheel"):
        (folder / out).mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@has_setuptools
@pytest.mark.slow
def test_a_wheel_has_all_that_is_here_under_one_name(built):
    sdist, wheel = built
    assert (sdist.name, wheel.name) == (f"frodo_rl-{VERSION}.tar.gz", f"frodo_rl-{VERSION}-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    info = f"frodo_rl-{VERSION}.dist-info"
    code = {f"frodo/{path}".replace("frodo/frodo/", "frodo/") for path in map(Path.as_posix, MODULES)}
    assert {name for name in files if name.endswith(".py")} == code
    assert {name.partition("/")[0] for name in files} == {"frodo", info}
    assert files[f"{info}/top_level.txt"].split() == [b"frodo"]
    assert b"frodo = frodo.experiments.command:main" in files[f"{info}/entry_points.txt"]
    data = [path for path in (ROOT / "frodo" / "data").rglob("*.*") if path.suffix in (".npz", ".md")]
    assert data and all(files[path.relative_to(ROOT).as_posix()] == path.read_bytes() for path in data)
    assert {"frodo/py.typed", "frodo/agents/environments/atari57_scores.csv"} <= files.keys()
    rows = list(csv.reader(io.StringIO(files[f"{info}/RECORD"].decode())))
    assert [row[0] for row in rows] == list(files) and rows[-1] == [f"{info}/RECORD", "", ""]
    for name, digest, size in rows[:-1]:
        own = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
        assert (digest, int(size)) == (f"sha256={own}", len(files[name]))
    metadata = files[f"{info}/METADATA"].decode()
    assert f"\nVersion: {VERSION}\n" in metadata and "\nRequires-Python: >=3.11\n" in metadata
    assert "\nProvides-Extra: plots\n" in metadata and "\nLicense-Expression: Apache-2.0\n" in metadata


@has_setuptools
@pytest.mark.slow
def test_an_sdist_has_what_a_build_needs_and_no_more(built):
    with tarfile.open(built[0]) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert set(FILES) <= names
    assert {name.partition("/")[0] for name in names} <= {
        "",
        *FILES,
        *LAYERS,
        "frodo_rl.egg-info",
        "PKG-INFO",
        "setup.cfg",
    }


# Installed in an environment of its own, beside a package with the names of ours.
class Installed:
    """A fresh environment that sees the packages of development but some, a made-up one, and the wheel."""

    def __init__(self, folder, wheel, without=()):
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        (site,) = (folder / "venv").rglob("site-packages")
        packages, own = folder / "packages", Path(pytest.__file__).parents[1]
        packages.mkdir()
        ours = ("frodo_rl", "__editable__", "distutils-precedence", "_distutils_hack", "__pycache__")
        for path in own.iterdir():
            if not path.name.startswith(ours) and not path.name.lower().startswith(without or ours):
                (packages / path.name).symlink_to(path)
        (site / "packages.pth").write_text(f"{packages}\n")
        self.others = {}
        for name in ("agents", "meta", "experiments", "toy_envs"):
            (site / name).mkdir()
            (site / name / "__init__.py").write_text(f"WHOSE = 'those of others: {name}'\n")
            self.others[site / name / "__init__.py"] = (site / name / "__init__.py").read_text()
        self.folder = folder / "elsewhere"
        self.folder.mkdir()
        self.pip("install", "--quiet", "--no-deps", "--no-index", str(wheel))

    def pip(self, *arguments):
        command = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, program, *arguments, **more):
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")} | more
        command = [str(self.bin / program), *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )

    def are_others_unharmed(self):
        return all(path.read_text() == text for path, text in self.others.items())


@pytest.fixture(scope="module")
def whole(built, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("whole"), built[1])


@pytest.fixture(scope="module")
def small(built, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("small"), built[1], OPTIONAL)


@has_setuptools
@pytest.mark.slow
def test_ten_lines_work_from_another_folder_beside_packages_of_the_same_names(whole):
    code = TEN_LINES + "import agents, meta, experiments, toy_envs, frodo.agents.rule\n"
    code += "print(agents.WHOSE, meta.WHOSE, experiments.WHOSE, toy_envs.WHOSE, frodo.__file__, sep='\\n')\n"
    code += "assert 'agents.rule' not in __import__('sys').modules\n"
    done = whole.run("python", "-W", "error::UserWarning", "-c", code)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0].endswith("(1,)") and lines[1:5] == [
        f"those of others: {name}" for name in ("agents", "meta", "experiments", "toy_envs")
    ]
    assert Path(lines[5]).is_relative_to(whole.folder.parent / "venv") and whole.are_others_unharmed()
    whole.pip("check")


@has_setuptools
@pytest.mark.long
def test_a_tutorial_runs_where_the_wheel_alone_is_installed(whole):
    notebook = json.loads((ROOT / "docs/tutorials/online_discovery.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join(cells).replace("%pip install --quiet frodo-rl", "raise AssertionError")
    done = whole.run("python", "-c", code, NOTEBOOK_SCALE="0.004", MPLBACKEND="Agg")
    assert done.returncode == 0, done.stderr[-3000:]


@has_setuptools
@pytest.mark.slow
def test_a_run_ends_well_without_what_it_does_not_need(small):
    arguments = ("--env=toy/catch", "--steps=2e3", "--config.batch_size=4")
    done = small.run("frodo", "online", *arguments)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    (line,) = [line for line in done.stderr.splitlines() if "matplotlib" in line]
    assert line.endswith("pip install 'frodo-rl[plots]'; then the same command with --resume draws them")
    folder = small.folder / "results/online/toy_catch_frodo"
    assert json.loads((folder / "summary.json").read_text())["env_steps"] > 0 and not list(folder.glob("*.png"))
    config = json.loads((folder / "config.json").read_text())
    assert (config["git_revision"], config["versions"]["frodo-rl"]) == (None, VERSION)
    for command, message in {
        f"report {folder}": "figures need matplotlib: pip install 'frodo-rl[plots]'",
        "online --env=navix/Navix-Empty-5x5-v0": "navix/... needs navix (No module named 'navix'): pip install "
        "'frodo-rl[navix]'",
        "compare --envs=toy/catch": "rliable is not installed: pip install 'frodo-rl[compare]' brings it",
        "online --log_to=wandb": "--log_to: wandb needs wandb: pip install 'frodo-rl[wandb]'",
    }.items():
        done = small.run("frodo", *command.split())
        assert (done.returncode, done.stderr.strip()) == (2, f"error: {message}"), command


@has_setuptools
@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_program_says_its_help_from_a_wheel(whole, program):
    name = program.removeprefix("experiments.")
    done = whole.run("frodo", name, "--help")
    assert done.returncode == 0 and "flags:" in done.stdout, done.stderr[-3000:]
    assert not re.search(r"(?<![\w./])(agents|experiments|meta|toy_envs)\.[a-z_]+\b(?!\.csv)", done.stdout)


@has_setuptools
@pytest.mark.slow
def test_jobs_in_processes_of_their_own_work_from_a_wheel(whole):
    arguments = ("--rule=impala", "--ids=bandit/0", "--steps=400", "--processes=1", "--config.unroll=4")
    done = whole.run("frodo", "bsuite_sweep", *arguments, "--out=sweep")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (whole.folder / "sweep/bars.png").stat().st_size > 0
    done = whole.run("frodo", "benchmark", "--only=catch", "--against=HEAD")
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "error: --against=HEAD: this package is installed, expected a checkout with git",
    )
    assert whole.are_others_unharmed()


TYPED = """
import frodo
from frodo import AgentConfig, OnlineResult

def train(key: object, steps: float) -> OnlineResult:
    config: AgentConfig = frodo.presets.for_rule("toy/catch", "frodo")
    rule: frodo.Rule = frodo.make_rule("frodo")
    environment: frodo.Environment = frodo.Trials(frodo.make_environment("toy/catch"), 2)  # type: ignore[arg-type]
    result = frodo.discover_online(environment, rule, num_steps=steps, key=key, unroll=config.unroll)  # type: ignore
    return result
"""


@has_setuptools
@pytest.mark.slow
def test_types_reach_a_users_code(whole):
    (whole.folder / "typed.py").write_text(TYPED)
    (whole.folder / "wrong.py").write_text("import frodo\n\nrule: int = frodo.make_rule('frodo')\n")
    how = ("--python-executable", str(whole.bin / "python"), "--no-error-summary")
    command = [sys.executable, "-m", "mypy", *how]
    done = subprocess.run([*command, "typed.py"], cwd=whole.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    done = subprocess.run([*command, "wrong.py"], cwd=whole.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and '"Rule", variable has type "int"' in done.stdout, done.stdout


# Without matplotlib, in a checkout.
def test_figures_are_refused_or_left_out_without_matplotlib(monkeypatch, capsys):
    assert plots.can_draw()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"^figures need matplotlib: pip install 'frodo-rl\[plots\]'$"):
        plots.require()
    assert not plots.can_draw()
    assert "matplotlib is missing: pip install 'frodo-rl[plots]'" in capsys.readouterr().err


def test_a_revision_is_that_of_a_repository_which_has_the_package(monkeypatch, tmp_path):
    from frodo.runs import provenance

    git = lambda *arguments: subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)
    git("init", "--quiet")
    path = tmp_path / "provenance.py"
    path.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(path))
    who = ("-c", "user.name=x", "-c", "user.email=x@y")
    git(*who, "commit", "--quiet", "--allow-empty", "-m", "x")
    assert git_revision() is None  # as of a virtual environment in another project's folder
    git("add", "provenance.py")
    git(*who, "commit", "--quiet", "-m", "y")
    assert len(git_revision() or "") == 40
