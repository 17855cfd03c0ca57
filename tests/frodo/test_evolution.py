"""Searches for programs: what is evaluated, what joins the population; on eight devices, too."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from frodo.regimes import evolution
from frodo.regimes.evolution import Evolution, Record
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.regimes.program_lanes import Evaluator, Job, Pool, Task, make_pools
from frodo.regimes.search_settings import EvolutionConfig, TargetLaneConfig
from frodo.states import as_array
from meta.programs.equivalence import SAME, TD, distance_from_td, of_loss, outputs
from meta.programs.evaluation import LISTS, assemble, registers_of
from meta.programs.lanes import LaneConfig, make_lanes
from meta.programs.language import FORMULAS, LOSSES, TARGETS, compact, parse, to_formula
from toy_envs.catch import Catch

CATCH = Task(Catch(5, 5), -1.0, 1.0)
TASKS = [CATCH, CATCH._replace(environment=Catch(4, 3))]
ROOT = Path(__file__).parents[2]
LANE = LaneConfig(hidden=(8,), learning_rate=3e-3, exploration=50, capacity=100, batch_size=8, num_episodes=20)
CONFIG = EvolutionConfig(
    population_size=10,
    tournament_size=4,
    num_lanes=8,
    num_full_lanes=8,
    chunk=20,
    hurdle=0.2,
    stopped_share=0.0,
    num_confirming=0,
    lane=LANE,
)
SHORT = dataclasses.replace(CONFIG, chunk=6)


def search(tasks, config=CONFIG, seed=0, num_programs=25):
    found = Evolution(tasks, config, seed)
    while len(found.records) < num_programs or not found.is_idle:
        found.step(num_programs)
    return found


def stopped_and_resumed(tasks, times, seed=0, num_programs=25):
    """Search, each chunk for `times` chunks by a new search that goes on from the state of the one before."""
    found = Evolution(tasks, CONFIG, seed)
    while len(found.records) < num_programs or not found.is_idle:
        found.step(num_programs)
        if times:
            times -= 1
            lanes, told = found.state()
            found = Evolution(tasks, CONFIG, seed)
            found.restore(jax.device_get(lanes), json.loads(json.dumps(told)))
    return found


def text_of(found):
    return f"{[dataclasses.asdict(record) for record in found.records]} {list(found.members)}"


@pytest.fixture(scope="module")
def found():
    return search(TASKS)


def check_whole(found):
    """Every program is scored once, and sees the other tasks if it takes the hurdle."""
    assert [record.number for record in found.records] == list(range(25))
    cut = 0
    for record in found.records:
        means = [np.mean(scores) for scores in record.scores.values()]
        assert record.score == pytest.approx(sum(means)) and all(len(x) == 1 for x in record.scores.values())
        assert set(record.scores) == ({0, 1} if means[0] >= 0.2 else {0})
        cut += means[0] < 0.2
    assert 0 < cut < 25 and found.counts["cut at the hurdle"] == cut
    assert found.best.score == max(record.score for record in found.records)
    sum_of_parts = ("without gradient", "equal gradients", "evaluated")
    assert found.counts["evaluated"] == 25 == found.num_done
    assert found.counts["proposals"] == sum(found.counts[x] for x in sum_of_parts)


def test_every_program_is_scored_once_and_sees_the_other_tasks_if_it_takes_the_hurdle(found):
    check_whole(found)


def test_the_oldest_members_go(found):
    assert len(found.members) == 10
    assert max(number for _, number in found.members) >= 20


def test_an_equal_program_takes_the_place_of_the_member_that_it_equals_and_is_no_younger():
    found = Evolution(TASKS[:1], CONFIG, 0)
    programs = [parse(LOSSES, f"(Q(s)[a] - {i})**2") for i in range(3)]
    for i, program in enumerate(programs):
        found._remember(Record(i, program, score=float(i)), found._fingerprints_of(program))
        found.members.append((program, i))
    equal = parse(LOSSES, "0.5 * (1 - Q(s)[a])**2 + gamma")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evolution, "random_program", lambda *_: equal)
        assert not found._propose()
        patch.setattr(evolution, "random_program", lambda *_: parse(LOSSES, "r + gamma"))
        assert not found._propose()  # without a gradient it is no member
    assert list(found.members) == [(programs[0], 0), (equal, 1), (programs[2], 2)] and len(found.records) == 3


def gradient_of(program, ends="gamma"):
    return of_loss(compact(LOSSES, program), ends)["gradient"]


def test_records_differ_in_their_gradients_and_equal_programs_get_the_score_of_the_first(found):
    prints = [gradient_of(record.program) for record in found.records]
    distance = np.max(np.abs(np.array(prints)[:, None] - np.array(prints)), axis=-1)
    assert np.min(distance + np.eye(len(prints))) >= SAME
    assert len({number for _, number in found.members}) == len(found.members)
    for program, number in found.members:
        np.testing.assert_allclose(gradient_of(program), prints[number], atol=SAME)


@pytest.mark.parametrize(
    "one,other,is_same",
    [
        ("(Q(s)[a] - r)**2", "0.5 * (r - Q(s)[a])**2 + gamma", True),
        (FORMULAS["dqn_reg"], "y = r + gamma * max(Q_targ(s_next)); (y - Q(s)[a])**2 + tenth(Q(s)[a]) - r", True),
        (FORMULAS["dqn"], FORMULAS["dqn_reg"], False),
        (FORMULAS["dqn"], FORMULAS["double_dqn"], False),
        ("(Q(s)[a] - r)**2", "0 - (Q(s)[a] - r)**2", False),
        ("Q(s)[a] / gamma", "tenth(Q(s)[a] / gamma)", True),
        ("Q(s)[a] / gamma", "Q(s)[a] / (gamma * max(Q(s_next)))", False),  # γ is 0 at ends, where both are very large
        ("Q(s)[a] / gamma", "Q(s)[a]", False),
        ("gamma * Q(s)[a] + normal()", "normal() + gamma * Q(s)[a]", True),
        ("uniform() * Q(s)[a]", "x = uniform(); (0.5 * x) * Q(s)[a]", True),  # the same draw, by another node
        ("max(r + gamma, max(Q(s)) - l2(s, s_next))", "max(l2(s, s_next), max(Q(s)))", False),
        ("exp(variance(Q(s)))", "max(entropy(softmax(Q(s))), exp(variance(Q(s))))", False),
        ("Q(s)[a]", "min(exp(abs(min(Q(s)[a], r))), tenth(r + Q(s)[a]))", False),
        *(
            (f"(Q(s)[a] - (r + gamma * max({q}(s_next))))**2", f"m = max({q}(s_next)); {other}", False)
            for q in ("Q", "Q_targ")
            for other in (
                "(Q(s)[a] - (r + gamma * abs(m)))**2",
                "(Q(s)[a] - (r + gamma * max(m, r)))**2",
                "(Q(s)[a] - (r + gamma * max(m, 0.2)))**2",
                "(Q(s)[a] - (r + gamma * max(m, 0 - 3)))**2",
            )
        ),
    ],
)
def test_programs_are_equal_where_their_gradients_are_but_for_a_positive_factor(one, other, is_same):
    first, second = (gradient_of(parse(LOSSES, x)) for x in (one, other))
    assert (np.max(np.abs(first - second)) < SAME) == is_same


@pytest.mark.parametrize(
    "one,other,same_by",
    [
        ("(Q(s)[a] - r)**2", "m = max(Q_targ(s_next)); m / m * (Q(s)[a] - r)**2", "gamma"),  # m / m is 0 at ends
        ("(Q(s)[a] - r)**2", "gamma / gamma * (Q(s)[a] - r)**2", "values"),
    ],
)
def test_programs_are_told_apart_by_what_they_do_at_ends_as_they_are_told_of_them(one, other, same_by):
    for ends in ("gamma", "values"):
        first, second = (gradient_of(parse(LOSSES, x), ends) for x in (one, other))
        assert (np.max(np.abs(first - second)) < SAME) == (ends == same_by)
    lane = dataclasses.replace(LANE, ends=same_by)
    found = Evolution([CATCH], dataclasses.replace(CONFIG, lane=lane), 0)
    first, second = (found._fingerprints_of(parse(LOSSES, x))["gradient"] for x in (one, other))
    assert np.max(np.abs(first - second)) < SAME


@pytest.mark.parametrize(
    "one,other,is_same",
    [
        ("(Q(s)[a] - r)**2", "(r - Q(s)[a])**2", True),
        (FORMULAS["dqn_reg"], "y = r + gamma * max(Q_targ(s_next)); (y - Q(s)[a])**2 + tenth(Q(s)[a])", True),
        ("(Q(s)[a] - r)**2", "0.5 * (r - Q(s)[a])**2", False),
        ("(Q(s)[a] - r)**2", "(r - Q(s)[a])**2 + gamma", False),
        ("Q(s)[a] - Q(s)[a]", "0 * Q(s)[a]", True),
    ],
)
def test_programs_are_equal_by_their_outputs_as_in_the_paper_where_all_losses_are(one, other, is_same):
    first, second = (outputs(assemble(LOSSES, parse(LOSSES, x), registers_of(LISTS))) for x in (one, other))
    assert np.all(np.isfinite(first)) and (np.max(np.abs(first - second)) < SAME) == is_same


def test_a_search_by_outputs_evaluates_what_its_gradient_alone_would_not_tell_apart():
    found = search(TASKS[:1], dataclasses.replace(CONFIG, equivalence="output"), num_programs=40)
    merged = found.counts["proposals"] - found.counts["without gradient"] - found.counts["evaluated"]
    assert found.counts["equal gradients"] > merged > 0
    assert found.counts["equal outputs"] >= merged  # of those without a gradient, too
    prints = [outputs(assemble(LOSSES, record.program, registers_of(LISTS))) for record in found.records]
    distance = np.max(np.abs(np.array(prints)[:, None] - np.array(prints)), axis=-1)
    assert np.min(distance + np.eye(len(prints))) >= SAME


def begun(path, tasks, config):
    """A search after its first chunk: what it is but for its lanes, and these in a file, a name and an array each."""
    found = Evolution(tasks, config, 0)
    found.step(25)
    lanes, told = found.state()
    leaves = {jax.tree_util.keystr(path): as_array(x) for path, x in jax.tree_util.tree_leaves_with_path(lanes)}
    np.savez(path, **leaves)
    return json.dumps(told)


@pytest.mark.long
@pytest.mark.parametrize("of", ["TASKS, SHORT", "TASKS[:1], SHORT_TARGETS"])
def test_a_search_begins_the_same_on_one_device_and_on_eight(of, tmp_path):
    """The same programs are in the same lanes with the same draws, and learn the same but for rounding.

    How numbers round depends on how many lanes a device has, and a long training is chaotic: scores may differ.
    """
    code = f"""
