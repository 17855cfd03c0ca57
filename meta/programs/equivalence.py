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
SCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of the values on transitions that programs are probed on
NUM_OF_A_KIND = 40  # transitions of a scale that are terminal, and as many that are not
PROBED_ACTIONS, PROBED_DISCOUNT = 3, 0.99
NUM_PROBES = len(SCALES) * 2 * NUM_OF_A_KIND
NO_GRADIENT = 1e-12  # the size of a gradient that is rounding, in float64
NOTHING = 100.0  # the logarithm of how much smaller than the largest a gradient is that is 0
NUM_KEPT = 16  # random projections of a program's directions, which are kept instead of them


def _probe() -> tuple[Transition, Draws, Array]:
    """Return fixed transitions of the sizes that agents see, fixed draws for each of them, and which are terminal.

    They are in groups of NUM_OF_A_KIND: for each scale those that are not terminal, then those that are. Were draws
    the same for all, a factor that is drawn would count as a constant.
    """
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))
    number = np.arange(NUM_PROBES)
    is_end, scale = number // NUM_OF_A_KIND % 2 == 1, np.repeat(SCALES, 2 * NUM_OF_A_KIND)
    level = jnp.asarray(scale * (number % 3 - 1))[:, None]
    transition = Transition(
        lists={name: level + scale[:, None] * normal(NUM_PROBES, PROBED_ACTIONS) for name in LISTS},
        action=jnp.asarray(rng.integers(PROBED_ACTIONS, size=NUM_PROBES)),
        reward=np.minimum(scale, 1.0) * normal(NUM_PROBES),
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
def fingerprint(instructions: Instructions, ends: str = "gamma") -> tuple[Array, Array]:
    """Return the directions of the gradient of a program's loss to Q(s) and Q(s_next) on fixed transitions.

    There is a direction for each group of transitions, as large gradients in one, such as those that are divided by a γ
    of 0, would hide the others. Programs whose losses differ by a constant, or by a positive factor, have the same: an
    optimiser that divides by the size of gradients treats them alike.

    Args:
      instructions: with the registers of all lists, `registers_of(LISTS)`.
      ends: what the loss is told of ends by, of ENDS.
    Returns:
      directions [groups, 2 * NUM_OF_A_KIND * PROBED_ACTIONS], each of length 1, or 0 without a gradient; logarithms of
      the groups' lengths, of the largest 0, [groups], all 0 for a program without a gradient.
    """
    transition, draws, is_end = _probe()

    def loss(lists):
        told = transition._replace(lists=lists).told_ends(ends, PROBED_DISCOUNT, is_end)
        return jnp.sum(_on_probes(instructions, features(told), draws))

    found = jax.grad(loss)(transition.lists)
    gradient = jnp.stack([found[name] for name in LISTS if name[0] == "Q"], axis=1)  # [NUM_PROBES, 2, actions]
    rows = gradient.reshape(NUM_PROBES // NUM_OF_A_KIND, -1)
    largest = jnp.max(jnp.abs(rows), axis=1)
    has_gradient = largest > jnp.maximum(NO_GRADIENT, NO_GRADIENT * jnp.max(largest))
    scaled = jnp.where(has_gradient[:, None], rows / jnp.where(has_gradient, largest, 1.0)[:, None], 0.0)
    norm = jnp.where(has_gradient, jnp.linalg.norm(scaled, axis=1), 1.0)
    lengths = jnp.where(has_gradient, jnp.log(jnp.where(has_gradient, largest, 1.0) * norm), -jnp.inf)
    lengths = jnp.maximum(lengths - jnp.max(lengths), -NOTHING)
    return scaled / norm[:, None], jnp.where(jnp.any(has_gradient), lengths, 0.0)


def distance_from_td(program: Program, ends: str = "gamma") -> float:
    """Return the distance between the directions of a loss's gradient and of δ²'s, with γ or without, the nearer one.

    Directions are those of `fingerprint`, with respect to Q(s) and Q(s′), of the same weight each: from 0 to 2.
    """
    own = _direction(program, ends)
    return min(float(np.linalg.norm(own - _direction(parse(LOSSES, formula), ends))) for formula in TD)


@functools.lru_cache(maxsize=16)  # each is large; those of TD stay
def _fingerprint(program: Program, ends: str) -> tuple[np.ndarray, np.ndarray]:
    with jax.enable_x64(True):  # a direction of small gradients is that of their rounding else
        return jax.device_get(fingerprint(assemble(LOSSES, program, registers_of(LISTS)), ends))


def _direction(program: Program, ends: str) -> np.ndarray:
    directions = _fingerprint(program, ends)[0].ravel()
    return directions / max(1e-9, np.linalg.norm(directions))


@functools.partial(jax.jit, static_argnames="ends")
def outputs(instructions: Instructions, ends: str = "gamma") -> Array:
    """Return a program's losses on fixed transitions, in units of the largest of a group, and these units' logarithms.

    The paper distinguishes programs by it (Co-Reyes et al. 2021, section 3.3: a hash of outputs); a tolerance is thus
    relative. 0 where all losses are.

    Returns:
      [NUM_PROBES + groups].
    """
    transition, draws, is_end = _probe()
    losses = _on_probes(instructions, features(transition.told_ends(ends, PROBED_DISCOUNT, is_end)), draws)
    rows = losses.reshape(-1, NUM_OF_A_KIND)
    largest = jnp.max(jnp.abs(rows), axis=1)
    unit = jnp.where(largest > 0, largest, 1.0)
    return jnp.concatenate([(rows / unit[:, None]).ravel(), jnp.log(unit)])


def has_gradient(program: Program, ends: str = "gamma") -> bool:
    """Say whether a loss moves Q at all."""
    return bool(np.any(_direction(program, ends)))


@functools.lru_cache(maxsize=10_000)  # most mutations change nodes that nothing depends on
def of_loss(program: Program, ends: str) -> dict[str, np.ndarray]:
    """Return the fingerprints of a compact loss, of EQUIVALENCES; "gradient" is about 0 without one.

    "gradient" has random projections of the directions, in which directions differ that do, and the lengths.
    """
    directions, lengths = _fingerprint(program, ends)
    projected = _projections(directions.size) @ directions.ravel()
    output = jax.device_get(outputs(assemble(LOSSES, program, registers_of(LISTS)), ends))
    return {"gradient": np.concatenate([projected, lengths]), "output": output}


@functools.lru_cache(maxsize=10_000)
def of_target(program: Program, ends: str) -> dict[str, np.ndarray]:
    """The same of a compact target, which has one fingerprint, and is told of ends in one way."""
    del ends
    found = jax.device_get(target_fingerprint(assembled(program)))
    return dict.fromkeys(EQUIVALENCES, found)


@functools.cache
def _projections(size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(NUM_KEPT, size))


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
