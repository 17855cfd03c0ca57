"""What is drawn of a run in one figure."""

import numpy as np
import pytest

from experiments.results.reading import Results
from experiments.runs.learning_curves import drawn_together
from toy_envs.rule_room import MIXED


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["return"], {}),
        (["return", "start_q"], {"start_q": ["start_q"]}),
        (
            ["case_1", "case_2", "start_return", "start_q"],
            {"start_q": ["start_q", "start_return"], "cases": ["case_1", "case_2"]},
        ),
        (
            ["share_main", "share_chain", "share_easy", "share_medium", "share_pre_solved", "share_impossible"],
            {"shares": [f"share_{kind}" for kind in MIXED]},
        ),
    ],
)
def test_expected_returns_and_cases_are_drawn_together_where_a_run_has_them(tmp_path, columns, expected):
    found = drawn_together(Results(tmp_path, {}, {column: np.zeros(2) for column in columns}))
    assert {name: [*labels] for name, (_, labels) in found.items()} == expected
