"""Settings from names: those of a rule's agents, of a population, and lists of environments."""

import re

from agents.environments.names import FORMS, is_pure, make_environment
from agents.types import Params
from agents.validation import did_you_mean
from frodo.files import MAX_ENTRIES
from frodo.regimes.scores import task_of
from frodo.rules.files import agent_for, has_meta_params, load_meta_params, shipped_rules
from frodo.runs.errors import UsageError, caused_by
from frodo.settings import population_presets, presets
from frodo.settings.config import OnlineConfig, PopulationConfig
from frodo.settings.registry import RULES, starts


def discovered() -> list[str]:
    """Return the names of rules that were discovered."""
    return [*starts(is_fitted=False), *shipped_rules()]


# Rules, for --help: those that were discovered, and what η can begin with.
DISCOVERED = f"{', '.join(discovered())}, or a file that `discover` wrote"
STARTS = f"{', '.join(starts(is_fitted=True))}, {DISCOVERED}"


def configure(env: str, rule: str, init_meta_params: str = "") -> OnlineConfig:
    """Return the settings of an agent with a rule by its name, or with one that goes on from a discovered one."""
    check_kinds(rule, init_meta_params)
    if init_meta_params:  # one that is fitted is so when all settings are known
        return agent_for(init_meta_params, env).replace(init_meta_params=init_meta_params)
    return presets.for_rule(env, rule)


def check_kinds(rule: str, init_meta_params: str) -> None:
    """Raise a UsageError for a rule that was found where one at random η is meant, or the other way round."""
    if init_meta_params in RULES and not has_meta_params(init_meta_params):
        raise UsageError(f"{init_meta_params} has no η yet: give it as --rule")
    if rule in RULES:
        return
    if has_meta_params(rule) and not init_meta_params:
        found = f"--init_meta_params={rule} learns it on, frodo evaluate --rule={rule} keeps its η"
        raise UsageError(f"{rule} is no rule at random η: {found}")
    hint = did_you_mean(rule, [*RULES, *discovered()])
    if hint != did_you_mean(rule, RULES):  # a discovered one is nearest
        raise UsageError(f"rule is {rule!r}, which is not known{hint}")


def configure_frozen(env: str, rule: str) -> OnlineConfig:
    """Return the settings of an agent with a frozen rule: a discovered one, or a learned rule's name for random η.

    It updates on each trajectory as it comes.
    """
    is_random = rule in RULES
    if is_random and not RULES[rule].is_learned:
        raise UsageError(f"{rule} has no η to keep as it is: frodo online --rule={rule} trains by it")
    config = configure(env, rule) if is_random else configure(env, "", init_meta_params=rule)
    once = dict(num_updates=1, stride=0, is_acting_interleaved=False, is_validation_kept=False)
    return config.replace(is_frozen=True, **once)


def known_frozen(env: str, rule: str) -> OnlineConfig:
    """Return for --help what `configure_frozen` does, without the weights of the published rule."""
    return configure_frozen(env, starts(is_fitted=False).get(rule, (rule,))[0])


def initial_meta_params(config: OnlineConfig | PopulationConfig) -> Params | None:
    """Load the η that a run begins with, None where it is random.

    Raises:
      UsageError: if there is no such rule, or it is of another configuration.
    """
    if not (name := getattr(config, "init_meta_params", "")):
        return None
    with caused_by("init_meta_params"):
        return load_meta_params(name, config.rule)


def population(rule: str, envs: tuple[str, ...], preset: str = "small") -> PopulationConfig:
    """Return the settings of a population; on Atari, with the ConvNet and clipped rewards, if it is not for images.

    Raises:
      UsageError: if some environments are Atari's and others are not: its agents have one kind of network.
    """
    config = population_presets.PRESETS[preset](rule)
    if presets.is_image_torso(config.network):
        return config
    images = [env for env in envs if env.startswith("atari/")]
    if others := [env for env in envs if images and env not in images]:
        raise UsageError(
            f"--envs={','.join(envs)}: {images[0]} shows images and {others[0]} does not, and agents of a population "
            "have one kind of network: give environments of one kind"
        )
    if images:
        of_env = presets.for_environment(envs[0])
        config = presets.with_images(config, of_env.network).replace(max_abs_reward=of_env.max_abs_reward)
    return config


def parse_envs(text: str) -> tuple[str, ...]:
    """Return the environments of "toy/catch,toy/grid_world/0-7"; one of that name must exist for each."""
    envs: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise UsageError(f"--envs={text}: give at least one environment between commas, as toy/catch,toy/catch/5x5")
        match = re.fullmatch(r"(.*/)(\d{1,9})-(\d{1,9})", part)
        numbers = range(int(match[2]), int(match[3]) + 1) if match else [0]
        if not numbers:
            raise UsageError(f"--envs={text}: {part!r} has no environment; give the smaller number first")
        if len(envs) + len(numbers) > MAX_ENTRIES:
            raise UsageError(f"--envs={text}: these are more than {MAX_ENTRIES} environments; give fewer")
        envs.extend(f"{match[1]}{number}" for number in numbers) if match else envs.append(part)
    for env in envs:
        if is_pure(env) or re.fullmatch(f"({'|'.join(FORMS)})/.*", env) is None:
            make_environment(env, 1, 0)  # refuses an unknown name
    return tuple(envs)


def parse_tasks(text: str) -> tuple[str, ...]:
    """Return the environments of --envs for programs: in JAX, with known bounds, each given once.

    Raises:
      UsageError: as it says.
    """
    envs = parse_envs(text)
    with caused_by("--envs"):
        for env in envs:
            task_of(env)
            if envs.count(env) > 1:
                raise UsageError(f"{env} is given more than once")
    return envs
