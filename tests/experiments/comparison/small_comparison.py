"""A comparison of few methods in two small environments, its runs as files, and a rule."""

import jax

from experiments.comparison import cells
from experiments.comparison.methods import Comparison
from experiments.comparison.protocol import FAMILIES, Grid, Point
from frodo import files, presets
from frodo.rule_files import Origin, Rule

ENVS = ("toy/catch/4x3", "toy/grid_world/46")
GRID = Grid((1e-3, 1e-2), (0.01,), ((2, 20),))
POINT = Point(1e-2, 0.01, (2, 20))  # what `write_tuning` makes the best


def one(envs=ENVS, methods=("impala", "frodo", "scalar_frozen"), grid=GRID, budget=1000, **rules) -> Comparison:
    rules = {"scalar_rule": "", "disco_rule": ""} | rules
    return Comparison(envs, dict.fromkeys(FAMILIES, budget), (0, 3), (7,), methods, rules, grid)


def write_run(folder, env, method, seeds, returns, budget=1000, rates=()):
    """A finished run whose return is the same at each of ten log points, for each seed, and all of them for a rate."""
    config = {"env": env, "stride": 0, "num_updates": 5, "unroll": 20, "validation_unroll": 25, "is_frozen": False}
    config |= {"network": {}, "batch_size": 2, "replay": {}}
    config["rule"] = {"name": "frodo" if method == "frodo" else "impala"}
    files.write_json(folder / "config.json", {"config": config, "steps": budget, "seeds": seeds})
    with (folder / "metrics.csv").open("w") as file:
        file.write("seed,learning_rate,update,env_steps,env_frames,seconds,cpu_seconds,return\n")
        lives = [(rate, seed) for rate in rates or (POINT.learning_rate,) for seed in seeds]
        for number, ((rate, seed), value) in enumerate(zip(lives, returns, strict=True)):
            for i in range(1, 11):
                file.write(f"{seed},{rate},{i},{i * budget // 10},0,0,{10 * number + i},{value}\n")
    files.write_json(folder / "summary.json", {"steps_per_cpu_second": 200 if method == "frodo" else 400})


def write_tuning(out, env, method, returns=(0.1, 0.2), **settings):
    """The finished tuning runs of `one()`: a return for each learning rate."""
    folder = cells.folder_of(out, cells.TUNING, env, method)
    write_run(folder / POINT.program.folder, env, method, (7,), returns, rates=GRID.learning_rates, **settings)
    files.write_json(folder / "summary.json", {})


def write_cell(out, env, method, returns, seeds=(0, 3), point=POINT, **settings):
    """A finished run that is shown, after its tuning."""
    if not cells.is_finished(out, cells.TUNING, env, method):
        write_tuning(out, env, method)
    folder = cells.folder_of(out, cells.CELLS, env, method)
    write_run(folder / cells.run_name(point), env, method, seeds, returns, **settings)
    files.write_json(folder / "summary.json", {})


def scalar_rule(path, envs):
    rule = Rule("frodo", presets.small_population("frodo").agent_only())
    meta_params = rule.update_rule.random_meta_params(jax.random.key(0), 2)
    Rule("frodo", rule.config, meta_params, Origin(envs, 123, 4.5)).save(path)
    return str(path)
