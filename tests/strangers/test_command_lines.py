"""Command lines and files that no program was written for: one line, exit code 2, and nothing is written."""

import json
import re
import shutil
from pathlib import Path

import pytest

from agents.networks.agent import NetworkConfig
from experiments.runs import command_line, setting_flags, settings, training
from frodo import files
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions

LONG, LARGE = "a" * 300, "9" * 20
ONLINE = ("online", "--rule=impala")
PROGRAMS = ("adapt", "bsuite_sweep", "catch", "discover", "evolve", "online", "random_walk")


def refused(start, folder, program, *arguments):
    """Return the line of a program that is refused, and see that it wrote nothing."""
    before = sorted(folder.rglob("*"))
    run = start(f"experiments.{program}", *arguments)
    lines = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert run.returncode == 2 and len(lines) == 1 and "Traceback" not in run.stderr, run.stderr[-2000:]
    assert sorted(folder.rglob("*")) == before and len(lines[0]) < 2100
    return lines[0].removeprefix("error: ")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_flags_of_all_programs(start, here, program):
    refuse = lambda *arguments: refused(start, here, program, *arguments)
    assert refuse("--seeds=0-999999999").startswith("--seeds=0-999999999: these are more than 10000 seeds")
    assert refuse(f"--out={LONG}") == f"--out={LONG}: File name too long"
    assert "in which there are no others" in refuse(f"--out={__file__}/out")
    assert refuse(f"--out={__file__}") == f"--out={__file__} is a file: name a folder"
    length, other = ("--programs", "--steps") if program == "evolve" else ("--steps", "--programs")
    assert refuse(f"{other}=5") == f"{other} is no flag of this program (did you mean '{length}'?)"
    assert refuse(f"{length}=1e400") == f"{length}=1e400: give a positive whole number, such as 5000, 2e6 or 2M"


@pytest.mark.parametrize(
    "setting, message",
    [
        (f"annealing={LARGE}", f"--config.annealing={LARGE}: give a whole number below {2**63}"),
        (f"batch_size={LARGE}", f"--config.batch_size={LARGE}: give a whole number below 2147483648"),
        ("network.hidden=99999999999", "network.hidden is (99999999999,), expected a whole number below 2147483648"),
        ("network.hidden=8,,8", "--config.network.hidden=8,,8: give a whole number for each entry, such as 1,2,3"),
        ("optimizer.learning_rate=1e400", "--config.optimizer.learning_rate=1e400: give a number"),
        ("optimizer.learning_rate=1e300", "optimizer.learning_rate is 1e+300, expected a number of at most 3.4e+38"),
        ("optimizer.learning_rate=inf", "optimizer.learning_rate is inf, expected a finite number"),
        ("meta_optimizer.learning_rate=nan", "--config.meta_optimizer.learning_rate=nan: give a number"),
        ("rule.entropy_cost=inf", "rule.entropy_cost is inf, expected a finite number"),
        ("optimizer.epsilon=inf", "optimizer.epsilon is inf, expected a finite number"),
        ("exploration=-3", "exploration is -3, expected environment steps, or 0 for none"),
        (f"unroll={'9' * 5000}", f"--config.unroll={'9' * 20}"),
    ],
)
def test_settings(start, here, setting, message):
    assert refused(start, here, *ONLINE, f"--config.{setting}", "--out=o").startswith(message)


def test_infinity_is_still_a_setting_where_it_says_no_bound():
    of = lambda text: setting_flags.convert(text, float)
    assert of("inf") == of("-Infinity") * -1 == float("inf")
    assert (
        setting_flags.convert("(256,)", tuple[int, ...]) == (256,)
        and setting_flags.convert("()", tuple[int, ...]) == ()
    )


@pytest.mark.parametrize("text", ["a,,b", "toy/catch,", ",", "", "toy/grid_world/7-3"])
def test_lists_of_environments_have_no_empty_entries(text):
    with pytest.raises(UsageError, match="--envs="):
        settings.parse_envs(text)


