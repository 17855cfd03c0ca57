"""Training over trials and the test with θ frozen, from the command line to the files; what is best in a bandit."""

import csv
import json
import os
import re
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import frodo
from experiments.results import k_shot
from experiments.runs.loaded_agent import load
from frodo.regimes.adaptation import held_out_tasks, returns_by_trial
from frodo.regimes.k_shot import references
from toy_envs.bandit import Bandit
from toy_envs.changing import Changing
from toy_envs.rule_room import RuleRoom
from toy_envs.wrapper import Scaled

SMALL = ["--config.batch_size=2", "--config.network.hidden=4", "--config.network.core=3", "--config.num_updates=1"]


def rows(folder):
    with (folder / "k_shot.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_room_from_training_to_the_figure_and_the_test_again(start, tmp_path):
    args = ["--env=toy/rule_room/easy", "--trials=2", "--seeds=0,1", "--steps=400", *SMALL, f"--out={tmp_path}"]
    args += ["--test_tasks=10", "--test_episodes=2"]
    done = start("experiments.adapt", *args, "--test_trials=1,3")
    assert done.returncode == 0 and "optimum" in done.stdout, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    test = summary.pop("test")
    assert {"1", "3"} < set(test) and test["num_solvable"] == 10 and len(summary["trial_2"]) == 2
    assert np.shape(test["3"]["median"]) == (2, 3) and test["3"]["optimum"] == [test["one_trial_optimum"]] * 3
    assert test["1"]["optimum"] == test["3"]["optimum"][:1]
    found = rows(tmp_path)
    assert [(row["seed"], row["num_trials"], row["trial"]) for row in found[:4]] == [
        ("0", "1", "1"),
        ("0", "3", "1"),
        ("0", "3", "2"),
        ("0", "3", "3"),
    ]
    assert [float(row["return"]) for row in found[5:]] == test["3"]["return"][1] and len(found) == 8
    assert [float(row["random"]) for row in found[5:]] == test["random"] and all(x >= 0 for x in test["random"])
    assert (tmp_path / "k_shot.png").exists() and (tmp_path / "return.png").exists()

    assert start("experiments.adapt", *args, "--test_trials=1", "--resume", "--film").returncode == 0
    assert (tmp_path / "film.gif").stat().st_size > 3000
    assert json.loads((tmp_path / "summary.json").read_bytes())["test"]["1"] == test["1"]


def test_an_agent_of_a_file_is_tested_without_training(start, tmp_path):
    network = frodo.NetworkConfig("mlp", (4,), core=3)
    how = dict(num_steps=200, key=jax.random.key(0), batch_size=2, num_updates=1, network=network)
    result = frodo.discover_online(frodo.Trials(RuleRoom("easy"), 2), "impala", **how)
    result.save(tmp_path / "small.npz", is_for_acting=True)
    args = ["--env=toy/rule_room/easy", "--trials=2", "--test_tasks=10", "--test_episodes=2", "--test_trials=2"]
    args += [f"--out={tmp_path / 'out'}", f"--agent={tmp_path / 'small.npz'}"]
    done = start("experiments.adapt", *args, "--film")
    assert done.returncode == 0, done.stderr
    assert sorted(x.name for x in (tmp_path / "out").iterdir()) == [
        *("film.gif", "k_shot.csv", "k_shot.png", "summary.json")
    ]
    run = frodo.k_shot(
        result.learner, result.params, RuleRoom("easy"), jax.random.key(0), num_trials=2, num_tasks=10, num_episodes=2
    )
    found = [float(row["return"]) for row in rows(tmp_path / "out")]
    np.testing.assert_allclose(found, run.returns.mean(axis=0), rtol=1e-5)
    for more, reason in (
        (["--rule=impala"], "--rule=impala: give it or --agent, which is trained"),
        (["--config.batch_size=7"], "--config.batch_size=7: give it or --agent, which is trained"),
        (["--resume"], "--resume=True: give it or --agent, which is trained"),
        (
            ["--env=toy/bandit/2"],
            r"--agent: observations and number of actions of .* are .*, expected .* of trials/2/toy",
        ),
        (["--agent=none.npz"], "--agent: there is no file none.npz, expected one of OnlineResult.save, or one of"),
    ):
        refused = start("experiments.adapt", *args, *more, f"--out={tmp_path / 'none'}")
        assert refused.returncode == 2 and re.search(reason, refused.stderr), refused.stderr
        assert len(refused.stderr.splitlines()) == 1 and not (tmp_path / "none").exists()


def test_a_discovered_rule_trains_without_memory_and_a_bandit_has_a_regret(start, tmp_path):
    args = ["--env=toy/bandit/2", "--trials=2", "--rule=catch_and_grids", "--steps=200", *SMALL, f"--out={tmp_path}"]
    args += ["--config.network.core=0", "--test_trials=2", "--test_tasks=200", "--test_episodes=1"]
    done = start("experiments.adapt", *args)
    assert done.returncode == 0 and "regret of 2 trials" in done.stdout, done.stderr
    test = json.loads((tmp_path / "summary.json").read_bytes())["test"]
    own = test["2"]
    assert own["regret"][0] == pytest.approx(2 * test["oracle"] - sum(own["return"][0]))
    assert own["least_regret"] == pytest.approx(40 / 3 - Bandit(2).best_return(2))
    assert own["regret"][0] > own["least_regret"]


@pytest.mark.long
def test_a_student_of_a_run_is_another_agent_and_can_be_looked_at_without_its_teacher(start, tmp_path):
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    args = ["--env=toy/bandit/2", "--trials=2", "--steps=200", *SMALL, "--test_trials=2", "--test_tasks=8"]
    assert start("experiments.adapt", *args, f"--out={teacher}").returncode == 0
    args.append("--config.network.hidden=5")
    taught = [f"--config.distillation.teacher={teacher}", "--config.distillation.steps=120", f"--out={student}"]
    done = start("experiments.adapt", *args, *taught)
    assert done.returncode == 0, done.stderr
    with (student / "metrics.csv").open(newline="") as file:
        found = [row["teacher_kl"] for row in csv.DictReader(file)]
    assert 0 < float(found[0]) < 5 and found[-1] == "", "it teaches three of five iterations"

    assert (
        start("experiments.adapt", *args[:2], "--steps=280", *args[3:-1], f"--out={teacher}", "--resume").returncode
        == 0
    )
    done = start("experiments.adapt", *args, *taught, "--resume")
    assert done.returncode == 2 and "--resume: teacher was" in done.stderr

    others = ["--env=toy/bandit/3", *args[1:], *taught[:2], f"--out={tmp_path / 'other'}"]
    done = start("experiments.adapt", *others)
    assert done.returncode == 2 and "error: the teacher sees other observations than those of" in done.stderr
    assert "Traceback" not in done.stderr

    done = start("experiments.adapt", *args, "--forgetful", *taught[:2], f"--out={tmp_path / 'other'}")
    assert done.returncode == 2 and "either both agents forget at the end of a trial, or none" in done.stderr

    teacher.rename(tmp_path / "gone")
    assert load(student).agent.params["heads"]["linear"]["w"].shape[1] == 5
    done = start("experiments.adapt", *args, *taught, "--resume")
    assert done.returncode == 2 and f"distillation.teacher: {teacher} holds no run" in done.stderr


@pytest.mark.long
def test_over_two_devices_and_two_processes_it_adapts_as_on_one(tmp_path):
    args = ["--env=toy/bandit/2", "--trials=2", "--steps=1000", *SMALL, "--config.batch_size=8", "--test_trials=2"]
    command = [sys.executable, "-m", "experiments.adapt", *args, "--test_tasks=64"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"

    def adapt(name, num_devices, *more):
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices)}
        arguments = [*command, f"--out={tmp_path / name}", *more]
        return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)

    refused = adapt("three", 2, "--num_devices=3")
    assert "num_devices is 3, expected at most the 2 there are" in refused.communicate()[1] and refused.returncode == 2
    both = [adapt("both", 1, coordinator, "--num_processes=2", f"--process_id={i}") for i in range(2)]
    for process in (adapt("one", 1), adapt("two", 2, "--num_devices=2"), *both):
        assert process.communicate(timeout=300) and process.returncode == 0
    one, two, of_both = ((tmp_path / name / "k_shot.csv").read_text() for name in ("one", "two", "both"))
    assert one == two == of_both


