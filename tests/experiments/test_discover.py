"""Discovery as a program: environments of several kinds at once, files, exact resume, and what bad input says."""

import csv
import dataclasses
import functools
import itertools
import os
import socket
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from agents.acting.replay import ReplayConfig
from experiments.runs import discovery as discover
from frodo.rules.files import ORIGIN, load_rule
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions
from frodo.settings.registry import RuleConfig
from meta.targets.scalar import FrodoConfig
from meta.updates.outer import OuterConfig

TINY = [
    "--config.batch_size=2",
    "--config.unroll=3",
    "--config.validation_unroll=3",
    "--config.num_updates=1",
    "--rule=frodo",
    "--config.rule.lstm=4",
    "--config.network.hidden=4",
    "--config.budgets=40",
]


def tiny(envs, rule="frodo", **settings) -> discover.DiscoverConfig:
    config = discover.configure(rule, envs)  # FRODO's compiles several times faster than DiscoRL's
    return config.replace(
        batch_size=2,
        unroll=3,
        validation_unroll=3,
        num_updates=1,
        rule=config.rule.replace(lstm=4),
        network=dataclasses.replace(config.network, hidden=(4,)),
        budgets=(40,),
    ).replace(**settings)


def final(folder):
    with np.load(folder / "rule.npz") as file:
        return {key: file[key] for key in file if key != ORIGIN}  # which tells the time that it took


