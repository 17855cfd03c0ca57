"""What a person names by a word, as settings: the agent of a rule in an environment, and lists of environments."""

import dataclasses
import re

from agents.environments import make_environment
from experiments import rules
from experiments.runs.errors import UsageError
from frodo import presets
from frodo.online import OnlineConfig
from frodo.rule import LEARNED_RULES


def configure(env: str, rule: str, init_meta_params: str = "") -> OnlineConfig:
    """Return the settings of an agent with a rule by its name, or with one that goes on from a discovered one."""
    if init_meta_params:
        config, _ = rules.load(init_meta_params, presets.disco(env))
        return dataclasses.replace(config, init_meta_params=init_meta_params)
    return presets.with_rule(presets.disco(env) if rule == "disco" else presets.for_environment(env), rule)


def configure_frozen(rule: str, env: str) -> OnlineConfig:
    """Return the settings of an agent with a frozen rule: "disco103", a file, or a learned rule's name for random η.

    It updates on each trajectory as it comes.
    """
    preset = presets.disco(env)
    if rule in LEARNED_RULES:
        config = preset if rule == "disco" else presets.with_rule(presets.for_environment(env), rule)
    else:
        config = dataclasses.replace(rules.load(rule, preset)[0], init_meta_params=rule)
    return dataclasses.replace(config, is_frozen=True, num_updates=1, stride=0, is_acting_in_turn=False)


def parse_envs(text: str) -> tuple[str, ...]:
    """Return the environments of "toy/catch,toy/grid_world/0-7"; one of that name must exist for each."""
    envs: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if match := re.fullmatch(r"(.*/)(\d+)-(\d+)", part):
            envs.extend(f"{match[1]}{index}" for index in range(int(match[2]), int(match[3]) + 1))
        else:
            envs.append(part)
    if not envs:
        raise UsageError(f"--envs={text}: give at least one environment, such as toy/catch,toy/grid_world/0-7")
    for env in envs:
        if re.fullmatch(r"(toy|bsuite|envpool|atari)/.*", env) is None or env.startswith("toy/"):
            make_environment(env, 1, 0)  # refuses an unknown name
    return tuple(envs)