def test_rooms_that_change_are_tested_on_tasks_that_are_held_out():
    room = RuleRoom("easy", 2)
    changing = held_out_tasks(Changing(room, "actions", 5), 3)
    jax.tree.map(np.testing.assert_array_equal, changing.state, held_out_tasks(room, 3))
    assert not np.any(changing.num_steps)


def test_what_is_possible_in_a_bandit():
    bandit = Bandit(2, num_pulls=1)
    tasks = held_out_tasks(bandit, 3)
    known = references(bandit, tasks, (1, 2, 41))
    np.testing.assert_allclose(known.oracle, np.max(tasks.probabilities, axis=1))
    # The second pull: after a success, of probability 1/2, the same arm pays with 2/3; after none the other with 1/2.
    np.testing.assert_allclose(known.optimum[2], [(1 / 2 + 1 / 3 + 1 / 4) / 2] * 2)
    assert known.mean_oracle == pytest.approx(2 / 3) and known.one_trial == pytest.approx(1 / 2)
    assert np.all(np.isnan(known.optimum[41]))
    assert not references(RuleRoom("easy"), held_out_tasks(RuleRoom("easy"), 1), ()).optimum
    scaled = references(Scaled(bandit, 12), held_out_tasks(Scaled(bandit, 12), 3), (1, 2, 41))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, 12 * y), scaled, known)


