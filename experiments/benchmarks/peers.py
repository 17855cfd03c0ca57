"""Other packages' programs as they are, timed as a run is: what benchmarks are compared with.

    python -m experiments.benchmarks.peers --peer=purejaxrl_dqn --packages=../peers --out=results/peer

--packages names a folder with a checkout of each package, and with lib/, what they import besides what this one does
(docs/results/performance.md has the commands). Settings are the package's own, with the changes that stand in PEERS.
"""

import contextlib
import importlib
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from absl import flags

from experiments.runs.command_line import no_arguments, start
from frodo import files
from frodo.runs.errors import UsageError
from frodo.runs.provenance import provenance
from frodo.runs.run import Clock

ROWS = 6
Add = Callable[[int, int], None]  # adds a row: updates or calls, and environment steps since the last one


class Enough(Exception):
    """There are as many rows as are wanted."""


def of_old_gymnax(make: Callable) -> Callable:
    """Return a `make` of environments whose steps return what those of gymnax before 1.0 did."""

    def made(*arguments: Any) -> tuple:
        environment, params = make(*arguments)
        step = environment.step

        def old_step(*arguments: Any) -> tuple:
            *shown, is_terminal, is_truncated, _ = step(*arguments)
            return *shown, jnp.logical_or(is_terminal, is_truncated), {}

        environment.step = old_step
        return environment, params

    return made


class OfOldGym:
    """Environments of envpool whose resets and steps return what those of gym before 0.26 did."""

    def __init__(self, made: Any):
        self.made, self.spec = made, made.spec
        self.action_space, self.observation_space = made.action_space, made.observation_space

    def reset(self) -> Any:
        return self.made.reset()[0]

    def step(self, action: Any) -> tuple:
        shown, reward, is_terminal, is_truncated, info = self.made.step(action)
        return shown, reward, is_terminal | is_truncated, info

    def close(self) -> None:
        self.made.close()


def repeated(train: Callable, num_steps: int, add: Add) -> None:
    compiled = jax.jit(train)
    for i in range(ROWS):
        jax.block_until_ready(compiled(jax.random.key(i)))
        add(1, num_steps)


def purejaxrl(packages: Path, add: Add, module: str, **settings: Any) -> None:
    sys.path.insert(0, str(packages / "purejaxrl" / "purejaxrl"))
    sys.modules["gymnax.wrappers.purerl"] = importlib.import_module("wrappers")
    num_steps = int(settings["TOTAL_TIMESTEPS"])
    repeated(importlib.import_module(module).make_train(settings), num_steps, add)


def rejax(packages: Path, add: Add, algorithm: str, total_timesteps: int, **settings: Any) -> None:
    sys.path.insert(0, str(packages / "rejax" / "src"))
    kind = importlib.import_module("rejax").get_algo(algorithm)
    one = kind.create(total_timesteps=total_timesteps, eval_freq=total_timesteps, **settings)
    one = one.replace(eval_callback=lambda *_: (), skip_initial_evaluation=True)
    repeated(lambda key: kind.train(one, key), total_timesteps, add)