@pytest.mark.parametrize("envs", ["toy/grid_world/0-99999999", "toy/grid_world/0-6000,toy/grid_world/0-6000"])
def test_ranges_of_environments_are_counted_before_they_are_made(envs):
    with pytest.raises(UsageError, match="more than 10000 environments"):
        settings.parse_envs(envs)


@pytest.mark.parametrize("seeds", ["0-99999999", "0-6000,7000-13000"])
def test_ranges_of_seeds_too(seeds):
    with pytest.raises(UsageError, match="more than 10000 seeds"):
        command_line.parse_seeds(seeds)


@pytest.mark.parametrize(
    "env", ["trials/999999999/toy/catch", f"changing/rewards/{LARGE}/toy/catch", "toy/catch/99999x99999", LONG]
)
def test_names_of_environments(start, here, env):
    assert f"unknown environment '{env}'" in refused(start, here, *ONLINE, f"--env={env}", "--out=o")


def test_of_a_batch_on_the_host_a_process_has_so_many_at_most(start, here):
    said = refused(start, here, *ONLINE, "--env=bsuite/catch/0", "--config.batch_size=2000000000", "--out=o")
    assert "at most 10000 of those that are stepped on the host" in said


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--discount=nan", "--discount=nan: give a finite number"),
        ("--discount=1e400", "--discount=1e400: give a number in the range [0, 1]"),
        ("--lambda=7", "--lambda=7: give a number in the range [0, 1]"),
        ("--envs=toy/catch,,toy/catch/5x5", "--envs=toy/catch,,toy/catch/5x5: give at least one environment between"),
        ("--budgets=catch=5e6,,", "--budgets=catch=5e6,,: '' is no family"),
        ("--learning_rates=1e300", "--learning_rates=1e+300: give positive numbers"),
        ("--learning_rates=1e-3,,", "--learning_rates=1e-3,,: give numbers"),
        (
            "--batches=99999999999x2",
            "impala on toy/catch with entropy 0.01, 99999999999 × 2: batch_size is 99999999999",
        ),
        ("--processes=99999999999", "--processes=99999999999: give a whole number below 2147483648"),
        (f"--scalar_rule={LONG}", f"--scalar_rule: {LONG}"),
        ("--scalar_rule=.", "--scalar_rule: . is no .npz file of arrays"),
    ],
)
def test_compare(start, here, argument, message):
    known = ("--envs=toy/catch", "--methods=impala,scalar_frozen", "--out=o")
    assert refused(start, here, "compare", *known, argument).startswith(message)


@pytest.mark.parametrize("found", ["[]", '"text"', "[" * 200_000, '{"envs": 5', "folder", '{"envs": 5, "methods": {}}'])
def test_a_comparison_that_is_none(start, here, found):
    write(here / "o/comparison.json", found)
    said = refused(start, here, "compare", "--envs=toy/catch", "--methods=impala", "--out=o", "--resume")
    assert "comparison.json" in said or said.startswith("--resume: envs was 5")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if text == "folder" else path.write_text(text)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that is over."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    config = settings.configure("toy/bandit/2", "impala").replace(batch_size=4, network=NetworkConfig("mlp", (8,)))
    training.train(config, RunOptions((0,), 2000, str(folder)), experiment="online", name="bandit")
    return folder


BAD_CONFIGS = ["folder", "[]", "5", "[" * 200_000, "", '{"a": 1', '{"config": 5}']
BAD_VALUES = [{"seeds": 5}, {"seeds": ["x"]}, {"seeds": [-1]}, {"steps": "many"}, {"config": [1]}, {"config": {"x": 1}}]
BAD_VALUES += [{"resumed": 7}, {"learning_rates": 0.1}]


