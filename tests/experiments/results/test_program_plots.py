"""Pictures of programs: every node is below its arguments, and the family is that of the best program."""

import matplotlib.image
import pytest

from experiments.results import program_plots
from meta.programs.language import FORMULAS, LOSSES, compact, parse


@pytest.mark.parametrize("name", list(FORMULAS))
def test_arguments_are_in_earlier_layers_and_nothing_is_twice(name):
    program = compact(LOSSES, parse(LOSSES, FORMULAS[name]))
    layers = program_plots.layers_of(LOSSES, program)
    layer_of = {i: number for number, layer in enumerate(layers) for i in layer}
    first = len(LOSSES.inputs)
    assert sum(map(len, layers)) == len(layer_of)
    assert set(range(first, first + len(program))) <= set(layer_of)
    for i, node in enumerate(program, start=first):
        assert all(layer_of[x] < layer_of[i] for x in node.arguments)
        assert not node.arguments or layer_of[i] == 1 + max(layer_of[x] for x in node.arguments)
    assert layers[-1] == [first + len(program) - 1]


def test_pictures_are_written(tmp_path, monkeypatch):
    texts = []
    shorten = program_plots.textwrap.shorten
    monkeypatch.setattr(
        program_plots.textwrap, "shorten", lambda text, width: texts.append(text) or shorten(text, width)
    )
    program_plots.draw_program(tmp_path / "dqn.png", LOSSES, parse(LOSSES, FORMULAS["dqn_clipped"]))
    programs = [parse(LOSSES, f"(Q(s)[a] - r)**2 + {i} * Q(s)[a]") for i in range(9)]
    parents = [None, 0, 1, None, 2, 4, 5, 6, 7]
    program_plots.draw_family(tmp_path / "family.png", LOSSES, programs, [*range(8), 7.5], parents, winner=8)
    for name in ("dqn", "family"):
        assert matplotlib.image.imread(tmp_path / f"{name}.png").std() > 0.01
    assert [text.partition(":")[0] for text in texts] == ["0", "4", "5", "6", "7", "8"]
