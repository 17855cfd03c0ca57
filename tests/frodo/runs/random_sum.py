"""A program in the manner of the experiments: sums of random numbers, which tell whether it was resumed right."""

import dataclasses
import time
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from experiments.runs import command_line
from frodo.runs.callbacks import by_name
from frodo.runs.driver import Advanced, Regime, drive, end_program
from frodo.runs.folders import RunOptions
from frodo.runs.run import Run


@dataclasses.dataclass(frozen=True)
class Inner:
    hidden: tuple[int, ...] = (3, 4)
    gain: float | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    learning_rate: float = 0.1
    kind: Literal["normal", "uniform"] = "normal"
    is_slow: bool = False
    inner: Inner = Inner()

    def validate(self) -> None:
        if self.learning_rate <= 0:
            raise ValueError(f"config.learning_rate={self.learning_rate}: give a positive number")


class State(NamedTuple):
    total: Any
    key: Any
    num_updates: int


def init() -> State:
    return State({"w": jnp.zeros(3), "empty": jnp.zeros((0, 2))}, jax.random.key(1), 0)


class Sums(Regime):
    def __init__(self, config: Config, seeds: tuple[int, ...], steps: int):
        self._config, self._seeds, self.total = config, seeds, steps

    def init(self) -> State:
        return init()

    def scatter(self, whole, step, begun):
        return whole, step

    def advance(self, state: State, step: int) -> Advanced:
        key, noise_key = jax.random.split(state.key)
        noise = self._config.learning_rate * getattr(jax.random, self._config.kind)(noise_key, (3,))
        state = State(state.total | {"w": state.total["w"] + noise}, key, state.num_updates + 1)
        step += 10
        counts = {"update": state.num_updates, "env_steps": step, "env_frames": 4 * step}
        time.sleep(0.05 * self._config.is_slow)
        return Advanced(state, step, [counts | {"seed": i, "return": state.total["w"][i]} for i in self._seeds])


def run(config: Config, options: RunOptions) -> State:
    with Run(options, experiment="random_sum", name=config.kind, config=config) as run:
        stopped = drive(Sums(config, options.seeds, options.steps), run, by_name(options.log_to))
        end_program(stopped, run)
        run.finish({"total": stopped.state.total["w"]})
    return stopped.state


def main(argv: list[str]) -> None:
    config, options = command_line.parse_options(argv, Config())
    run(config, options)


if __name__ == "__main__":
    command_line.define_flags(Config(), seeds="0,1", steps="50")
    command_line.start(main)
