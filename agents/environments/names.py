"""Environments by name.

The toys, gymnax's, craftax's, navix's and xminigrid's environments are pure functions, which the actor batches by
`jax.vmap`; all others are batches on the host, a `HostEnvironment`. Both show a `TimeStep`.
"""

import difflib
import re
from collections.abc import Callable, Iterable

from agents.environments import atari57
from agents.environments.bsuite import bsuite_ids, make_bsuite
from agents.environments.craftax import craftax_ids, make_craftax
from agents.environments.dm_env import DmEnvBatch
from agents.environments.envpool import ATARI_PREPROCESSING, envpool_ids, make_envpool
from agents.environments.gymnax import gymnax_ids, make_gymnax
from agents.environments.host import HostEnvironment, environment_seeds
from agents.environments.navix import make_navix, navix_ids
from agents.environments.xminigrid import make_xminigrid, xminigrid_ids
from agents.validation import check_count, check_type
from toy_envs import names as toys
from toy_envs.base import Environment, check_pure
from toy_envs.changing import CHANGES, Changing
from toy_envs.rule_room import KINDS
from toy_envs.trials import Trials
from toy_envs.wrapper import Scaled

_SCALED = re.compile(r"scaled/([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)/((?!scaled/).+)")
MAX_ON_HOST = 10_000  # environments of a batch
FORMS = {
    "toy": "toy/<name>",
    "gymnax": "gymnax/<Id>",
    "craftax": "craftax/<Id>",
    "navix": "navix/<Id>",
    "xminigrid": "xminigrid/<Id>",
    "bsuite": "bsuite/<experiment>/<index>",
    "envpool": "envpool/<Id>",
    "changing": "changing/<rewards or actions>/<steps>/<environment>",
    "scaled": "scaled/<factor>/<environment>",
    "trials": "trials/<trials>/<environment>",
    "atari": "atari/<Game>",
}
_OF_LIBRARIES = {  # pure ones
    "gymnax": make_gymnax,
    "craftax": make_craftax,
    "navix": make_navix,
    "xminigrid": make_xminigrid,
}
_KNOWN: dict[str, Callable[[], Iterable[str]]] = {
    "toy": toys.examples,
    "gymnax": gymnax_ids,
    "craftax": craftax_ids,
    "navix": navix_ids,
    "xminigrid": xminigrid_ids,
    "bsuite": bsuite_ids,
    "envpool": envpool_ids,
    "atari": lambda: map(atari57.camel_case, atari57.atari57_scores()),
    "changing": lambda: [f"{change}/2000/toy/catch" for change in CHANGES],
    "scaled": lambda: ["10/toy/catch"],
    "trials": lambda: ["4/toy/bandit/2", *(f"4/toy/rule_room/{kind}" for kind in KINDS)],
}


