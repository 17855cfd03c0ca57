"""The experiments as a user meets them: what they write, how they go on, and what they answer to a mistake."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agents.networks import NetworkConfig
from experiments import catch, files, methods, training
from experiments.command_line import RunOptions
from experiments.files import RunError, UsageError
from experiments.runs import Run
from frodo import presets

ROOT = Path(__file__).parents[2]
CLOCKS = ("seconds", "cpu_seconds", "peak_memory_mb")


def small_catch(**settings):
    config = presets.catch()
    config.batch_size, config.network, config.rule.lstm = 4, NetworkConfig("mlp", (16,)), 8
    for name, value in settings.items():
        setattr(config, name, value)
    return config


def small_cart_pole(rule="frodo"):
    config = presets.with_rule(presets.for_environment("envpool/CartPole-v1"), rule)
    config.batch_size, config.unroll, config.validation_unroll = 2, 5, 5
    config.network, config.rule.lstm = NetworkConfig("mlp", (16,)), 8
    return config


def options(folder, steps, seeds=(0, 1), **others):
    return RunOptions(seeds=seeds, steps=steps, out=str(folder), **others)


def rows(folder, without=CLOCKS):
    """Every row of metrics.csv as text, but for what depends on the machine."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key not in without} for row in csv.DictReader(file)]


def test_a_table_says_by_how_much_methods_differ_from_the_first(capsys):
    entry = lambda values: {
        "return": values,
        "return_mean": np.mean(values),
        "return_std": np.std(values, ddof=1),
        "steps_per_cpu_second": 1e3,
    }
    methods.print_table({"a": entry([1.0, 2.0, 3.0]), "b": entry([0.0, 0.0, 1.5]), "bound": 0.27}, ("return",))
    bound, header, first, second = capsys.readouterr().out.splitlines()
    assert bound == "bound  0.2700" and "return − a" in header and first.count("±") == 1
    assert "-1.5000 ± 1.2421" in second  # t(2) = 4.3027, times 0.5 / √3


@pytest.mark.parametrize("make", [small_catch, presets.random_walk])
def test_a_resumed_toy_run_is_bit_for_bit_one_that_never_stopped(make, tmp_path, monkeypatch):
    config = make()
    per_iteration = config.batch_size * (config.num_updates * config.unroll + config.validation_unroll)
    train = lambda folder, **others: training.train(
        config, options(tmp_path / folder, 100 * per_iteration, **others), experiment="e", name="n"
    )
    whole = train("whole")
    interrupt_at_the_third_row(monkeypatch)
    with pytest.raises(SystemExit):
        train("parts")
    monkeypatch.undo()
    assert len(rows(tmp_path / "parts")) == 3 * 2
    parts = train("parts", resume=True)
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")
    assert len(rows(tmp_path / "whole")) == 20 * 2
    for name in set(whole) - {*CLOCKS, "steps_per_cpu_second"}:
        np.testing.assert_array_equal(whole[name], parts[name], err_msg=name)
    with np.load(tmp_path / "whole/last_iterations.npz") as x, np.load(tmp_path / "parts/last_iterations.npz") as y:
        assert {*x} == {*y}
        for name in x:
            np.testing.assert_array_equal(x[name], y[name], err_msg=name)


@pytest.mark.parametrize("rule", ["frodo", "impala"])
def test_a_host_run_goes_through_its_seeds_and_goes_on_in_the_second(rule, tmp_path, monkeypatch):
    config = small_cart_pole(rule)
    train = lambda steps, **others: training.train(
        config, options(tmp_path / "run", steps, **others), experiment="e", name="n"
    )
    interrupt_in_second_seed(monkeypatch)
    with pytest.raises(SystemExit):
        train(1200)
    monkeypatch.undo()
    begun = rows(tmp_path / "run", without=())
    assert [row["seed"] for row in begun][-1] == "1" and int(begun[-1]["env_steps"]) < 1200
    summary = train(1200, resume=True)
    logged = rows(tmp_path / "run", without=())
    assert logged[: len(begun)] == begun
    for seed in ("0", "1"):
        steps = [int(row["env_steps"]) for row in logged if row["seed"] == seed]
        assert steps == sorted(set(steps)) and 1200 <= steps[-1] < 1400
        assert sum(float(row["episodes"]) for row in logged if row["seed"] == seed) > 5
    assert np.isfinite(summary["return"]).all() and ("target_difference" in summary) == (rule == "frodo")
    with pytest.raises(UsageError, match="--steps=1800 is more than the run's 1200, and its first seeds are done"):
        train(1800, resume=True)
    checkpoints = [int(path.name) for path in (tmp_path / "run/checkpoints").iterdir() if path.name.isdigit()]
    assert len(checkpoints) == 2, "one at the interrupt, one at the end"


def interrupt_at_the_third_row(monkeypatch):
    log, logged = Run.log, []

    def log_and_interrupt(run, new_rows):
        log(run, new_rows)
        logged.append(new_rows)
        run.interrupted = signal.SIGINT * (len(logged) == 3)

    monkeypatch.setattr(Run, "log", log_and_interrupt)


def interrupt_in_second_seed(monkeypatch):
    """As if Ctrl-C were pressed after some rows of the second seed."""
    log = Run.log

    def log_and_interrupt(run, new_rows):
        log(run, new_rows)
        run.interrupted = signal.SIGINT * (new_rows[0]["seed"] == 1 and new_rows[0]["env_steps"] > 300)

    monkeypatch.setattr(Run, "log", log_and_interrupt)


