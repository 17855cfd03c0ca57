"""Write a rule as files for the code of others: DiscoBench's OnPolicyRL (Goldie et al. 2026).

    frodo export --rule=results/discover/corrected_ppo/rule.npz --out=task_src/OnPolicyRL_targets/MinAtar/Breakout
    frodo export --rule=dpo --out=...

Writes targets.py and loss.py in the place of theirs, frodo_rule.py with both functions, which needs JAX alone, and
frodo_rule.npz with η. --rule is ppo or dpo, or the file of a rule of the kind lpo or corrected_ppo.
"""

import json
from pathlib import Path

import jax
import numpy as np
from absl import flags

from experiments.exports import discobench
from experiments.runs import command_line
from frodo import files
from frodo.regimes.arguments import check_meta_params
from frodo.rules.files import Rule, load_rule, make_rule
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import check_out

HAND_DESIGNED, KINDS = ("ppo", "dpo"), ("ppo", "dpo", "lpo", "corrected_ppo")
NAMES = ("targets.py", "loss.py", "frodo_rule.py", "frodo_rule.npz")
FUNCTIONS = {"targets.py": "get_targets", "loss.py": "loss_actor_and_critic"}


def export(rule: Rule, folder: Path) -> None:
    """Write the four files; ValueError where the rule is of another kind, or has no η."""
    kind = rule.config.rule.name
    if kind not in KINDS:
        raise ValueError(f"the rule is of the kind {kind!r}, expected one of {', '.join(KINDS)}")
    if kind not in HAND_DESIGNED and rule.meta_params is None:
        raise ValueError(f"the rule {kind!r} has no η, expected the file of a discovered one")
    for name in ("is_value_clipped", "is_advantage_normalised"):
        if not getattr(rule.config.rule.settings, name):
            raise ValueError(f"{name} of the rule is False, expected True, as in DiscoBench's loss")
    check_meta_params(rule.update_rule, 2, rule.meta_params)
    settings = {name: x for name, x in vars(rule.config.rule.settings).items() if isinstance(x, bool | int | float)}
    leaves = jax.tree_util.tree_leaves_with_path(rule.meta_params or {})
    arrays = {"|".join(str(key.key) for key in path): np.asarray(x) for path, x in leaves}
    files.write_arrays(
        folder / "frodo_rule.npz", arrays | {"settings": np.array(json.dumps(settings | {"kind": kind}))}
    )
    files.write(folder / "frodo_rule.py", Path(discobench.__file__).read_bytes())
    for name, function in FUNCTIONS.items():
        files.write(folder / name, f"from frodo_rule import {function}  # noqa: F401\n".encode())


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    command_line.no_arguments(argv)
    folder = Path(FLAGS.out)
    check_out(folder)
    there = [name for name in NAMES if (folder / name).exists()]
    if there and not FLAGS.overwrite:
        raise UsageError(f"--out={folder}: it holds {', '.join(there)}; --overwrite replaces them")
    with caused_by("--rule"):
        rule = make_rule(FLAGS.rule) if FLAGS.rule in HAND_DESIGNED else load_rule(FLAGS.rule)
        export(rule, folder)
    print(f"{folder}: {', '.join(NAMES)}")


if __name__ == "__main__":
    flags.DEFINE_string("rule", "ppo", "Rule: ppo, dpo, or the file of one of the kind lpo or corrected_ppo.")
    flags.DEFINE_string("out", "results/export", "Folder of their code, or another one.")
    flags.DEFINE_boolean("overwrite", False, "Replace targets.py, loss.py and what an earlier export wrote.")
    command_line.start(main)