def rows(folder):
    """metrics.csv without what a machine and a clock put into it."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [
            {k: v for k, v in row.items() if k not in ("seconds", "cpu_seconds", "peak_memory_mb")}
            for row in csv.DictReader(file)
        ]


def test_resuming_is_as_never_stopped(tmp_path):
    envs = ("toy/grid_world/1", "toy/grid_world/2")  # one program
    whole = discover.run(tiny(envs), RunOptions((0,), 6, out=str(tmp_path / "whole")))
    assert whole["lifetimes"] == 2 * 2 and whole["resets"] == 0  # 12 steps a meta-step, a lifetime of 40 has four
    assert {"return/toy/grid_world/1", "end_return/toy/grid_world/2"} <= set(whole)
    assert len(list((tmp_path / "whole" / "rules").glob("*.npz"))) == 6
    discover.run(tiny(envs), RunOptions((0,), 4, out=str(tmp_path / "parts")))
    discover.run(tiny(envs), RunOptions((0,), 6, out=str(tmp_path / "parts"), resume=True))
    expected, actual = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert all(np.array_equal(expected[key], actual[key]) for key in expected)
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")
    rule = load_rule(tmp_path / "whole" / "rule.npz")
    assert rule.config == tiny(envs).agent_only()
    assert rule.origin.envs == envs and rule.origin.env_steps == 6 * 2 * 12


@pytest.mark.long
@pytest.mark.parametrize("ablation", [{"without": ("y_z", "aux_policy"), "core": "transformer"}, {"without": ("q",)}])
def test_an_ablated_rule_is_discovered_and_read_back(ablation, tmp_path):
    config = tiny(("toy/catch/4x3",), "disco")
    config = config.replace(
        rule=config.rule.replace(prediction_size=4, max_value=3, lifetime_lstm=0, **ablation),
        outer=dataclasses.replace(config.outer, value_hidden=(4,)),
        network=dataclasses.replace(config.network, action_model=3),
    )
    discover.run(config, RunOptions((0,), 2, out=str(tmp_path)))
    first, last = (load_rule(tmp_path / name) for name in ("rules/000001.npz", "rule.npz"))
    assert first.config == last.config == config.agent_only()
    before, meta_params = first.meta_params, last.meta_params
    pairs = list(zip(jax.tree.leaves(before), jax.tree.leaves(meta_params), strict=True))
    assert all(np.all(np.isfinite(y)) for _, y in pairs)
    assert np.mean([np.any(x != y) for x, y in pairs]) > 0.9  # nothing depends on the bias of keys


@pytest.mark.long
def test_agents_on_the_host_beside_pure_ones(tmp_path, monkeypatch):
    seeds, make = [], discover.make_environment
    monkeypatch.setattr(
        discover, "make_environment", lambda name, num, seed: seeds.append(seed) or make(name, num, seed)
    )
    config = tiny(("envpool/CartPole-v1", "toy/catch/4x3", "bsuite/catch/0"), is_optimizer_per_agent=False)
    summary = discover.run(config, RunOptions((0,), 5, out=str(tmp_path / "run")))
    assert summary["resets"] == 0 and summary["lifetimes"] == 3 * 2
    assert seeds == [discover.environment_seed(0, i, 0) for i in range(3)]
    assert (tmp_path / "run" / "discovery.png").exists()


def test_a_rule_is_written_between_meta_steps_and_generations(tmp_path):
    """25 meta-steps in rows of ten, and two generations of three parts each."""
    written, latest = [], types.SimpleNamespace(state=None, step=0)
    regime = types.SimpleNamespace(
        updates=lambda step: min(step, 25) + max(0, step - 25) // 3,
        is_over=lambda state, step: step == 31,
        rule=lambda state, step: types.SimpleNamespace(save=lambda path: written.append(path.name)),
    )
    callback = discover.RulesOnTheWay(types.SimpleNamespace(folder=tmp_path), regime, 20, 25)
    callback.begin(types.SimpleNamespace(latest=latest))
    for latest.step in (10, 20, 25, 28, 31):
        callback.see({})
    assert written == ["000020.npz", "000025.npz", "000027.npz"]


def test_populations_of_neighbouring_seeds_share_no_environment():
    all_of = list(itertools.product(range(4), range(6), (0, 1, 2, 1000)))  # seeds, agents, meta-steps
    seeds = {discover.environment_seed(*one) for one in all_of}
    assert len(seeds) == len(all_of) and min(seeds) >= 0


@pytest.mark.parametrize(
    "ends, ylabel", [(("", "0.5"), "mean return at the end of lifetimes"), (("", ""), "mean return")]
)
def test_where_no_lifetime_ends_the_curve_is_of_all_episodes(tmp_path, monkeypatch, ends, ylabel):
    (tmp_path / "config.json").write_text("{}")
    rows = [f"0,{step},-0.5,{end}" for step, end in zip((40, 80), ends, strict=True)]
    header = "seed,env_steps,return/toy/catch/4x3,end_return/toy/catch/4x3"
    (tmp_path / "metrics.csv").write_text("\n".join([header, *rows]) + "\n")
    drawn = []
    monkeypatch.setattr(discover.plots, "curves", lambda path, curves, **text: drawn.append(text["ylabel"]))
    assert discover.draw(discover.reading.read(tmp_path), tiny(("toy/catch/4x3",)), 40) == str(
        tmp_path / "discovery.png"
    )
    assert drawn == [ylabel]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rule", RuleConfig("impala"), "rule is 'impala', expected one of frodo, learned_loss, disco"),
        ("budgets", (10,), r"budgets are \(10,\), expected at least the \d+ steps of one meta-step"),
        ("num_devices", 99, r"num_devices is 99, expected at most \d+, or 0 for all"),
        ("replay", ReplayConfig(64, 4, 0.5), "is_acting_interleaved is True and replay.capacity is 64, expected one"),
        ("network.torso", "conv", "conv"),
        (
            "rule",
            RuleConfig("frodo", FrodoConfig(kind="prediction")),
            "--envs: .* 'prediction', expected one that acts: there are 3 actions",
        ),
        ("init_meta_params", "nothing.npz", "nothing.npz is no rule"),
    ],
)
def test_a_bad_setting_is_named_before_anything_is_written(tmp_path, name, value, message):
    config = tiny(("toy/catch/4x3",), outer=OuterConfig())
    *path, last = name.split(".")
    setattr(functools.reduce(getattr, path, config), last, value)
    with pytest.raises(ValueError, match=message):
        discover.run(config, RunOptions((0,), 2, out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    (tmp_path / "metrics.csv").touch()
    monkeypatch.delattr(discover, "Populations")
    with pytest.raises(UsageError, match=f"{tmp_path} holds a run: --resume goes on"):
        discover.run(tiny(("toy/catch/4x3",)), RunOptions((0,), 2, out=str(tmp_path)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--envs=toy/cach"], "unknown environment 'toy/cach': .* 'toy/catch'"),
        (["--rule=frodo", "--init_meta_params=a.npz"], "--rule=frodo: give it or --init_meta_params, which names"),
        (["--rule=frod"], "--rule: rule is 'frod', expected one of .* (did you mean 'frodo'?)"),
        (["--rule=impala"], "rule is 'impala', expected one of frodo, learned_loss, disco"),
        (["--envs=,"], "--envs=,: give at least one environment"),
        (["--init_meta_params=nothing.npz"], "--init_meta_params: nothing.npz is no rule"),
        (
            ["--config.agent.unroll=3"],
            "--config.agent.unroll is no flag .* (did you mean '--config.unroll'?)",
        ),
        (["--num_processes=2"], "--process_id=0: with --num_processes=2, give --coordinator=host:port"),
        (["--seeds=0,1"], "--seeds=0,1: a population has one seed"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(start, tmp_path, arguments, message):
    done = start("experiments.discover", f"--out={tmp_path / 'run'}", "--steps=2", *arguments)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and all(part in done.stderr for part in message.split(" .* ")), done.stderr
    assert not (tmp_path / "run").exists()


def test_a_coordinator_whose_port_is_taken_is_said_so(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        arguments = ["--num_processes=2", f"--coordinator={address}", "--process_id=0", "--timeout=60"]
        command = [sys.executable, "-m", "experiments.discover", f"--out={tmp_path / 'run'}", *arguments]
        output = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert output.returncode == 2 and "Traceback" not in output.stderr, output.stderr
    assert (
        f"error: --coordinator={address}: give an address of this machine, and a port that is free on it: "
        in output.stderr
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("process", [0, 1])
def test_processes_that_do_not_come_up_are_said_so(process, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ["--num_processes=2", f"--coordinator={address}", f"--process_id={process}", "--timeout=1"]
    command = [sys.executable, "-m", "experiments.discover", f"--out={tmp_path / 'run'}", *arguments]
    output = subprocess.run(command, capture_output=True, text=True, timeout=200)
    lines = [line for line in output.stderr.splitlines() if line.startswith("error: ")]
    assert output.returncode == 2, output.stderr
    assert lines == [f"error: --coordinator={address}: not all of 2 processes came up within 1 s"]
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_two_processes_discover_the_rule_of_one_and_go_on_where_they_stopped(start, tmp_path):
    arguments = ["--envs=toy/catch/4x3,toy/catch/4x3", *TINY]
    command = [sys.executable, "-m", "experiments.discover", *arguments]
    one = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}

    def run_both(*arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        flags = [f"--out={tmp_path / 'both'}", f"--coordinator={address}", "--num_processes=2", *arguments]
        both = [
            subprocess.Popen([*command, *flags, f"--process_id={i}"], env=one, stderr=subprocess.PIPE, text=True)
            for i in range(2)
        ]
        for process in both:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors

    alone = start("experiments.discover", *arguments, "--steps=3", f"--out={tmp_path / 'alone'}")
    assert alone.returncode == 0, alone.stderr
    run_both("--steps=2")
    run_both("--steps=3", "--resume")
    expected, actual = final(tmp_path / "alone"), final(tmp_path / "both")
    for key in expected:
        np.testing.assert_allclose(expected[key], actual[key], rtol=1e-4, atol=1e-6)
    assert [row["update"] for row in rows(tmp_path / "both")] == ["1", "2", "3"]
    for folder in ("alone", "both"):
        later = start("experiments.discover", *arguments, "--steps=4", "--resume", f"--out={tmp_path / folder}")
        assert later.returncode == 0, later.stderr
    expected, actual = final(tmp_path / "alone"), final(tmp_path / "both")
    for key in expected:
        np.testing.assert_allclose(expected[key], actual[key], rtol=1e-4, atol=1e-6)
