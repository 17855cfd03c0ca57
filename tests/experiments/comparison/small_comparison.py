"""A comparison of few methods in two small environments, its runs as files, and a rule."""

import dataclasses

import jax

from experiments.comparison import cells
from experiments.comparison.comparison import Comparison
from experiments.comparison.methods import RULE_FLAGS
from experiments.comparison.protocol import FAMILIES, Grid, Point
from experiments.runs.jobs import failure
from frodo import files
from frodo.rules.files import Origin, Rule
from frodo.settings import population_presets

ENVS = ("toy/catch/4x3", "toy/grid_world/46")
GRID = Grid((1e-3, 1e-2), (0.01,), ((2, 20),))
POINT = Point(1e-2, 0.01, (2, 20))  # what `write_tuning` makes the best


def one(envs=ENVS, methods=("impala", "frodo", "scalar_frozen"), grid=GRID, budget=1000, **rules) -> Comparison:
    rules = dict.fromkeys(RULE_FLAGS, "") | rules
    return Comparison(envs, dict.fromkeys(FAMILIES, budget), (0, 3), (7,), methods, rules, grid)


def write_run(folder, config, seeds, returns, budget=1000, rates=(), is_finite=1):
    """A finished run whose return is the same at each of ten log points, for each seed, and all of them for a rate."""
    record = {"config": dataclasses.asdict(config), "steps": budget, "seeds": seeds, "learning_rates": rates}
    files.write_json(folder / "config.json", record)
    with (folder / "metrics.csv").open("w") as file:
        file.write("seed,learning_rate,update,env_steps,env_frames,seconds,cpu_seconds,is_finite,return\n")
        lives = [(rate, seed) for rate in rates for seed in seeds]
        for number, ((rate, seed), value) in enumerate(zip(lives, returns, strict=True)):
            for i in range(1, 11):
                own = is_finite if i == 10 else 1
                file.write(f"{seed},{rate},{i},{i * budget // 10},0,0,{10 * number + i},{own},{value}\n")
    files.write_json(folder / "summary.json", {"steps_per_cpu_second": 200 if config.rule.name == "frodo" else 400})


def write_tuning(compared, out, env, method, returns=(0.1, 0.2), **settings):
    """The finished tuning runs: a return for each learning rate."""
    folder = cells.folder_of(out, cells.TUNING, env, method)
    for program in compared.programs(env, method):
        config = compared.configure(env, method, program)
        rates = compared.grid.learning_rates
        write_run(folder / program.folder, config, compared.tuning_seeds, returns, rates=rates, **settings)
    files.write_json(folder / "summary.json", {})


def write_cell(compared, out, env, method, returns, seeds=(0, 3), point=POINT, **settings):
    """A finished run that is shown, after its tuning."""
    if failure(cells.folder_of(out, cells.TUNING, env, method)):
        write_tuning(compared, out, env, method)
    folder = cells.folder_of(out, cells.CELLS, env, method)
    config = compared.configure(env, method, point.program)
    rates = (point.learning_rate,)
    write_run(folder / cells.run_name(point), config, seeds, returns, rates=rates, **settings)
    files.write_json(folder / "summary.json", {})


def scalar_rule(path, envs):
    rule = Rule("frodo", population_presets.small("frodo").agent_only())
    meta_params = rule.update_rule.random_meta_params(jax.random.key(0), 2)
    Rule("frodo", rule.config, meta_params, Origin(envs, 123, 4.5)).save(path)
    return str(path)
