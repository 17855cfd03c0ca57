"""Compare the rule Disco103 with reference data: frodo check_disco103 --weights=W --reference=R.npz

The reference is a flat .npz of float32 arrays named <case>/u<update>/<key>: `in/` and `state_in/` are what one update
of the rule is given, `out/`, `state_out/`, `loss/`, `grad/`, `meta_grad/` and `dbg/` what comes of it; and
<case>/meta_grad_chain/<key>, of all updates of the case in a row. Every case is checked, whatever its shapes.

Errors are the largest absolute difference over the largest absolute value of the reference's array (of one leaf of a
meta-gradient: at least 0.03 of the largest leaf's norm, since some leaves are 0 up to rounding). Prints the largest
error per key and what is allowed: 2e-4; 2e-3 for the gradient of q and the first moments of the averages; 5e-5 for the
lifetime state. Exit code 1 if one is larger, or if the file holds a key that the rule does not give.
"""

import sys
from pathlib import Path

from absl import flags

from experiments.analyses.disco103_reference import check, tolerance
from experiments.runs.command_line import start
from frodo import archives, logs
from frodo.rules import disco103_weights
from frodo.runs.errors import UsageError, caused_by


def main(argv: list[str]) -> None:
    del argv
    for name in ("weights", "reference"):
        if not flags.FLAGS[name].value:
            raise UsageError(f"--{name} is missing: name an .npz file")
    with caused_by("--weights"):
        arrays = disco103_weights.read(Path(flags.FLAGS.weights))
    try:
        with caused_by("--reference"):
            errors = check(arrays, archives.read_arrays(Path(flags.FLAGS.reference)))
    except FileNotFoundError:
        raise UsageError(f"--reference={flags.FLAGS.reference} names no file") from None
    wrong = [key for key, error in errors.items() if not error <= tolerance(key)]
    rows = [
        {"key": key, "largest error": error, "allowed": tolerance(key), "": "X" * (key in wrong)}
        for key, error in errors.items()
    ]
    print(logs.table(rows))
    if wrong:
        sys.exit(f"error: {len(wrong)} of {len(errors)} keys differ by more than is allowed, the first is {wrong[0]}")
    print(f"all {len(errors)} keys agree")


if __name__ == "__main__":
    flags.DEFINE_string("weights", "", "The published weights, disco_103.npz.")
    flags.DEFINE_string("reference", "", "Reference data, an .npz file.")
    start(main)