def make_environment(name: str, num_envs: int = 1, seed: int = 0) -> Environment | HostEnvironment:
    """Make an environment by its name.

    - `toy/<name>`: one pure environment; the caller batches and seeds it. Names are `catch`, `catch/<rows>x<columns>`,
      `grid_world/<0-56>`, `random_walk`, `bandit/<arms>`, `two_colours`, `discounting_chain`, and
      `rule_room/<kind>`, also with tasks, as `rule_room/main/4096` (`toy_envs.names`).
    - `gymnax/<Id>`, as `gymnax/Breakout-MinAtar`: a pure one, too, with discrete actions and gymnax's own defaults.
    - `craftax/Craftax-Classic-Symbolic-v1`: Crafter as pure functions, seen as symbols, 10,000 steps at most.
    - `navix/<Id>`, as `navix/Navix-DoorKey-5x5-v0`: MiniGrid as pure functions, seen whole, 100 steps at most.
    - `xminigrid/<Id>`, as `xminigrid/XLand-MiniGrid-R1-9x9`: XLand as pure functions, with *trivial* tasks;
      `xminigrid/<Id>/train` and `/held_out` have different goals.
    - `bsuite/<experiment>/<index>`, as `bsuite/catch/0`. Of these, `deep_sea_stochastic` takes no seed and differs from
      run to run, and `mnist` with its variants needs the files of MNIST in /tmp/mnist.
    - `envpool/<Id>`: any id of envpool's, with its own defaults.
    - `atari/<Game>`: one of Atari-57, as `atari/MsPacman` or `atari/ms_pacman`, with `ATARI_PREPROCESSING`.
    - `changing/<rewards or actions>/<steps>/<environment>`, as `changing/rewards/2000/toy/catch`: a pure environment
      that is another one after every so many steps of a lifetime (`toy_envs.changing`).
    - `scaled/<factor>/<environment>`, as `scaled/1e-3/toy/catch`: a pure environment whose rewards are so many times
      as large (`toy_envs.wrapper`).
    - `trials/<trials>/<environment>`, as `trials/4/toy/rule_room/main`: a pure environment in episodes of so many
      trials of one task (`toy_envs.trials`), or, as `trials/1-6/...`, of a number that is drawn. One that changes does
      so within the episode: it begins with the task. `trials/4/forgetful/...` resets the memory at each trial's end.

    Args:
      name: as above.
      num_envs: how many run in the batch.
      seed: non-negative; every environment of the batch gets its own, derived from it.
    Raises:
      TypeError: if the name is no text.
      ValueError: if there is no such environment, `num_envs` is no whole number from 1 on, `seed` none from 0 on, or a
        file of MNIST is missing.
      ImportError: if gymnax, craftax, navix, xminigrid or envpool is needed and is not installed, or envpool misses a
        system library.
    """
    check_type("name", name, str, "that of an environment, such as 'toy/catch'")
    check_count("num_envs", num_envs)
    check_count("seed", seed, 0)
    if num_envs > MAX_ON_HOST and not is_pure(name):
        most = f"at most {MAX_ON_HOST} of those that are stepped on the host, as {name}"
        raise ValueError(f"num_envs is {num_envs}, expected at least 1, and {most}")
    suite, _, rest = name.partition("/")
    if suite == "toy" and (toy := toys.make(rest)):
        return toy
    if suite in _OF_LIBRARIES and rest in _KNOWN[suite]():
        return _OF_LIBRARIES[suite](rest)
    if suite == "bsuite" and rest in bsuite_ids():
        return DmEnvBatch([make_bsuite(rest, one_seed) for one_seed in environment_seeds(seed, num_envs)], name)
    if suite == "envpool" and rest in envpool_ids():
        return make_envpool(rest, num_envs, seed)
    if suite == "atari" and (game := atari57.snake_case(rest)) in atari57.atari57_scores():
        return make_envpool(atari57.envpool_id(game), num_envs, seed, **ATARI_PREPROCESSING)
    try:
        if suite == "changing" and (found := re.fullmatch(r"(\w+)/(\d{1,9})/(.+)", rest)) and _is_plain(found[3]):
            return Changing(make_pure(found[3]), found[1], int(found[2]))
        factor, plain = unscaled(name)
        if plain != name and _is_plain(plain):
            return Scaled(make_pure(plain), factor)
        found = re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,3})/(forgetful/)?(.+)", rest)
        if suite == "trials" and found and _is_plain(found[4]):
            return Trials(make_pure(found[4]), int(found[2]), int(found[1]) if found[1] else None, bool(found[3]))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    raise _unknown_name(name)


def is_pure(name: str) -> bool:
    """Say whether an environment of that name is made of pure functions, not a batch on the host."""
    return name.partition("/")[0] in ("toy", *_OF_LIBRARIES, "changing", "scaled", "trials")


def unscaled(name: str) -> tuple[float, str]:
    """Return the factor of an environment's rewards, and the name of the one that is scaled; else 1 and the name."""
    found = _SCALED.fullmatch(name)
    return (float(found[1]), found[2]) if found else (1.0, name)


def _is_plain(name: str) -> bool:
    """Whether it is pure, and no episode of trials: what was last done and paid is observed as it is in these."""
    return is_pure(name) and not name.startswith("trials/")


def make_pure(name: str) -> Environment:
    """Make a pure environment by its name; errors are those of `make_environment`."""
    return check_pure(name, make_environment(name, 1, 0))


def _unknown_name(name: str) -> ValueError:
    suite = name.partition("/")[0]
    if suite == "dmlab":
        return ValueError(f"unknown environment {name!r}: DeepMind Lab has no adapter, plans alone know what it shows")
    suites = [suite] if suite in FORMS else list(FORMS)
    known = [f"{suite}/{rest}" for suite in suites for rest in _known(suite)]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    forms = " or ".join(FORMS[suite] for suite in suites)
    return ValueError(
        f"unknown environment {name!r}: expected {forms}, the nearest match is {nearest!r}; one of your own is a "
        "subclass of frodo.Environment, given itself (docs/start/own_environment.md)"
    )


def _known(suite: str) -> Iterable[str]:
    """Return the names in a suite; none where its package is not installed."""
    try:
        return _KNOWN[suite]()
    except ImportError:
        return ()
