"""Pictures of programs and of the search that found them."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results.plots import COLOURS, new_figure
from meta.programs.language import OPERATORS, Language, Program, compact, to_formula

SHOWN = 6  # formulas under the picture of a family


def layers_of(language: Language, program: Program) -> list[list[int]]:
    """Return inputs and nodes by layers: each has all arguments in earlier ones, and is as early as can be.

    In a layer they are sorted by where their arguments are. Inputs that are not used are left out.
    """
    first = len(language.inputs)
    used = {x for node in program for x in node.arguments}
    depth = {i: 0 for i in range(first) if i in used}
    for i, node in enumerate(program, start=first):
        depth[i] = 1 + max((depth[x] for x in node.arguments), default=-1)
    arguments_of = lambda i: program[i - first].arguments if i >= first else ()
    layers = [[i for i in depth if depth[i] == layer] for layer in range(max(depth.values()) + 1)]
    place: dict[int, float] = {}
    for layer in layers:
        centres = {i: np.mean([place[x] for x in arguments_of(i)] or [0.5]) for i in layer}
        layer.sort(key=lambda i: centres[i])
        place |= {i: (number + 0.5) / len(layer) for number, i in enumerate(layer)}
    return layers


def draw_program(path: Path, language: Language, program: Program) -> None:
    """Write a PNG of a program as a graph: what it is given at the top, the result at the bottom."""
    program = compact(language, program)
    layers = layers_of(language, program)
    places = {i: ((n + 0.5) / len(layer), -y) for y, layer in enumerate(layers) for n, i in enumerate(layer)}
    with new_figure((max(4.5, 1.7 * max(map(len, layers))), 0.9 * len(layers) + 0.9), path) as figure:
        axes = figure.subplots()
        first = len(language.inputs)
        for i, node in enumerate(program, start=first):
            for x in node.arguments:
                is_long = places[x][1] - places[i][1] > 1  # it would run through what is between
                bend = f"arc3,rad={0.2 * is_long}"
                arrow = dict(arrowstyle="-|>", color="0.55", shrinkA=12, shrinkB=12, connectionstyle=bend)
                axes.annotate("", places[i], places[x], arrowprops=arrow)
        for i, place in places.items():
            is_input = i < first
            text = list(language.inputs)[i] if is_input else _label(program[i - first])
            colour = COLOURS[2] if is_input else COLOURS[1] if i == first + len(program) - 1 else COLOURS[0]
            box = dict(boxstyle="round", facecolor="white", edgecolor=colour, linewidth=1.6)
            axes.text(*place, text, ha="center", va="center", bbox=box)
        axes.set(xlim=(0, 1), ylim=(0.5 - len(layers), 0.5))
        axes.set_axis_off()
        figure.suptitle(textwrap.fill(to_formula(language, program), 70), fontsize=10)


def _label(node) -> str:
    operator = OPERATORS[node.operator]
    return operator.formula.format(*["·"] * len(operator.arguments)) or f"{node.value:g}"


def draw_family(
    path: Path,
    language: Language,
    programs: Sequence[Program],
    scores: Sequence[float],
    parents: Sequence[int | None],
    winner: int,
) -> None:
    """Write a PNG of all programs that a search evaluated, and of the winner's ancestors.

    Args:
      programs, scores, parents: by number; a score may be NaN, a parent None.
      winner: its number.
    """
    line = [winner]
    while (parent := parents[line[-1]]) is not None:
        line.append(parent)
    line.reverse()
    with new_figure((8, 5.5 + 0.3 * min(SHOWN, len(line))), path) as figure:
        axes: Any = figure.subplots()
        axes.plot(np.arange(len(scores)), scores, ".", color="0.75", markersize=3, label="evaluated programs")
        axes.plot(line, np.asarray(scores)[line], "o-", color=COLOURS[1], label="the winner and its ancestors")
        axes.set_title("Programs of the search", loc="left")
        axes.set(xlabel="number of the program", ylabel="sum of normalised returns")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, ncols=2)
        shown = line if len(line) <= SHOWN else [line[0], *line[1 - SHOWN :]]
        texts = [textwrap.shorten(f"{i}: {to_formula(language, programs[i])}", 100) for i in shown]
        figure.supxlabel("\n".join(texts), fontsize=8, x=0.02, ha="left", family="monospace")