def test_rules_that_are_shown_need_no_trial():
    room = RuleRoom("visible")
    tasks = jax.jit(lambda: held_out_tasks(room, 12))()
    shown = np.flatnonzero(tasks.task.is_shown)[:1]
    assert len(shown) == 1
    known = references(room, jax.tree.map(lambda x: x[shown], tasks), (2,))
    np.testing.assert_allclose(known.optimum[2], known.oracle[0])
    assert known.mean_oracle == pytest.approx(known.oracle[0]) == known.one_trial


def test_tasks_without_a_solution_have_no_score():
    returns = np.array([[[0.2, 0.4], [0.0, 0.0]], [[0.1, 0.1], [0.0, 0.0]]])
    found = k_shot.statistics(returns, np.array([0.5, 0.0]))
    np.testing.assert_allclose(found["median"], [[0.4, 0.8], [0.2, 0.2]])
    np.testing.assert_allclose(found["return"], returns[:, 0] / 2)
    np.testing.assert_allclose(found["score"], [[0.4, 0.8], [0.2, 0.2]])
    assert set(k_shot.statistics(returns, np.array([]))) == {"return"}


@pytest.mark.long
def test_who_forgets_in_training_forgets_in_the_test(start, tmp_path):
    args = ["--env=toy/rule_room/easy", "--trials=2", "--forgetful", "--steps=400", *SMALL, f"--out={tmp_path}"]
    done = start("experiments.adapt", *args, "--test_trials=3", "--test_tasks=40", "--test_episodes=2")
    assert done.returncode == 0, done.stderr
    one, room = load(tmp_path), RuleRoom("easy")
    play = lambda forgets: returns_by_trial(
        one.learner,
        one.agent.params,
        room,
        held_out_tasks(room, 40),
        jax.random.key(0),
        num_trials=3,
        num_episodes=2,
        is_forgetful=forgets,
    ).mean(axis=0)
    found = json.loads((tmp_path / "summary.json").read_bytes())["test"]["3"]["return"][0]
    np.testing.assert_allclose(play(True), found, rtol=1e-5)
    assert np.any(play(True) != play(False))


@pytest.mark.long
def test_the_most_probable_actions_are_tested_where_that_is_asked_for(start, tmp_path):
    args = ["--env=toy/bandit/2", "--trials=1", "--steps=400", *SMALL, f"--out={tmp_path}"]
    args += ["--test_trials=1", "--test_tasks=40", "--test_episodes=1"]
    assert start("experiments.adapt", *args).returncode == 0
    one, bandit = load(tmp_path), Bandit(2)
    tasks = held_out_tasks(bandit, 40)
    how = dict(num_trials=1, is_greedy=True)
    expected = returns_by_trial(one.learner, one.agent.params, bandit, tasks, jax.random.key(0), **how).mean()
    read = lambda: json.loads((tmp_path / "summary.json").read_bytes())["test"]
    assert not read()["is_greedy"] and read()["1"]["return"][0] != [pytest.approx(expected)]
    assert start("experiments.adapt", *args, "--resume", "--greedy").returncode == 0
    assert read()["is_greedy"] and read()["1"]["return"][0] == [pytest.approx(expected)]


def test_a_pool_without_tasks_is_refused_in_a_line(start, tmp_path):
    done = start("experiments.adapt", "--env=toy/rule_room/main/0", f"--out={tmp_path / 'run'}")
    assert done.returncode == 2 and "toy/rule_room/main/0: pool is 0, expected 1 to 2³¹ tasks" in done.stderr
    assert not (tmp_path / "run").exists()
