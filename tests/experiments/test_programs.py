"""Programs as a user meets them: what they answer to a mistake and to Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = (sys.executable, "-m")


MISTAKES = [
    (["online", "--env=toy/cach"], "the nearest match is 'toy/catch'"),
    (["online", "--rule=frod"], "--rule: rule is 'frod', .* (did you mean 'frodo'?)"),
    (["online", "--config.unrol=3"], "--config.unrol is no flag of this program (did you mean '--config.unroll'?)"),
    (["online", "--config.num_updates=0"], "num_updates is 0, expected an integer of at least 1"),
    (
        ["online", "--rule=impala", "--config.rule.epsilon=0.3"],
        "--config.rule.epsilon: epsilon is 0.3, but the rule 'i",
    ),
    (["online", "--config.rule.base=vtrace"], "base is 'vtrace' and is_relative False, expected base 'value', or"),
    (
        ["online", "--config.rule.epsilon=0.3"],
        "rule.epsilon is 0.3, expected the default, 0.1: kind 'actor_critic' has",
    ),
    (["online", "--init_meta_params=nothing.npz"], "--init_meta_params: nothing.npz is no rule: .* catch_and_grids"),
    (
        ["online", "--rule=catch_and_grids"],
        "--rule: catch_and_grids is no rule at random η: --init_meta_params=catch_and_grids learns",
    ),
    (
        ["online", "--rule=cathc_disco"],
        "--rule: rule is 'cathc_disco', which is not known (did you mean 'catch_disco'?)",
    ),
    (["online", "--rule=hub:owner/name"], "--rule: hub:owner/name is no rule at random η: --init_meta"),
    (["online", "--init_meta_params=frodo"], "--init_meta_params: frodo has no η yet: give it as --rule"),
    (["discover", "--init_meta_params=disco"], "--init_meta_params: disco has no η yet: give it as --rule"),
    (["discover", "--rule=disco103"], "--rule: disco103 is no rule at random η: --init_meta_params"),
    (["evaluate", "--rule=impala"], "--rule: impala has no η to keep as it is: frodo online --rule=impala"),
    (["evaluate", "--rule=nothing"], "--rule: nothing is no rule: expected one of disco103, catch_and_grids"),
    (["evaluate", "--weights=none.npz"], "--weights: none.npz names no file"),
    (["adapt", "--trials=0"], "--trials=0: give an integer from 1 to 999, or from 1 to 6 trials as 1-6"),
    (["adapt", "--trials=1000"], "--trials=1000: give an integer from 1 to 999, or from 1 to 6 trials as 1-6"),
    (["adapt", "--trials=3-2"], "--trials=3-2: give an integer from 1 to 999, or from 1 to 6 trials as 1-6"),
    (
        ["adapt", "--env=toy/rule_room/main/held_out"],
        "--env=toy/rule_room/main/held_out: tasks that are held out are for the test, train in toy/rule_room/main",
    ),
    (
        ["adapt", "--config.distillation.teacher=nowhere"],
        "distillation.steps is 0, expected how many environment steps nowhere teaches",
    ),
    (
        ["adapt", "--config.distillation.teacher=nowhere", "--config.distillation.steps=5"],
        "distillation.teacher: nowhere holds no run: there is no config.json",
    ),
    (["adapt", "--config.distillation.steps=5"], "distillation.steps is 5, expected a teacher"),
    (
        ["online", "--rule=q_learning", "--config.distillation.steps=5"],
        "distillation.steps is 5, expected 0 for the rule 'q_learning': an actor-critic alone has a policy that a",
    ),
    (["adapt", "--config.curriculum.kind=prl"], "curriculum.kind is 'prl', expected one of uniform, no_op, plr"),
    (["adapt", "--env=toy/rule_room/main/16", "--config.curriculum.kind=plr"], "curriculum.capacity is 1000, expected"),
    (["online", "--env=trials/0/toy/catch", "--rule=impala"], "num_trials is 0, expected a whole number of at least 1"),
    (["adapt", "--env=bsuite/catch/0"], "--env=bsuite/catch/0: give an environment written in JAX"),
    (["adapt", "--env=toy/cach"], "--env: unknown environment 'toy/cach'"),
    (["adapt", "--env=toy/rule_room/impossible"], "tasks of the kind impossible have no goal to find"),
    (["adapt", "--env=changing/actions/5/toy/rule_room/impossible"], "the kind impossible have no goal to find"),
    (
        ["adapt", "--env=toy/bandit/2", "--film"],
        "--film: only rule rooms are drawn, and the test is in toy/bandit/2",
    ),
    (
        ["adapt", "--test_env=toy/rule_room/mixed"],
        "--test_env=toy/rule_room/mixed: tasks of the kind pre_solved and impossible have no goal to find",
    ),
    (["adapt", "--test_env=toy/bandit/5"], "--test_env=toy/bandit/5: observations and number of actions are ((1,), 5)"),
    (["adapt", "--test_trials=2,0"], "--test_trials=2,0: give numbers of trials from 1 to 999, such as 1,2,4,8"),
    (
        ["adapt", "--test_tasks=2000"],
        "--test_tasks=2000: num_tasks is 2000, expected at most the 1000 that are held out",
    ),
    (["adapt", "--rule=nothing"], "--rule: nothing is no rule: expected one of disco103, catch_and_grids"),
    (["online", "--num_devices=99"], "num_devices is 99, expected at most the .* there are, or 0 for no split"),
    (
        ["online", "--num_devices=99", "--env=envpool/CartPole-v1"],
        "num_devices is 99, expected at most the .* there are",
    ),
    (["online", "--num_devices=x"], "--num_devices=x: give a non-negative integer"),
    (["online", "--num_processes=2"], "--process_id=0: with --num_processes=2, give --coordinator=host:port"),
    (["online", "--num_processes=2", "--coordinator=host"], "--coordinator=host: give host:port, such as"),
    (["discover", "--num_devices=2"], "--num_devices=2: it is of --plan; a run has --config.num_devices"),
    (["online", "--plan", "--accelerators=H10"], "--accelerators=H10: an accelerator is 'H10', expected one of H100,"),
    (["online", "--plan", "--num_devices=-3"], "--num_devices=-3: give a non-negative integer"),
    (["online", "--plan", "--num_devices=3"], "batch_size is 32, expected a multiple of the 3 devices"),
    (["discover", "--plan", "--num_devices=5"], "--num_devices=5: there are 5 devices for 4 agents"),
    (["discover", "--preset=disco103"], "--preset=disco103: unknown environment 'dmlab/rooms_collect_good"),
    (["atari57", "--only=Pung"], "--only is 'Pung', expected one of Alien, Amidar, .* (did you mean 'Pong'?)"),
    (["atari57", "--only=Pong", "--num_devices=99"], "num_devices is 99, expected at most the"),
    (["catch", "--rule=z"], "--rule=z: give one of frodo, q, learned_loss"),
    (
        ["online", "--rule=td_lambda"],
        "is of the kind 'prediction', expected one that acts: there are 3 actions",
    ),
]


def check(done, message, out):
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and all(part in done.stderr for part in message.split(" .* ")), done.stderr
    assert not out.exists()


@pytest.mark.parametrize(("args", "message"), MISTAKES)
def test_a_mistake_is_answered_in_one_line(start, args, message, tmp_path):
    out = tmp_path / "run"
    check(start(f"experiments.{args[0]}", *args[1:], f"--out={out}"), message, out)


def test_a_process_of_its_own_ends_with_one_line_too(tmp_path):
    (program, *args), message = MISTAKES[0]
    command = [*PYTHON, f"experiments.{program}", *args, f"--out={tmp_path / 'run'}"]
    check(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False), message, tmp_path / "run")


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
