"""What cannot be compared is refused."""

import pytest

from experiments.comparison import methods
from experiments.runs.errors import UsageError
from tests.experiments.comparison.small_comparison import ENVS, one, scalar_rule


def test_what_cannot_be_compared_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(UsageError, match="no scores of random and of best play are known for toy/grid_world/1"):
        methods.check(one(envs=("toy/grid_world/1",)), allow_seen=False)
    seen = one(scalar_rule=scalar_rule(tmp_path / "rule.npz", (ENVS[1], "toy/catch")))
    with pytest.raises(UsageError, match="rule.npz was discovered in toy/grid_world/46, which .* say --allow_seen"):
        methods.check(seen, allow_seen=False)
    assert methods.check(seen, allow_seen=True) == {"scalar_frozen": [ENVS[1]]}
    for known, env in (
        ("toy/catch", "toy/catch/6x11"),
        ("toy/grid_world/046", "toy/grid_world/46"),
        ("bsuite/catch/1", "bsuite/catch/0"),
        ("toy/catch/10x5", "bsuite/catch/0"),
    ):
        with pytest.raises(UsageError, match=f"was discovered in {env}"):
            methods.refuse_seen(one(envs=(env,)), "rule", (known,), allow_seen=False)
    other = one(disco_rule=scalar_rule(tmp_path / "other.npz", ("toy/catch",)))
    with pytest.raises(UsageError, match="other.npz holds a rule named frodo, expected disco"):
        methods.check(other, allow_seen=False)
    with pytest.raises(UsageError, match="toy/catch/6x11, which is toy/catch is to be compared twice"):
        methods.check_names(one(envs=("toy/catch", "toy/catch/6x11")))
    with pytest.raises(UsageError, match="impala is to be compared twice"):
        methods.check_names(one(methods=("impala", "impala")))
    published = one(envs=("atari/Pong",), methods=("disco103_frozen",))
    with pytest.raises(UsageError, match="disco103 was discovered in atari/Pong"):
        methods.check(published, allow_seen=False)