def test_ten_bad_meta_gradients_in_a_row_end_the_run(tmp_path):
    config = small_catch()
    config.meta_optimizer.learning_rate = 1e38
    with pytest.raises(RunError, match="10 meta-gradients in a row were not finite"):
        training.train(config, options(tmp_path, 10**6), experiment="e", name="n")
    assert not (tmp_path / "summary.json").exists()


def test_an_agent_whose_parameters_are_not_finite_ends_the_run(tmp_path):
    config = presets.with_rule(small_catch(), "a2c")
    config.optimizer.learning_rate = 1e38
    with pytest.raises(RunError, match="the agent's parameters are not finite"):
        training.train(config, options(tmp_path, 10**6), experiment="e", name="n")


def test_a_rule_that_only_predicts_does_not_act(tmp_path):
    config = presets.with_rule(small_catch(), "td_lambda")
    with pytest.raises(ValueError, match="rule.kind is 'prediction', expected one that acts: toy/catch has 3 actions"):
        training.train(config, options(tmp_path / "run", 1000), experiment="e", name="n")
    assert not (tmp_path / "run").exists()


def test_what_the_network_cannot_take_is_refused_before_anything_is_written(tmp_path):
    config = small_cart_pole()
    config.network = NetworkConfig("conv", (16,))
    with pytest.raises(ValueError, match=r"network.torso 'conv' needs images .* got shape \(4,\)"):
        training.train(config, options(tmp_path / "run", 100), experiment="e", name="n")
    assert not (tmp_path / "run").exists()


def test_an_experiment_of_several_methods_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    config = small_catch()
    steps = 100 * 4 * 20
    run_all = lambda configs, **others: methods.run_all(
        configs, options(tmp_path, steps, **others), experiment="e", metrics=catch.METRICS
    )
    configs = catch.make_configs(config, "frodo")
    run_all({"frodo": configs["frodo"]})
    before = rows(tmp_path / "frodo", without=())
    (tmp_path / "a2c").mkdir()
    (tmp_path / "a2c/config.json").write_text("{}")  # begun, and killed before its first checkpoint
    with pytest.raises(UsageError, match="holds runs .frodo, a2c.: --resume goes on with"):
        run_all(configs)
    _, summary = run_all(configs, resume=True)
    assert list(summary) == ["frodo", "a2c_no_bootstrap", "a2c"]
    assert rows(tmp_path / "frodo", without=()) == before
    assert json.loads((tmp_path / "summary.json").read_text()) == files.plain(summary)
    entry = summary["a2c"]
    assert entry["sampled_return_mean"] == np.mean(entry["sampled_return"])
    assert entry["sampled_return_std"] == np.std(entry["sampled_return"], ddof=1)
    own = np.array([float(row["sampled_return"]) for row in rows(tmp_path / "a2c", without=()) if row["seed"] == "1"])
    assert entry["sampled_return_over_run"][1] == pytest.approx(own.mean())
    monkeypatch.setattr(training, "train", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_all(configs, overwrite=True)
    assert not list(tmp_path.rglob("config.json"))  # old runs are not taken for new ones
    with pytest.raises(UsageError, match="holds no run"):
        methods.run_all(configs, options(tmp_path / "none", steps, resume=True), experiment="e", metrics=())


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("frodo", {"frodo", "a2c_no_bootstrap", "a2c"}),
        ("q", {"frodo_q", "q_learning"}),
        ("learned_loss", {f"{x}_{y}" for x in ("frodo", "learned_loss") for y in ("3e-05", "0.0001", "0.0003")}),
    ],
)
def test_catch_compares_what_differs_in_the_rule_or_its_rate_alone(rule, expected):
    configs = catch.make_configs(presets.catch(is_value_based=rule == "q"), rule)
    assert set(configs) == expected
    for name, config in configs.items():
        config.validate()
        assert config.optimizer == presets.catch().optimizer and config.network == presets.catch().network
        if rule == "learned_loss":
            assert config.meta_optimizer.learning_rate == float(name.rpartition("_")[2])


PYTHON = (sys.executable, "-m")


def start(*args):
    return subprocess.run([*PYTHON, *args], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["online", "--env=toy/cach"], "the nearest match is 'toy/catch'"),
        (["online", "--rule=frod"], "rule.name is 'frod', .* (did you mean 'frodo'?)"),
        (["online", "--config.unrol=3"], "--config.unrol is no flag of this program; did you mean --config.unroll?"),
        (["online", "--config.num_updates=0"], "num_updates is 0, expected an integer of at least 1"),
        (["catch", "--rule=z"], "--rule=z: give one of frodo, q, learned_loss"),
        (["online", "--env=toy/random_walk", "--rule=impala"], "rule.kind is 'prediction', expected 'actor_critic'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(args, message, tmp_path):
    done = start(f"experiments.{args[0]}", *args[1:], f"--out={tmp_path / 'run'}")
    pattern = message.split(" .* ")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and all(part in done.stderr for part in pattern), done.stderr
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_saves_and_says_how_to_go_on(tmp_path):
    args = [*PYTHON, "experiments.online", "--config.batch_size=2", "--config.network.hidden=8", "--config.rule.lstm=4"]
    args += ["--steps=1e9", f"--out={tmp_path}"]
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(args, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=env) as process:
        while not (tmp_path / "metrics.csv").exists() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert f"go on with the same settings and --resume --out={tmp_path}" in stderr.splitlines()[-1]
    assert len(list((tmp_path / "checkpoints").glob("[0-9]*"))) == 1
    assert not (tmp_path / "summary.json").exists()
