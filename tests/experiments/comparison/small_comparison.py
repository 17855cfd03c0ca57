"""A comparison of few methods in two small environments, its cells as files, and a rule."""

import jax

from experiments.comparison.methods import Comparison, cell_folder
from frodo import files, presets
from frodo.rule_files import Origin, Rule

ENVS = ("toy/catch/4x3", "toy/grid_world/46")


def one(envs=ENVS, methods=("impala", "frodo", "scalar_frozen"), **settings) -> Comparison:
    return Comparison(envs, 1000, (0, 3), methods, {"scalar_rule": "", "disco_rule": ""} | settings)


def write_cell(out, env, method, returns, budget=1000, seeds=(0, 3)):
    """A finished run whose return is the same at each of ten log points."""
    folder = cell_folder(out, env, method)
    config = {"env": env, "stride": 0, "num_updates": 5, "unroll": 20, "validation_unroll": 25, "is_frozen": False}
    config |= {"network": {}, "batch_size": 2, "replay": {}}
    config["rule"] = {"name": "frodo" if method == "frodo" else "impala"}
    files.write_json(folder / "config.json", {"config": config, "steps": budget, "seeds": seeds})
    with (folder / "metrics.csv").open("w") as file:
        file.write("seed,update,env_steps,env_frames,seconds,cpu_seconds,return\n")
        for number, (seed, value) in enumerate(zip(seeds, returns, strict=True)):
            for i in range(1, 11):
                file.write(f"{seed},{i},{i * budget // 10},0,0,{10 * number + i},{value}\n")
    files.write_json(folder / "summary.json", {"steps_per_cpu_second": 200 if method == "frodo" else 400})


def scalar_rule(path, envs):
    rule = Rule("frodo", presets.small_population("frodo").agent_only())
    meta_params = rule.update_rule.random_meta_params(jax.random.key(0), 2)
    Rule("frodo", rule.config, meta_params, Origin(envs, 123, 4.5)).save(path)
    return str(path)
