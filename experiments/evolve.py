"""Evolve a loss: programs are varied and selected by how well fresh agents learn by them (Co-Reyes et al. 2021).

    python -m experiments.evolve --steps=2000
    python -m experiments.evolve --envs=gymnax/CartPole-v1,toy/catch --config.start=dqn --config.num_frozen=0
    python -m experiments.evolve --language=targets --envs=toy/catch/5x5,toy/grid_world/0

--steps are programs that are evaluated, --language says of what: losses of value-based agents, or targets of
actor-critics. The first environment is the hurdle. Writes one run folder, results/evolve/<language>/.
metrics.csv has one row per chunk of steps, with counts and the best score so far; programs.csv all that were evaluated,
with formula, parent and scores; finalists.csv the best ones again, with fresh seeds; rule.npz is the best of these,
for agents as those in the first environment; summary.json its scores, and of losses the program that is nearest to δ².
best.png is the best score over programs, program.png the program of rule.npz as a graph, and family.png shows all
programs that were evaluated, and the ancestors of the best one.

Returns are normalised by the bounds of the paper's code, elsewhere by random and by best play.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments.results import plots, program_plots, reading
from experiments.results.scores import parse_tasks, task_of
from experiments.runs import command_line
from experiments.runs.errors import RunError, UsageError, caused_by
from experiments.runs.folders import of_process
from experiments.runs.options import RunOptions
from experiments.runs.processes import define_process_flags, join
from experiments.runs.run import Run
from frodo import devices, files, presets
from frodo.config import AgentConfig
from frodo.evolution import KINDS, MAX_SEEDS, Evolution, EvolutionConfig, Exhausted, Record
from frodo.logs import Progress, note, table
from frodo.rule_files import Origin, Rule
from meta.optimizers import adam
from meta.program_evaluation import distance_from_td
from meta.program_language import LOSSES, to_formula

SEEDS_OF_FINALISTS = 1000  # the first of their seeds: those of `experiments.score` are other ones


@dataclasses.dataclass
class EvolveConfig(EvolutionConfig):
    """A search, where its agents live, and how its best programs are told apart."""

    envs: tuple[str, ...] = ()
    num_finalists: int = 10
    num_final_seeds: int = 5

    def validate(self) -> None:
        super().validate()
        for name in ("num_finalists", "num_final_seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected an integer of at least 1")
        if self.num_final_seeds > (most := MAX_SEEDS - SEEDS_OF_FINALISTS):
            raise ValueError(f"num_final_seeds is {self.num_final_seeds}, expected at most {most}")


def configure(language: str, envs: tuple[str, ...]) -> EvolveConfig:
    """Return the settings of a search: losses begin with Q(s)[a], targets with nothing."""
    config = EvolveConfig(language=language, envs=envs)
    return config if language == "losses" else dataclasses.replace(config, start="", num_frozen=0, chunk=25_600)


def run(config: EvolveConfig, options: RunOptions) -> dict[str, Any]:
    """Search, and write what was found into the run folder; returns the summary."""
    config.validate()
    if len(options.seeds) != 1:
        raise UsageError(f"--seeds={','.join(map(str, options.seeds))}: a search has one seed")
    tasks = [task_of(env) for env in config.envs]
    options = of_process(options, "evolve", config.language)
    search = Evolution(tasks, config, options.seeds[0])
    why = "a search ends with its finalists"
    with Run(options, experiment="evolve", name=config.language, config=config, why_as_long=why) as run:
        lanes, start = devices.scatter(*run.restore(devices.gather(search.lanes)), search.lanes)
        if start:
            with caused_by("--resume"):
                search.restore(lanes, json.loads(devices.tell(json.dumps(run.told))))
        end = _search(run, config.envs, search, start)
        best = sorted((x for x in search.records if x.score is not None), key=lambda x: (-(x.score or 0), x.number))
        finalists = best[: config.num_finalists]
        seeds = range(SEEDS_OF_FINALISTS, SEEDS_OF_FINALISTS + config.num_final_seeds)
        note(f"{len(finalists)} finalists, {len(seeds)} fresh seeds")
        per_cpu_hour = search.counts["evaluated"] / run.cpu_seconds() * 3600
        trainings = Progress(len(finalists) * len(tasks) * len(seeds), unit="trainings")

        def on_chunk(num: int) -> None:
            trainings.update(num)
            _stop_if_interrupted(run, search, end)

        again, num_steps = search.rescore([record.program for record in finalists], seeds, on_chunk)
        write_finalists(run.folder / "finalists.csv", config, finalists, seeds, again)
        scores_again = np.median(again, axis=-1)
        first = int(np.argmax(np.sum(scores_again, axis=-1)))
        winner = finalists[first]
        num_steps += sum(record.num_steps for record in search.records)
        rule_of(config, winner, num_steps, run.cpu_seconds()).save(run.folder / "rule.npz")
        language = config.kind.language
        summary = {
            "formula": to_formula(language, winner.program),
            "score": winner.score,
            **{f"score/{env}": float(scores_again[first, i]) for i, env in enumerate(config.envs)},
            **search.counts,
            "programs_per_cpu_hour": per_cpu_hour,
            **(nearest_to_td(search) if config.language == "losses" else {}),
        }
        run.finish(summary)
    draw(run.folder)
    program_plots.draw_program(run.folder / "program.png", language, winner.program)
    scores = [np.nan if x.score is None else x.score for x in search.records]
    parents = [x.parent for x in search.records]
    programs = [x.program for x in search.records]
    program_plots.draw_family(run.folder / "family.png", language, programs, scores, parents, winner.number)
    return summary | {"rule": str(run.folder / "rule.npz"), "figure": str(run.folder / "best.png")}


def nearest_to_td(search: Evolution) -> dict[str, Any]:
    """Return the program whose gradient's direction is nearest to δ²'s, of several the best: how far, and its score."""
    found = {x.number: round(distance_from_td(x.program, search.config.lane.ends), 3) for x in search.records}
    nearest = min(search.records, key=lambda x: (found[x.number], -(x.score or 0)))
    formula = to_formula(LOSSES, nearest.program)
    return {"nearest_to_td": formula, "distance_from_td": found[nearest.number], "score_of_nearest": nearest.score}


def _search(run: Run, envs: Sequence[str], search: Evolution, chunk: int) -> int:
    """Go on to the end of the search; `chunk` chunks of steps are done. Returns how many are then."""
    num_programs = run.options.steps
    progress = Progress(num_programs, search.counts["evaluated"], "programs")
    while len(search.records) < num_programs or not search.is_idle:
        try:
            search.step(num_programs)
        except Exhausted as error:
            if not search.records:
                raise RunError(str(error)) from None
            note(f"{error}; the finalists are of what was found")
            num_programs = len(search.records)
            search.step(num_programs)  # no proposals: lanes go on to their ends
        chunk += 1
        best = search.best
        env_steps = sum(record.num_steps for record in search.records)
        first = {"seed": run.options.seeds[0], "update": chunk, "env_steps": env_steps, "env_frames": env_steps}
        score = np.nan if best is None else best.score
        run.log([first | {"best_score": score} | run.cost() | search.all_counts])
        progress.update(search.counts["evaluated"], "" if best is None else _text(run, search, best))
        is_end = search.is_idle and len(search.records) >= num_programs
        is_due, interrupted = devices.agree(run.is_due() or is_end, run.interrupted)
        if is_due or interrupted:
            lanes, told = search.state()
            write_programs(run.folder / "programs.csv", envs, search)
            whole = devices.gather(lanes)
            run.save(whole, chunk, told)
            run.stop_if_interrupted(whole, chunk, interrupted)
    return chunk


def _text(run: Run, search: Evolution, best: Record) -> str:
    """Say how fast the search is, how much it met before, and what is best."""
    counts, formula = search.counts, to_formula(search.config.kind.language, best.program)
    known = counts["proposals"] - len(search.records)
    return (
        f"{counts['evaluated'] / run.cpu_seconds() * 3600:,.0f} an hour of CPU time, "
        f"{known / counts['proposals']:.0%} nothing new, "
        f"{counts['cut at the hurdle'] / max(1, counts['evaluated']):.0%} cut, best {best.score:.3f}: {formula}"
    )


def _stop_if_interrupted(run: Run, search: Evolution, end: int) -> None:
    """Stop after Ctrl-C, while finalists are scored; the checkpoint of the search's end is there."""
    run.stop_if_interrupted(search.lanes, end, *devices.agree(run.interrupted))


