"""What cannot be compared is refused."""

import pytest

from experiments.comparison import methods
from experiments.runs.errors import UsageError
from frodo.rule_files import load_rule
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
    with pytest.raises(UsageError, match="--scalar_rule: nothing is no rule: expected one of .*catch_and_grids"):
        methods.check(one(scalar_rule="nothing"), allow_seen=False)
    published = one(envs=("atari/Pong",), methods=("disco103_frozen",))
    with pytest.raises(UsageError, match="disco103 was discovered in atari/Pong"):
        methods.check(published, allow_seen=False)


def test_rules_that_ship_are_compared_by_their_names():
    compared = one(methods=tuple(methods.METHODS)[:8], scalar_rule="catch_and_grids", disco_rule="catch_disco")
    assert methods.check(compared, allow_seen=False) == {} and len(compared.cells()) == 16
    assert compared.configure(ENVS[0], "disco_frozen").init_meta_params == "catch_disco"
    alone = compared.configure(ENVS[0], "disco")  # the agents that it was discovered by
    assert alone.rule == load_rule("catch_disco").config.rule and not alone.init_meta_params