@pytest.mark.slow
@pytest.mark.parametrize("value", [*BAD_CONFIGS, *BAD_VALUES], ids=lambda value: str(value)[:30])
def test_a_config_that_is_none(start, here, finished, value):
    shutil.copytree(finished, here / "o")
    path = here / "o/config.json"
    text = json.dumps(json.loads(path.read_text()) | value) if isinstance(value, dict) else value
    path.unlink()
    write(path, text)
    named = re.compile(r"(^|: )o(/config.json)? |rule was")
    env = ("--env=toy/bandit/2", "--config.batch_size=4", "--config.network.hidden=8", "--steps=4000")
    assert named.search(refused(start, here, *ONLINE, *env, "--out=o", "--resume"))
    assert named.search(refused(start, here, "analyse", "o"))
    if value in BAD_CONFIGS[:-1]:  # `report` does not ask for more
        assert named.search(refused(start, here, "report", "o"))


@pytest.mark.parametrize(
    "text", ["[]", "{}", "[" * 200_000, '{"config": {"rule": {"settings": {"max_value": -3}}}}'], ids=lambda x: x[:40]
)
def test_bins_are_not_read_from_a_config_that_is_none(tmp_path, text):
    write(tmp_path / "config.json", text)
    write(tmp_path / "metrics.csv", "")
    config = settings.configure("toy/catch/4x3", "muesli").replace(network=NetworkConfig("mlp", (4,), action_model=4))
    with pytest.raises(UsageError, match=str(tmp_path)) as error:
        training.train(config, RunOptions((0,), 9000, str(tmp_path), resume=True), experiment="online", name="muesli")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "folder",
        "",
        "seed,env_steps\n",
        "a,b\n1,2\n",
        "seed,env_steps\n0,1\n0\n",
        f"seed,env_steps\n0,{'1' * 200_000}\n",
    ],
    ids=lambda text: text[:20],
)
def test_metrics_that_are_none(start, here, finished, text):
    shutil.copytree(finished, here / "o")
    (here / "o/metrics.csv").unlink()
    write(here / "o/metrics.csv", text)
    assert refused(start, here, "report", "o").startswith("o holds a run ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "program, arguments",
    [
        ("report", [LONG]),
        ("report", ["o", f"--out={LONG}"]),
        ("report", ["o", "--out=."]),
        ("report", ["o", "--metric=env_steps,,"]),
        ("analyse", ["o", "--figures=probes,,"]),
        ("analyse", [__file__]),
        ("analyse", [LONG]),
        ("analyse", ["o", "--seed=99999999999"]),
        ("score", ["--formula=dqn", "--seeds=0-99999999"]),
        ("score", ["--formula=dqn", f"--out={LONG}"]),
        ("score", [f"--finalists={LONG}"]),
        ("score", ["--formula=" + "(" * 20_000]),
        ("evaluate", [f"--weights={LONG}"]),
        ("evaluate", [f"--rule={LONG}"]),
        ("benchmark", ["--only=,"]),
        ("benchmark", [f"--out={LONG}"]),
        ("benchmark", ["--out=."]),
        ("evolve", ["--config.num_seeds=2000000000"]),
        ("evolve", ["--config.num_final_seeds=2000000000"]),
        ("adapt", ["--test_tasks=99999999999"]),
        ("adapt", ["--test_tasks=2000000000"]),
        ("adapt", ["--trials=99999999999"]),
        ("bsuite_sweep", ["--ids=catch,,"]),
        ("bsuite_sweep", ["--beside=a,,b"]),
        ("online", ["--timeout=99999999999", "--num_processes=2"]),
        ("online", ["--log_to=tensorboard,,"]),
        ("atari57", ["--only=."]),
        ("check_disco103", [f"--weights={LONG}"]),
    ],
)
def test_other_arguments(start, here, finished, program, arguments):
    if arguments[0] == "o":
        shutil.copytree(finished, here / "o")
    refused(start, here, program, *arguments)


def test_what_is_no_object_is_no_json_of_ours(tmp_path):
    for text in ("[]", "5", "null", "{", "[" * 200_000, "folder"):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        write(path, text)
        with pytest.raises(ValueError, match=str(path)):
            files.read_json(path)
    with pytest.raises(FileNotFoundError):
        files.read_json(Path(tmp_path / "none.json"))