def write_programs(path: Path, envs: Sequence[str], search: Evolution) -> None:
    """Write all records, in the order of their proposals; those that did not see an environment have no score there."""
    language = search.config.kind.language
    rows = [
        {
            "number": x.number,
            "parent": x.parent,
            "score": x.score,
            "env_steps": x.num_steps,
            "is_finite": x.is_finite,
            **{
                f"score/{env}": float(np.median(x.scores[i])) if x.scores.get(i) else None for i, env in enumerate(envs)
            },
            "formula": to_formula(language, x.program),
        }
        for x in search.records
    ]
    files.write_csv(path, rows)


def write_finalists(
    path: Path, config: EvolveConfig, finalists: list[Record], seeds: Sequence[int], again: np.ndarray
) -> None:
    """Write scores [finalists, tasks, seeds] with fresh seeds, a row for each finalist, environment and seed."""
    rows = [
        {"number": record.number, "env": env, "seed": seed, "score": again[i, j, k]}
        | {"formula": to_formula(config.kind.language, record.program)}
        for i, record in enumerate(finalists)
        for j, env in enumerate(config.envs)
        for k, seed in enumerate(seeds)
    ]
    files.write_csv(path, rows)


def rule_of(config: EvolveConfig, record: Record, num_steps: int, cpu_seconds: float) -> Rule:
    """Return a program as a rule, with the agents of the search, and what the search cost, its finalists included."""
    formula = to_formula(config.kind.language, record.program)
    if config.language == "targets":
        found = Rule("target_program", config.target_lane.agent(formula))
    else:
        found = Rule("program", _dqn(config, formula))
    meta_params = found.update_rule.random_meta_params(jax.random.key(0), 2)
    origin = Origin(config.envs, num_steps, cpu_seconds)
    return dataclasses.replace(found, meta_params=meta_params, origin=origin)