from tests.frodo.test_evolution import *
print(jax.device_count(), begun({str(tmp_path / "eight.npz")!r}, {of}))
{"check_whole(search(TASKS))" if of == "TASKS, SHORT" else ""}
"""
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"XLA_FLAGS": flags}, cwd=ROOT, capture_output=True, text=True
    )
    told = eval(f"begun({str(tmp_path / 'one.npz')!r}, {of})")
    assert done.returncode == 0 and done.stdout.strip() == f"8 {told}", done.stderr
    one, eight = (np.load(tmp_path / f"{name}.npz") for name in ("one", "eight"))
    assert set(one) == set(eight)
    for name in one:
        close = dict(rtol=1e-3, atol=1e-4) if one[name].dtype == np.float32 else dict(rtol=0, atol=0)
        np.testing.assert_allclose(one[name], eight[name], **close, err_msg=name)


@pytest.mark.long
def test_a_search_that_is_stopped_twice_is_one_that_never_was(found):
    resumed = stopped_and_resumed(TASKS, 2)
    assert text_of(resumed) == text_of(found) and resumed.counts == found.counts


def test_a_search_of_an_earlier_version_or_another_language_does_not_go_on(found):
    _, told = found.state()
    more = Evolution(TASKS, CONFIG, 0)
    with pytest.raises(ValueError, match="^an earlier version began this search, and scored programs in another way"):
        more.restore([], told | {"version": 1})
    with pytest.raises(ValueError, match="^this search had other operators, or in another order: saturated$"):
        more.restore([], told | {"operators": [*told["operators"], "saturated"]})


def test_the_best_of_a_tournament_is_varied(found):
    config = dataclasses.replace(CONFIG, tournament_size=10, mutation_share=1.0)  # of all members
    more = Evolution(TASKS, config, 0)
    lanes, told = found.state()
    more.restore(jax.device_get(lanes), told)
    best = max(found.records[number].score for _, number in found.members if number is not None)
    more.step(num_programs=30)
    assert len(more.records) == 30
    for record in more.records[25:]:
        parent = more.records[record.parent]
        assert parent.score == best
        programs = [program for program, number in found.members if number == parent.number]
        assert min(sum(x != y for x, y in zip(record.program, one, strict=True)) for one in programs) >= 1


@pytest.mark.long
def test_an_evaluation_is_what_its_lane_alone_gives():
    evaluator = Evaluator([CATCH], CONFIG, seed=3)
    programs = [parse(LOSSES, FORMULAS[name]) for name in ("dqn", "double_dqn", "dqn_reg")]
    for i, program in enumerate(programs):
        for seed in (0, 1):
            evaluator.submit(Job(i, 0, seed), program)
    outcomes = {}
    while not evaluator.is_idle:
        outcomes |= dict(evaluator.run())
    assert len(outcomes) == 6
    lanes = make_lanes(CATCH.environment, LANE)
    run = jax.jit(lanes.run, static_argnums=3)
    for job, outcome in outcomes.items():
        instructions = assemble(LOSSES, programs[job.record], registers_of(LISTS))
        lane = run(instructions, 20, lanes.init(jax.random.fold_in(jax.random.key(3), job.seed)), 80)
        assert outcome.score == pytest.approx(float(lane.return_sum + 20) / 40, abs=0.05)
        assert (outcome.num_steps, outcome.is_finite) == (80, True)
    assert outcomes[Job(0, 0, 0)] != outcomes[Job(0, 0, 1)]


def test_programs_of_two_kinds_side_by_side_come_to_what_each_alone_comes_to():
    formulas = {"least": "(Q(s)[a] - r)**2", "dqn": FORMULAS["dqn"]}  # which need one output of a network, and two

    def pool_of(*names):
        pool = make_pools(CATCH, CONFIG)[0]
        for i, name in enumerate(names):
            pool.assign(i, Job(i, 0, 0), parse(LOSSES, formulas[name]), jax.random.key(7))
        for _ in range(2):
            pool.run(20)
        return jax.device_get((pool.lanes.params, pool.lanes.num_steps))

    both, steps = pool_of("least", "dqn")
    assert steps.tolist() == [40, 40, *[0] * 6]
    for i, name in enumerate(formulas):
        alone, _ = pool_of(name)
        close = lambda x, y, i=i: np.testing.assert_allclose(x[i], y[0], rtol=1e-4, atol=1e-6)
        jax.tree.map(close, both, alone)


@pytest.fixture
def keys(monkeypatch):
    """The keys of the jobs that lanes are given, instead of what they would do."""
    found = {}
    monkeypatch.setattr(Pool, "assign", lambda self, i, job, program, key: found.update({job: key_data(key)}))
    monkeypatch.setattr(Evolution, "is_idle", property(lambda self: bool(found)))
    return found


def key_data(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_no_two_programs_of_a_search_have_the_same_luck(keys):
    Evolution([CATCH], CONFIG, 0).step(4)
    assert [job[:3] for job in keys] == [(i, 0, 0) for i in range(4)]
    assert len(set(keys.values())) == 4
    assert key_data(jax.random.fold_in(jax.random.key(0), 0)) not in keys.values()  # nor that of scores below


def test_scores_are_compared_with_the_same_luck(keys):
    programs = [parse(LOSSES, FORMULAS[name]) for name in ("dqn", "double_dqn")]
    search = Evolution([CATCH], CONFIG, 0)
    search._evaluator.run = lambda: search._evaluator.has_room(0) and []
    search.rescore(programs, [0, 1])
    assert {job[:3]: key for job, key in keys.items()} == {
        (i, 0, seed): key_data(jax.random.fold_in(jax.random.key(0), seed)) for i in range(2) for seed in range(2)
    }


def test_an_evaluation_that_cannot_take_the_hurdle_ends_early():
    evaluator = Evaluator([CATCH], CONFIG, seed=0)
    evaluator.submit(Job(0, 0, 0), parse(LOSSES, "Q(s)[a] + 0"))
    while not evaluator.is_idle:
        ended = evaluator.run(0.99)
    ((_, outcome),) = ended
    assert outcome.num_steps < 80 and 0 <= outcome.score < 0.99


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"tournament_size": 11}, r"^tournament_size is 11, expected at most population_size \(10\)$"),
        (
            {"equivalence": "outputs"},
            r"^equivalence is 'outputs', expected one of gradient, output \(did you mean 'output'\?\)$",
        ),
        ({"chunk": 0}, "^chunk is 0, expected an integer of at least 1$"),
        ({"mutation_share": 1.5}, "^mutation_share is 1.5, expected a number from 0 to 1$"),
        ({"num_frozen": 1.5}, "^num_frozen is 1.5, expected an integer of at least 0$"),
        ({"num_frozen": 3}, "^num_frozen is 3, expected 0 to 2, by the nodes of start$"),
        (
            {"language": "target"},
            r"^language is 'target', expected one of losses, targets \(did you mean 'targets'\?\)$",
        ),
        ({"start": "Q(s)[b]"}, "^start: 'b' is no name"),
        ({"start": "dqn", "num_frozen": 8}, "^num_frozen is 8, expected 0 to 7, by the nodes of start$"),
        ({"hurdle": float("nan")}, "^hurdle is nan, expected a number$"),
        (
            {"language": "targets", "start": "", "num_frozen": 0, "num_episodes": (5,)},
            r"^num_episodes is \(5,\), expected none: targets have target_lane.budget$",
        ),
        ({"max_steps": (5, 1.5)}, r"^max_steps is \(5, 1.5\), expected integers of at least 1$"),
        ({"max_steps": (5, 0)}, r"^max_steps is \(5, 0\), expected integers of at least 1$"),
        ({"lane": LaneConfig(capacity=0)}, "^lane.capacity is 0, expected an integer of at least 1$"),
        ({"lane": LaneConfig(ends="value")}, "^lane.ends is 'value', expected one of gamma, values .did you mean"),
        ({"lane": LaneConfig(hidden=(0,))}, r"^lane.hidden is \(0,\), expected a tuple of positive layer sizes$"),
        (
            {"target_lane": TargetLaneConfig(budget=255)},
            "^target_lane.budget is 255, expected at least the 256 steps of an update$",
        ),
    ],
)
def test_bad_settings_are_refused_in_a_line(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **settings).validate()


def test_a_search_from_a_known_program_begins_with_it():
    config = dataclasses.replace(CONFIG, start="dqn", num_frozen=0)
    assert config.parse_start() == parse(LOSSES, FORMULAS["dqn"])
    found = Evolution([CATCH], config, 0)
    found.step(3)
    assert all(record.program[:7] == parse(LOSSES, FORMULAS["dqn"]) for record in found.records)


def test_the_first_scores_come_early_as_a_search_begins_with_few_programs_and_idle_lanes_take_no_time():
    found = Evolution([CATCH], CONFIG, 0)
    for chunk in range(1, 4):  # of 5 episodes, of 20
        found.step(25)
        lanes = found.lanes[0]
        steps = np.concatenate([pool.num_steps for pool in lanes])
        assert sorted(steps) == [0] * 12 + [20 * chunk] * 4 and found.num_done == pytest.approx(chunk)
    under_way = []
    while found.counts["evaluated"] < 8:
        under_way.append(len(found.records) - found.counts["evaluated"])
        found.step(25)
        assert len(found.records) <= 4 + 2 * found.counts["evaluated"]
    assert under_way[0] == 4 and max(under_way) > 4


@pytest.mark.long
def test_programs_are_not_proposed_long_before_they_can_be_trained():
    # From nothing, more than half of the programs need one of the few lanes for all programs.
    config = dataclasses.replace(CONFIG, start="", num_frozen=0, num_full_lanes=2)
    found = Evolution([CATCH], config, 0)
    for _ in range(12):
        found.step(10_000)
        scored = sum(record.score is not None for record in found.records)
        assert len(found.records) - scored <= 8 + 2 + 2
    assert scored > 10


@pytest.mark.long
def test_environments_may_have_lengths_of_their_own():
    config = dataclasses.replace(CONFIG, num_episodes=(3, 5), max_steps=(100, 13))
    evaluator = Evaluator(TASKS, config, seed=0)
    for task in range(2):
        evaluator.submit(Job(0, task, 0), parse(LOSSES, FORMULAS["dqn"]))
    steps = {}
    while not evaluator.is_idle:
        steps |= {job.task: outcome.num_steps for job, outcome in evaluator.run()}
    assert steps == {0: 3 * 4, 1: 13}  # of 5 episodes of 3 steps the last one is not complete
    with pytest.raises(
        ValueError, match=r"^num_episodes is \(3, 5\), expected a number for each of 1 environments, or"
    ):
        Evaluator([CATCH], config, seed=0)


def test_a_search_that_meets_nothing_new_any_more_says_so(monkeypatch):
    monkeypatch.setattr(evolution, "MAX_KNOWN", 50)
    start = "Q(s)[a]" + " + r + gamma" * 9  # has no room for anything else
    found = Evolution([CATCH], dataclasses.replace(CONFIG, start=start, mutation_share=0.0), 0)
    with pytest.raises(
        evolution.Exhausted, match="^50 programs in a row were equal to one of the 1 before, or without a gradi"
    ):
        found.step(2)


@pytest.mark.long
@pytest.mark.parametrize("tasks", [TASKS, [CATCH]], ids=["two environments", "one"])
def test_the_first_seed_takes_the_hurdle_for_the_others(tasks):
    found = search(tasks, dataclasses.replace(CONFIG, num_seeds=3))
    cut = [record for record in found.records if sum(map(len, record.scores.values())) == 1]
    whole = [record for record in found.records if record not in cut]
    assert cut and whole and len(cut) == found.counts["cut at the hurdle"]
    assert all(record.score == record.scores[0][0] < 0.2 for record in cut)
    for record in whole:
        assert [len(scores) for scores in record.scores.values()] == [3] * len(tasks)
        assert record.scores[0][0] >= 0.2 and record.score == sum(np.median(x) for x in record.scores.values())


def test_a_first_training_whose_score_at_half_is_low_among_earlier_ones_is_stopped_there(monkeypatch):
    monkeypatch.setattr(evolution, "MIN_HALVES", 6)
    config = dataclasses.replace(CONFIG, stopped_share=0.75, num_seeds=2, hurdle=-1.0)
    found = search([CATCH], config, num_programs=30)
    stopped = [record for record in found.records if record.num_steps == 40]
    assert len(stopped) == found.counts["stopped at half"] and 5 <= len(stopped) <= 20
    assert all(record.score == record.half == record.scores[0][0] for record in stopped)
    whole = [record for record in found.records if record not in stopped]
    assert {record.num_steps for record in whole} == {160} and found.counts["cut at the hurdle"] == 0
    assert np.mean([record.half for record in whole]) > np.mean([record.half for record in stopped])
    alone = Evaluator([CATCH], CONFIG, 0)  # which stops none: what went on is the same
    for record in whole[:3]:
        alone.submit(Job(record.number, 0, 1, record.number + 1), record.program)
    while not alone.is_idle:
        for job, outcome in alone.run():
            assert outcome.score == pytest.approx(found.records[job.record].scores[0][1], abs=0.05)


def test_a_search_goes_on_with_what_it_knows_of_halves(found):
    one = Evolution([CATCH], dataclasses.replace(CONFIG, stopped_share=0.5), 0)
    for _ in range(2):
        one.step(10)  # lanes are at half, of which no outcome tells yet
    halves = one._evaluator.pools[0][0].halves
    assert np.sum(np.isfinite(halves)) >= 2
    lanes, told = one.state()
    other = Evolution([CATCH], dataclasses.replace(CONFIG, stopped_share=0.5), 0)
    other.restore(jax.device_get(lanes), json.loads(json.dumps(told)))
    np.testing.assert_array_equal(other._evaluator.pools[0][0].halves, halves)


def test_a_score_near_the_best_counts_when_more_seeds_confirm_it(monkeypatch):
    monkeypatch.setattr(evolution, "NEAR", 0.5)
    found = search([CATCH], dataclasses.replace(CONFIG, num_confirming=4), num_programs=20)
    confirmed = [record for record in found.records if len(record.scores[0]) == 5]
    others = [record for record in found.records if len(record.scores[0]) == 1]
    assert len(confirmed) + len(others) == 20 and len(confirmed) == found.counts["confirmed"] and len(others) >= 4
    assert all(record.score == np.median(record.scores[0]) for record in found.records)
    assert any(record.score < record.scores[0][0] for record in confirmed)
    tasks = search(TASKS, dataclasses.replace(CONFIG, num_confirming=1, hurdle=-1.0), num_programs=4)
    numbers = [{task: len(scores) for task, scores in record.scores.items()} for record in tasks.records]
    assert {0: 2, 1: 2} in numbers and all(one in ({0: 1, 1: 1}, {0: 2, 1: 2}) for one in numbers)


def test_no_more_programs_are_done_than_there_are_while_some_are_confirmed(monkeypatch):
    monkeypatch.setattr(evolution, "NEAR", 0.5)
    found = Evolution([CATCH], dataclasses.replace(CONFIG, num_confirming=8), 0)
    num_done = 0.0
    while found.counts["evaluated"] < 6:
        found.step(6)
        assert max(num_done - 1e-9, found.counts["evaluated"]) <= found.num_done <= len(found.records)
        num_done = found.num_done
    assert found.counts["confirmed"] > 0 and found.num_done == 6


def test_only_the_first_seed_ends_early():
    evaluator = Evaluator([CATCH], dataclasses.replace(CONFIG, num_seeds=2), seed=0)
    for seed in range(2):
        evaluator.submit(Job(0, 0, seed), parse(LOSSES, "Q(s)[a] + 0"))
    steps = {}
    while not evaluator.is_idle:
        steps |= {job.seed: outcome.num_steps for job, outcome in evaluator.run(0.99)}
    assert steps[0] < steps[1] == 80  # to its end


@pytest.mark.parametrize("factor", ["normal()", "uniform()", "(normal() - normal())"])
def test_a_loss_with_a_drawn_factor_is_another_program(factor):
    known = f"y = r + gamma * max(Q_targ(s_next)); {factor} * (Q(s)[a] - y)**2"
    program = parse(LOSSES, known)
    own, other = (gradient_of(x) for x in (program, parse(LOSSES, TD[0])))
    assert np.max(np.abs(own - other)) > 100 * SAME and distance_from_td(program) > 0.1


@pytest.mark.parametrize("task", [0, 1])
def test_a_program_whose_agents_are_not_finite_scores_0_and_is_counted(monkeypatch, task):
    run = Evaluator.run

    def spoilt(self, *least):
        return [
            (job, x._replace(score=0.0, is_finite=False) if job[:3] == (0, task, 0) else x)
            for job, x in run(self, *least)
        ]

    monkeypatch.setattr(Evaluator, "run", spoilt)
    found = search(TASKS, dataclasses.replace(CONFIG, hurdle=-1.0), num_programs=4)
    first, *others = found.records
    assert first.score == 0 and not first.is_finite and set(first.scores) == ({0} if task == 0 else {0, 1})
    assert found.counts["not finite"] == 1 and all(record.is_finite for record in others)


def test_finalists_are_scored_by_the_lanes_of_the_search(found):
    more = Evolution(TASKS, CONFIG, 0)
    lanes, told = found.state()
    more.restore(jax.device_get(lanes), told)
    programs = [parse(LOSSES, FORMULAS[name]) for name in ("dqn", "dqn_reg")]
    chunks = []
    scores, num_steps = more.rescore(programs, [5, 6], chunks.append)
    assert scores.shape == (2, 2, 2) and np.all(np.isfinite(scores)) and len(chunks) >= 4 and chunks[-1] == 8
    evaluator = Evaluator(TASKS, CONFIG, 0)
    evaluator.submit(Job(0, 1, 6), programs[0])
    while not evaluator.is_idle:
        ended = evaluator.run()
    assert scores[0, 1, 1] == ended[0][1].score and num_steps > 4 * ended[0][1].num_steps


TARGET_CONFIG = EvolutionConfig(
    language="targets",
    start="",
    num_frozen=0,
    population_size=8,
    tournament_size=3,
    num_lanes=4,
    chunk=512,
    num_confirming=0,
    target_lane=TargetLaneConfig(hidden=(8,), learning_rate=0.1, batch_size=4, unroll=4, budget=1500),
)
SHORT_TARGETS = dataclasses.replace(TARGET_CONFIG, num_lanes=8, chunk=64)


def test_targets_are_searched_for_too_and_programs_as_data_learn_as_their_formulas_do():
    found = search([CATCH], TARGET_CONFIG, num_programs=10)
    assert len(found.records) == 10 and len({record.score for record in found.records}) > 3
    assert all(
        record.num_steps == 1536 for record in found.records
    )  # three chunks; what is past the budget is not counted
    for record in found.records[:3]:
        agent = TARGET_CONFIG.target_lane.agent(to_formula(TARGETS, record.program))
        learner = build_learner(agent, CATCH.environment.num_actions, is_frozen=True)
        program = make_online_program(learner, CATCH.environment)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), record.number + 1)  # own draws
        _, metrics, _ = jax.jit(program.run, static_argnums=1)(program.init(key), 93)
        score = (metrics["return_sum"].sum() / metrics["episodes"].sum() + 1) / 2
        assert record.score == pytest.approx(float(score), abs=1e-5)


def test_a_search_for_targets_goes_on_from_its_state():
    whole = search([CATCH], TARGET_CONFIG, num_programs=6)
    part = Evolution([CATCH], TARGET_CONFIG, 0)
    part.step(6)
    part.step(6)
    lanes, told = part.state()
    resumed = Evolution([CATCH], TARGET_CONFIG, 0)
    resumed.restore(jax.device_get(lanes), told)
    while len(resumed.records) < 6 or not resumed.is_idle:
        resumed.step(6)
    assert text_of(resumed) == text_of(whole)
