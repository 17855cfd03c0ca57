"""What the samples of benchmarks come to: medians, ratios of two revisions, and tables of both in Markdown."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.benchmarks.cases import Benchmark
from experiments.benchmarks.processes import Sample

THIS, OTHER = "this", "other"  # the revisions
STATES = ("cold", "cached")


def result(benchmark: Benchmark, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    """Return what is known of a benchmark.

    Args:
      samples: of each revision, in the order of time: the first one is cold, the others are cached.
    Returns:
      what it is, its `samples` and `medians` by revision and state, and of two revisions `ratios` by state.
    """
    by_state = {revision: {"cold": taken[:1], "cached": taken[1:]} for revision, taken in samples.items()}
    found: dict[str, Any] = {
        "description": benchmark.description,
        "command": benchmark.command,
        "unit": benchmark.unit.name,
        "samples": by_state,
        "medians": {
            revision: {state: medians(taken) for state, taken in states.items()}
            for revision, states in by_state.items()
        },
    }
    if len(samples) == 2:
        found["ratios"] = {state: ratios(by_state[THIS][state], by_state[OTHER][state]) for state in STATES}
    return found


def medians(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the median of each number."""
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}


def ratios(samples: Sequence[Sample], others: Sequence[Sample]) -> dict[str, list[float]]:
    """Return median, smallest and largest of each number's ratios between samples that were taken in turns."""
    found = {}
    for name in samples[0]:
        paired = [one[name] / other[name] for one, other in zip(samples, others, strict=True)]
        found[name] = [statistics.median(paired), min(paired), max(paired)]
    return found


def tables(results: Mapping[str, Any]) -> str:
    """Return a table of this revision's medians, and one of ratios where there are any, each with a line above it.

    Args:
      results: what `run` of experiments.benchmark returns, with `processor`, `num_cores` and `revisions`.
    """
    clock = "CPU" if " cpu " in results["device"] else "wall"
    cores = f"{results['num_cores']} core{'s' if results['num_cores'] > 1 else ''} of {results['processor']}"
    where = cores if clock == "CPU" else f"{results['device']}, {cores}"
    commits = {
        key: re.sub("^([0-9a-f]{7})[0-9a-f]+", r"\1", one or "unknown") for key, one in results["revisions"].items()
    }
    benchmarks = results["benchmarks"].items()
    here = [(name, one["unit"], one["medians"][THIS]) for name, one in benchmarks if THIS in one["medians"]]
    compared = [(name, one["unit"], one["ratios"]) for name, one in benchmarks if "ratios" in one]
    text = [f"Medians, in {clock} time, of {commits[THIS]} with JAX {results['versions']['jax']} on {where}:"]
    text += ["", *_table(clock, here, _number)]
    if compared:
        text += ["", f"{commits[THIS]} over {commits[OTHER]}, medians of the ratios (smallest to largest):"]
        text += ["", *_table(clock, compared, _ratio)]
    return "\n".join(text)


def _table(clock: str, rows: Sequence[tuple[str, str, Mapping[str, Any]]], text_of: Callable[[Any], str]) -> list[str]:
    """Return the lines of a table: a row has name, unit, and what `text_of` shows by state and number."""
    columns = {
        f"{clock.lower()}_ms_per_unit": "ms per unit",
        f"{clock.lower()}_s_to_first_row": "s to first row",
        f"{clock.lower()}_s_of_start_and_end": "s of start and end",
        "peak_memory_mb": "peak MB",
    }
    cells = [["benchmark", "unit", *(cell for title in columns.values() for cell in (f"{title}: cold", "cached"))]]
    for name, unit, numbers in rows:
        cells.append([f"`{name}`", unit, *(text_of(numbers[state][key]) for key in columns for state in STATES)])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    rule = ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    aligned = [
        [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in cells
    ]
    return [f"| {' | '.join(line)} |" for line in [aligned[0], rule, *aligned[1:]]]


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def _ratio(values: Sequence[float]) -> str:
    median, smallest, largest = (f"{value:.2f}" for value in values)
    return median if smallest == largest else f"{median} ({smallest} to {largest})"