def disco_rl(packages: Path, add: Add, notebook: str, updates: int, env_steps: int) -> None:
    """Run the cells of a notebook of disco_rl up to its loop, which is ended when there are enough rows."""
    folder = packages / "disco_rl"
    sys.path.insert(0, str(folder))

    def loop(steps: range) -> Iterator[int]:
        for step in steps[: ROWS * updates]:
            yield step
            if (step + 1) % updates == 0:
                add(updates, updates * env_steps)
        raise Enough

    sys.modules["tqdm"].tqdm = loop  # type: ignore[attr-defined]
    importlib.import_module("chex").Array = jax.Array  # type: ignore[attr-defined]
    cells = json.loads((folder / "colabs" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    weights, names = str(folder / "disco_rl" / "update_rules" / "weights") + "/", {"__name__": "notebook"}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        source = "".join(line for line in cell["source"] if not line.startswith("!"))
        with contextlib.suppress(Enough):
            exec(source.replace("/content/", weights), names)  # noqa: S102
            continue
        return


def cleanba(packages: Path, add: Add, **settings: Any) -> None:
    """Run cleanba_ppo.py, whose updates are timed at their ends, on one actor thread; it logs to a folder that goes."""
    batch = settings["local_num_envs"] * settings["num_steps"]
    pmap, envpool = jax.pmap, importlib.import_module("envpool")
    make = envpool.make

    def timed(*arguments: Any, **keywords: Any) -> Callable:
        update = pmap(*arguments, **keywords)

        def updated(*arguments: Any) -> Any:
            result = jax.block_until_ready(update(*arguments))
            add(1, batch)
            return result

        return updated

    jax.pmap = timed  # type: ignore[assignment]
    envpool.make = lambda *arguments, **options: OfOldGym(make(*arguments, **options))  # type: ignore[attr-defined]
    program = packages.resolve() / "cleanba" / "cleanba" / "cleanba_ppo.py"
    head = "class AgentParams:"  # in which newer versions of Flax look for a name
    source = program.read_text(encoding="utf-8").replace(head, f"{head}\n    __contains__ = lambda *_: False")
    given = settings | dict(num_actor_threads=1, total_timesteps=ROWS * batch)
    flags_of = lambda name, value: [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    sys.argv = [str(program), *itertools.chain(*itertools.starmap(flags_of, given.items()))]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(source, {"__name__": "__main__", "__file__": str(program)})  # noqa: S102


Settings = dict[str, Any]
_DQN: Settings = dict(NUM_ENVS=10, BUFFER_SIZE=10_000, BUFFER_BATCH_SIZE=128, TOTAL_TIMESTEPS=1e5, GAMMA=0.99, TAU=1.0)
_DQN |= dict(EPSILON_START=1.0, EPSILON_FINISH=0.05, EPSILON_ANNEAL_TIME=25e4, TARGET_UPDATE_INTERVAL=500, LR=2.5e-4)
_DQN |= dict(LEARNING_STARTS=1000, TRAINING_INTERVAL=10, LR_LINEAR_DECAY=False, ENV_NAME="CartPole-v1")
_PPO: Settings = dict(LR=2.5e-4, NUM_ENVS=4, NUM_STEPS=128, TOTAL_TIMESTEPS=5e5, UPDATE_EPOCHS=4, NUM_MINIBATCHES=4)
_PPO |= dict(GAMMA=0.99, GAE_LAMBDA=0.95, CLIP_EPS=0.2, ENT_COEF=0.01, VF_COEF=0.5, MAX_GRAD_NORM=0.5)
_PPO |= dict(ACTIVATION="tanh", ENV_NAME="CartPole-v1", ANNEAL_LR=True, DEBUG=False)
_MINATAR = _PPO | dict(LR=5e-3, NUM_ENVS=64, NUM_MINIBATCHES=8, ACTIVATION="relu", ENV_NAME="Breakout-MinAtar")
_REJAX_DQN: Settings = dict(agent="QNetwork", agent_kwargs={"activation": "relu"}, num_envs=10, buffer_size=10_000)
_REJAX_DQN |= dict(polyak=0.0, fill_buffer=1000, batch_size=128, num_epochs=1, target_update_freq=500, ddqn=False)
_REJAX_PPO: Settings = dict(agent_kwargs={"activation": "tanh"}, num_envs=5, num_steps=100, num_epochs=5)
_REJAX_PPO |= dict(num_minibatches=5, learning_rate=7.5e-4, max_grad_norm=0.5, ent_coef=0.01)
PEERS: dict[str, tuple[Callable, Settings]] = {
    "purejaxrl_dqn": (purejaxrl, dict(module="dqn") | _DQN),
    "purejaxrl_ppo": (purejaxrl, dict(module="ppo") | _PPO),
    "purejaxrl_ppo_minatar": (purejaxrl, dict(module="ppo") | _MINATAR),
    "rejax_dqn": (rejax, dict(algorithm="dqn", env="CartPole-v1", total_timesteps=100_000) | _REJAX_DQN),
    "rejax_ppo": (rejax, dict(algorithm="ppo", env="CartPole-v1", total_timesteps=500_000) | _REJAX_PPO),
    "cleanba_ppo": (cleanba, dict(env_id="Pong-v5", local_num_envs=8, num_steps=8, channels=(4, 8, 8))),
    "disco_rl_eval": (disco_rl, dict(notebook="eval", updates=15, env_steps=58)),
    "disco_rl_meta_train": (disco_rl, dict(notebook="meta_train", updates=1, env_steps=4096)),
}


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    no_arguments(argv)
    (run, settings), packages, out = PEERS[FLAGS.peer], Path(FLAGS.packages), Path(FLAGS.out)
    package = packages / run.__name__
    if not package.is_dir():
        raise UsageError(f"--packages={packages}: there is no {package}, of the peer {FLAGS.peer}")
    sys.path.insert(0, str(packages / "lib"))
    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix", "wandb", "seaborn"):
        sys.modules[name] = mock.MagicMock()  # which the peers import, and do not use here
    sys.modules["tqdm"] = mock.MagicMock()
    jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
    stacked = lambda *trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)  # for what newer versions of JAX lack
    jax.device_put_replicated = lambda tree, devices: stacked(*[tree] * len(devices))  # type: ignore[assignment]
    jax.device_put_sharded = lambda shards, devices: stacked(*shards)  # type: ignore[assignment]
    gymnax = importlib.import_module("gymnax")
    gymnax.make = of_old_gymnax(gymnax.make)  # type: ignore[attr-defined]
    clock = Clock()
    rows: list[dict[str, Any]] = [{"seed": 0, "update": 0, "env_steps": 0}]

    def add(updates: int, env_steps: int) -> None:
        before = rows[-1]
        done = {"seed": 0, "update": before["update"] + updates, "env_steps": before["env_steps"] + env_steps}
        rows.append(done | clock.columns())

    run(packages, add, **settings)
    files.write_json(out / "config.json", provenance())
    files.write_csv(out / "metrics.csv", rows[1:])


if __name__ == "__main__":
    flags.DEFINE_enum("peer", "purejaxrl_dqn", list(PEERS), "Which program.")
    flags.DEFINE_string("packages", "../peers", "Folder of the checkouts.")
    flags.DEFINE_string("out", "results/peer", "Folder of the rows.")
    start(main)
