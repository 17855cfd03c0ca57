"""The commands of README and docs: those of the README are run with few steps, all others up to where a run begins."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.runs import planning
from frodo.regimes import plan
from frodo.settings.registry import RULES
from meta.targets.inputs import INPUTS

ROOT = Path(__file__).parents[1]
SMALL = ["--seeds=0", "--steps=1000", "--config.batch_size=2", "--config.num_updates=1", "--config.network.hidden=8"]


def commands(path):
    """Every command in the blocks of shell code, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / path).read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := re.sub(r"\s*#.*", "", line))]


def arguments(command):
    """Return the module that a command of a document runs, and its flags; for one of make, what that would run."""
    words = shlex.split(command)
    if words[0] == "make":
        dry = [*words[:2], "-n", "--no-print-directory", *words[2:]]
        env = {name: x for name, x in os.environ.items() if name not in ("MAKEFLAGS", "ARGS")}  # of a make around this
        expanded = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True, env=env)
        words = shlex.split(expanded.stdout.splitlines()[-1])
    assert words[:2] == [".venv/bin/python", "-m"]
    return words[2:]


@pytest.mark.parametrize("command", [command for command in commands("README.md") if command != "make test"])
def test_a_command_of_the_readme_runs(start, command, tmp_path):
    small = [*SMALL, *(["--config.rule.lstm=4"] if "--rule=impala" not in command else [])]
    own = [*arguments(command), *small, f"--out={tmp_path}"]
    if command == "make run":  # one of them in a process of its own
        done = subprocess.run([sys.executable, "-m", *own], cwd=ROOT, capture_output=True, text=True, check=False)
    else:
        done = start(*own)
    assert done.returncode == 0, done.stderr
    assert "return" in done.stdout or "error" in done.stdout
    assert list(tmp_path.glob("*.png")) and list(tmp_path.glob("**/summary.json"))


def is_a_run(command):
    has_folder = not any(f"experiments.{name}" in command for name in ("report", "score"))
    return command.startswith("make run") or "-m experiments." in command and has_folder


@pytest.mark.parametrize(
    "command",
    [
        x
        for name in ("results", "discovered", "adaptation", "evolution")
        for x in commands(f"docs/{name}.md")
        if is_a_run(x)
    ],
)
def test_a_command_of_the_docs_is_understood(start, command, tmp_path):
    if "disco103" in command and not os.environ.get("DISCO103_WEIGHTS"):
        pytest.skip("DISCO103_WEIGHTS does not name the published weights")
    runs = ("frodo", "frodo_q", "frodo_3e-05", "consistency_0")
    for name in ("config.json", "comparison.json", *(f"{run}/config.json" for run in runs)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    done = start(*arguments(command), f"--out={tmp_path}")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "--overwrite replaces" in done.stderr, done.stderr


@pytest.mark.parametrize("command", [command for command in commands("docs/scale.md") if "--plan" in command])
def test_a_plan_of_the_docs_is_asked_for_as_it_stands(start, command, monkeypatch):
    asked = []
    for name in ("plan_online", "plan_population"):
        monkeypatch.setattr(plan, name, lambda *args: asked.append(args))
    monkeypatch.setattr(planning, "describe", lambda plan, accelerators: "a plan")
    done = start(*arguments(command))
    assert (done.returncode, done.stdout) == (0, "a plan\n"), done.stderr
    ((_, *_, num_devices, num_steps),) = asked
    assert f"--num_devices={num_devices}" in command and num_steps in (96_000, 4e9)


def test_the_examples_of_how_to_extend_learn(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/extending.md").read_text(), re.MULTILINE | re.DOTALL)
    before = [(registry, dict(registry)) for registry in (RULES, INPUTS)]
    try:
        exec("\n".join(blocks), {})
    finally:
        for registry, own in before:
            registry.clear()
            registry.update(own)
    ends = [float(end) for end in re.findall(r"-> ([\d.]+)", capsys.readouterr().out)]
    assert len(ends) == 3 and min(ends) > 0.9


def test_the_example_of_adaptation_runs(capsys):
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/adaptation.md").read_text(), re.MULTILINE | re.DOTALL)
    exec(block, {})
    assert len(capsys.readouterr().out.split()) >= 4


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/*.md")) + [ROOT / "README.md"], ids=lambda path: path.name)
def test_what_a_document_links_to_is_there(path):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (path.parent / target).exists(), target
    assert not re.findall(r"[A-Z]+_TEXT", text)
