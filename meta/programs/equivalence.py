"""Which programs are one: by the directions of their gradients, or, as in the paper, by their outputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Array
from meta.programs.evaluation import LISTS, Draws, Instructions, Transition, assemble, features, interpret, registers_of
from meta.programs.language import FORMULAS, LOSSES, Program, parse
from meta.programs.targets import assembled
from meta.programs.targets import fingerprint as target_fingerprint

EQUIVALENCES = ("gradient", "output")  # what distinguishes programs
SAME = 1e-4  # fingerprints that differ by less are of one program, those that are less of one without a gradient
TD = (FORMULAS["dqn"], "(Q(s)[a] - (r + max(Q_targ(s_next))))**2")  # δ² with γ and without
NUM_PROBES, PROBED_ACTIONS, PROBED_DISCOUNT = 30, 3, 0.99


def _probe() -> tuple[Transition, Draws, Array]:
    """Return fixed transitions of the size that agents see, fixed draws for each of them, and which are terminal.

    A third has values around -4, a third around 0 and a third around 4, and of each three one is terminal. Were draws
    the same for all, a factor that is drawn would count as a constant.
    """
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))
    number = np.arange(NUM_PROBES)
    is_end, level = number % 3 == 0, jnp.asarray(4.0 * (3 * number[:, None] // NUM_PROBES - 1))
    transition = Transition(
        lists={name: level + 3 * normal(NUM_PROBES, PROBED_ACTIONS) for name in LISTS},
        action=jnp.asarray(rng.integers(PROBED_ACTIONS, size=NUM_PROBES)),
        reward=normal(NUM_PROBES),
        gamma=jnp.where(is_end, 0.0, PROBED_DISCOUNT),
        state=normal(NUM_PROBES, 4),
        next_state=normal(NUM_PROBES, 4),
    )
    num = (NUM_PROBES, LOSSES.max_nodes)
    return transition, Draws(normal(*num), jnp.asarray(rng.uniform(size=num))), jnp.asarray(is_end)


def _on_probes(instructions: Instructions, given: Array, draws: Draws) -> Array:
    """Run a program on the fixed transitions, each with draws of its own: [features, NUM_PROBES] -> [NUM_PROBES]."""
    one = lambda given, draws: interpret(instructions, draws, given[:, None])[0]
    return jax.vmap(one, (1, 0))(given, draws)


@functools.partial(jax.jit, static_argnames="ends")
def fingerprint(instructions: Instructions, ends: str = "gamma") -> Array:
    """Return the gradient of a program's loss to Q(s) and Q(s_next) on fixed transitions, in units of its length.

    Programs whose losses differ by a constant, or by a positive factor, have the same: an optimiser that divides by the
    size of gradients treats them alike. 0 for a program without a gradient.

    Args:
      instructions: with the registers of all lists, `registers_of(LISTS)`.
      ends: what the loss is told of ends by, of ENDS.
    Returns:
      [2 * NUM_PROBES * PROBED_ACTIONS].
    """
    transition, draws, is_end = _probe()

    def loss(lists):
        told = transition._replace(lists=lists).told_ends(ends, PROBED_DISCOUNT, is_end)
        return jnp.sum(_on_probes(instructions, features(told), draws))

    gradient = jax.grad(loss)(transition.lists)
    flat = jnp.concatenate([gradient[name].ravel() for name in LISTS if name[0] == "Q"])
    largest = jnp.max(jnp.abs(flat))
    scaled = flat / jnp.where(largest > 0, largest, 1.0)
    return scaled / jnp.where(largest > 0, jnp.linalg.norm(scaled), 1.0)


def distance_from_td(program: Program, ends: str = "gamma") -> float:
    """Return the distance between the directions of a loss's gradient and of δ²'s, with γ or without, the nearer one.

    Directions are those of `fingerprint`, with respect to Q(s) and Q(s′): from 0 to 2.
    """
    own = _direction(program, ends)
    return min(float(np.linalg.norm(own - _direction(parse(LOSSES, formula), ends))) for formula in TD)


@functools.lru_cache(maxsize=10_000)  # most mutations change nodes that nothing depends on
def _direction(program: Program, ends: str) -> np.ndarray:
    return jax.device_get(fingerprint(assemble(LOSSES, program, registers_of(LISTS)), ends))


@functools.partial(jax.jit, static_argnames="ends")
def outputs(instructions: Instructions, ends: str = "gamma") -> Array:
    """Return a program's losses on fixed transitions, in units of the largest, and the logarithm of that unit.

    The paper distinguishes programs by it (Co-Reyes et al. 2021, section 3.3: a hash of outputs); a tolerance is thus
    relative. 0 where all losses are.

    Returns:
      [NUM_PROBES + 1].
    """
    transition, draws, is_end = _probe()
    losses = _on_probes(instructions, features(transition.told_ends(ends, PROBED_DISCOUNT, is_end)), draws)
    largest = jnp.max(jnp.abs(losses))
    unit = jnp.where(largest > 0, largest, 1.0)
    return jnp.append(losses / unit, jnp.log(unit))


def has_gradient(program: Program, ends: str = "gamma") -> bool:
    """Say whether a loss moves Q at all."""
    return bool(np.any(_direction(program, ends)))


@functools.lru_cache(maxsize=10_000)
def of_loss(program: Program, ends: str) -> dict[str, np.ndarray]:
    """Return the fingerprints of a compact loss, of EQUIVALENCES; "gradient" is about 0 without one."""
    output = jax.device_get(outputs(assemble(LOSSES, program, registers_of(LISTS)), ends))
    return {"gradient": _direction(program, ends), "output": output}


@functools.lru_cache(maxsize=10_000)
def of_target(program: Program, ends: str) -> dict[str, np.ndarray]:
    """The same of a compact target, which has one fingerprint, and is told of ends in one way."""
    del ends
    found = jax.device_get(target_fingerprint(assembled(program)))
    return dict.fromkeys(EQUIVALENCES, found)


@functools.cache
def _random_direction(size: int) -> np.ndarray:
    direction = np.random.default_rng(0).normal(size=size)
    return direction / np.sum(np.abs(direction))


class Rows:
    """Vectors of one length, to look up which is the same as another.

    They are projected on a random direction: those that differ little in all entries differ little there, so that few
    need a look at all.
    """

    def __init__(self):
        self._rows: list[np.ndarray] = []
        self._projected = np.zeros(64)

    def append(self, row: np.ndarray) -> None:
        num = len(self._rows)
        if num == len(self._projected):
            self._projected = np.resize(self._projected, 2 * num)
        self._projected[num] = row @ _random_direction(len(row))
        self._rows.append(row)

    def same(self, row: np.ndarray) -> int | None:
        """Return the number of the nearest one, by the largest difference, of several the first; None from SAME on."""
        near = np.flatnonzero(np.abs(self._projected[: len(self._rows)] - row @ _random_direction(len(row))) < SAME)
        distance = [float(np.max(np.abs(self._rows[i] - row))) for i in near]
        return int(near[np.argmin(distance)]) if distance and min(distance) < SAME else None