def _dqn(config: EvolveConfig, formula: str) -> AgentConfig:
    lane = config.in_tasks(len(config.envs))[0].lane
    agent = presets.for_rule(config.envs[0], "program").agent_only()
    rule = agent.rule.replace(
        formula=formula,
        discount=lane.discount,
        ends=lane.ends,
        epsilon=lane.epsilon,
        target_period=lane.target_period,
    )
    return agent.replace(
        rule=rule,
        network=dataclasses.replace(agent.network, hidden=lane.hidden),
        optimizer=adam(lane.learning_rate),
        exploration=lane.exploration,
        replay=dataclasses.replace(agent.replay, capacity=lane.capacity, batch_size=lane.batch_size),
    )


def draw(folder: Path) -> None:
    """Draw the best score so far over programs that were evaluated."""
    results = reading.read(folder)
    best = reading.curve(results, "best_score")._replace(label="best of the search", x=results.columns["evaluated"])
    plots.curves(
        folder / "best.png",
        [best],
        title=f"Evolution of {results.config['name']}",
        xlabel="programs evaluated",
        ylabel="best sum of normalised returns",
    )


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    join()
    summary = run(*command_line.parse_options(argv, configure(FLAGS.language, parse_tasks(FLAGS.envs))))
    if not jax.process_index():
        print(table([{"": name, "value": value} for name, value in summary.items()]))


if __name__ == "__main__":
    flags.DEFINE_string("envs", "gymnax/CartPole-v1", "Environments in JAX; the first is the hurdle.")
    flags.DEFINE_enum("language", "losses", list(KINDS), "What programs compute.")
    define_process_flags()
    command_line.define_flags(EvolveConfig(), seeds="0", steps="2000", without=("envs", "language"))
    command_line.start(main)
