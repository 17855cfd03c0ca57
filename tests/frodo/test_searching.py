"""A search as a call of the library: what it finds, how it goes on, what it refuses; programs as LaTeX."""

import concurrent.futures
import csv
import multiprocessing
import pickle

import jax
import numpy as np
import pytest

import frodo
from frodo.regimes.scores import task_of
from frodo.regimes.search_settings import EvolutionConfig
from frodo.regimes.searching import settings_for
from meta.programs.lanes import LaneConfig
from meta.programs.language import LOSSES, TARGETS, parse
from meta.programs.latex import to_latex
from toy_envs.base import DmEnv
from toy_envs.catch import Catch

LANE = LaneConfig(
    hidden=(8,), learning_rate=3e-3, ends="values", exploration=50, capacity=100, batch_size=8, num_episodes=10
)
DQN = r"\left(Q(s)[a] - \left(r + \gamma \cdot \max_{a'} Q_{\mathrm{targ}}(s')[a']\right)\right)^2"
DQN = r"\left(Q(s)[a] - \left(r + \gamma \cdot \max_{a'} Q_{\mathrm{targ}}(s')[a']\right)\right)^2"
SMALL = dict(population_size=10, tournament_size=4, num_lanes=4, num_full_lanes=2, chunk=8, hurdle=-1.0, lane=LANE)
SMALL |= dict(num_finalists=2, num_final_seeds=2)


def find(num_programs=5, environments=None, bounds=None, **how):
    environments = {"mine": Catch(4, 3)} if environments is None else environments
    bounds = {"mine": (-1.0, 1.0)} if bounds is None else bounds
    return frodo.evolve(environments, num_programs=num_programs, bounds=bounds, **SMALL | how)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, find(folder=folder)


def rows(path):
    with path.open(newline="") as file:
        clocks = ("seconds", "cpu_seconds", "peak_memory_mb")
        return [{name: x for name, x in row.items() if name not in clocks} for row in csv.DictReader(file)]


def test_the_best_programs_are_rules_and_formulas(whole):
    found = whole[1]
    assert len(found.best) == 2 and len(found.search.records) == 5
    totals = [np.sum(np.median(one.scores, axis=-1)) for one in found.best]
    assert totals == sorted(totals, reverse=True) and found.best[0].scores.shape == (1, 2)
    assert found.rule.config.rule.settings.formula == found.best[0].formula
    assert found.best[0].latex == to_latex(LOSSES, parse(LOSSES, found.best[0].formula))
    assert found.metrics["evaluated"][-1] == 5 and found.rule.origin.envs == ("mine",)
    agent = frodo.discover_online(Catch(4, 3), found.rule, num_steps=20, key=jax.random.key(0), is_frozen=True)
    assert agent.metrics["env_steps"][-1] == 20


def test_a_search_that_is_stopped_goes_on_as_if_it_had_never_been(whole, tmp_path):
    stopped = []

    def stop(row):
        stopped.append(row)
        return len(stopped) == 3

    assert find(folder=tmp_path, callbacks=[stop]).best == []  # no training has ended
    assert len(rows(tmp_path / "metrics.csv")) == 3
    again = find(folder=tmp_path)
    assert [(x.formula, x.scores.tolist()) for x in again.best] == [
        (x.formula, x.scores.tolist()) for x in whole[1].best
    ]
    for name in ("metrics.csv", "programs.csv"):
        assert rows(tmp_path / name) == rows(whole[0] / name)
    with pytest.raises(ValueError, match="^num_programs is 9, more than the 5 of .* a search ends with its finalists"):
        find(9, folder=tmp_path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"num_programs": 0}, "^num_programs is 0, expected"),
        ({"environments": "toy/catch"}, "^environments is 'toy/catch', expected a list of names"),
        ({"environments": {"mine": [DmEnv(Catch(), 0)]}}, "^environment 'mine' is stepped on the host"),
        ({"bounds": {}}, "^environment 'mine' has no bounds that are known"),
        ({"language": "loses"}, "^language is 'loses', expected one of"),
        ({"population": 3}, "^population is 3, but a search has no such setting .did you mean 'population_size'"),
        ({"num_final_seeds": 10**6}, "^num_final_seeds is 1000000, expected at most"),
    ],
)
def test_what_is_not_right_is_named(how, message):
    with pytest.raises(ValueError, match=message):
        find(**how)


@pytest.mark.parametrize(
    ("language", "formula", "expected"),
    [
        (LOSSES, "(Q(s)[a] - (r + gamma * max(Q_targ(s_next))))**2", DQN),
        (LOSSES, "(Q(s)[a] - r) * (r + gamma)", r"\left(Q(s)[a] - r\right) \cdot \left(r + \gamma\right)"),
        (TARGETS, "G_next - (v_next - pi)", r"G' - \left(v(s') - \pi(a \mid s)\right)"),
        (TARGETS, "x = r + v; x / x + 1.0", r"x_{1} = r + v(s),\quad \frac{x_{1}}{x_{1}} + 1"),
    ],
)
def test_programs_as_latex(language, formula, expected):
    assert to_latex(language, parse(language, formula)) == expected


@pytest.fixture(scope="module")
def executor():
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        yield executor


def test_an_environment_that_workers_cannot_have_is_named(executor):
    class Local(Catch):
        pass

    with pytest.raises(ValueError, match="^environments cannot be pickled for the workers of an executor: .*Local"):
        find(environments={"mine": Local(4, 3)}, executor=executor)


def test_gymnax_environments_are_for_workers_too():
    task = task_of("gymnax/CartPole-v1")
    again = pickle.loads(pickle.dumps(task))
    assert again.environment.observation_shape == task.environment.observation_shape


@pytest.mark.long
def test_workers_evaluate_what_lanes_do_and_a_search_that_is_stopped_goes_on(executor, whole, tmp_path):
    stop = lambda row: row["evaluated"] > 1
    find(folder=tmp_path, callbacks=[stop], executor=executor)
    found = find(folder=tmp_path, executor=executor)
    records = found.search.records
    assert [x.number for x in records] == list(range(5)) and found.search.counts["evaluated"] == 5
    assert len(found.best) == 2 and found.best[0].scores.shape == (1, 2) and found.rule.origin.cpu_seconds is None
    known = {x.program: x for x in whole[1].search.records}
    same = [(x, known[x.program]) for x in records if x.program in known and known[x.program].number == x.number]
    assert len(same) >= 2
    for one, other in same:
        assert one.scores[0][0] == pytest.approx(other.scores[0][0], abs=1e-5)  # more seeds depend on the order
        assert one.num_trainings != other.num_trainings or one.num_steps == other.num_steps


def test_agents_are_small_where_all_environments_are_toys():
    small, paper = settings_for("losses", ["toy/catch", "toy/grid_world/0"]), EvolutionConfig()
    small.validate()
    assert (small.lane.hidden, small.num_seeds, small.hurdle) == ((32, 32), 3, 0.1)
    assert settings_for("losses", ["toy/catch", "gymnax/CartPole-v1"]) == paper
    assert settings_for("targets", ["toy/catch"]).lane == paper.lane
