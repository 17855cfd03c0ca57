"""What counts as the same program, among many."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta.programs.equivalence import SAME, Rows, of_loss
from meta.programs.evaluation import LISTS, Draws, Transition, assemble, features, interpret, registers_of
from meta.programs.generation import mutate, random_program
from meta.programs.language import LOSSES, compact, parse

ACTIONS = 3


def test_what_is_the_same_is_found_among_many():
    rng = np.random.default_rng(0)
    known, rows = Rows(), rng.normal(size=(200, 30)).astype(np.float32)
    assert known.same(rows[0]) is None
    for row in rows:
        known.append(row)
    for i in (0, 63, 64, 199):
        nudge = 0.9 * SAME * rng.choice([-1, 1], 30)
        assert known.same(rows[i] + nudge) == i and known.same(rows[i] + 1.2 * nudge) is None
    known.append(rows[5] + 0.5 * SAME)
    assert known.same(rows[5]) == 5 and known.same(rows[5] + 0.4 * SAME) == 200


def fresh(seed, scale, is_end, num):
    """Transitions that no program was probed on."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))
    lists = {name: scale * (normal(num, 1) + normal(num, ACTIONS)) for name in LISTS}
    gamma, action = jnp.full(num, 0.0 if is_end else 0.99), jnp.asarray(rng.integers(ACTIONS, size=num))
    transition = Transition(lists, action, min(1.0, scale) * normal(num), gamma, normal(num, 4), normal(num, 4))
    uniform = jnp.asarray(rng.uniform(size=(num, LOSSES.max_nodes)))
    return transition, Draws(normal(num, LOSSES.max_nodes), uniform)


@functools.partial(jax.jit, static_argnums=1)
def gradients(instructions, num):
    found = []
    for i, (scale, is_end) in enumerate((x, y) for x in (0.15, 0.5, 1.5, 5.0, 15.0) for y in (False, True)):
        transition, draws = fresh(1000 + i, scale, is_end, num)

        def loss(lists, transition=transition, draws=draws):
            one = lambda given, draws: interpret(instructions, draws, given[:, None])[0]
            return jnp.sum(jax.vmap(one, (1, 0))(features(transition._replace(lists=lists)), draws))

        of_lists = jax.grad(loss)(transition.lists)
        found.append(jnp.concatenate([of_lists[name].ravel() for name in LISTS if name[0] == "Q"]))
    return jnp.stack(found)


def unit(x):
    scaled = x / max(np.max(np.abs(x)), 1e-300)
    return scaled / max(np.linalg.norm(scaled), 1e-300)


def distance(one, other):
    """The largest distance of directions, over sizes of values: at ends, elsewhere, and of both."""
    pairs = [*zip(one, other, strict=True), *zip(one.reshape(5, -1), other.reshape(5, -1), strict=True)]
    return max(np.linalg.norm(unit(x) - unit(y)) for x, y in pairs)


def proposals(num, seed):
    """Programs such as a search proposes."""
    rng, found = np.random.default_rng(seed), []
    for i in range(num):
        if i < num // 4 or rng.random() < 0.05:
            found.append(random_program(LOSSES, rng, parse(LOSSES, "Q(s)[a]")))
        else:
            found.append(mutate(LOSSES, rng, found[rng.integers(len(found))], 2))
    return list(dict.fromkeys(compact(LOSSES, x) for x in found))


@pytest.mark.usefixtures("float64")
def test_few_programs_are_taken_for_another():
    """Of those that are joined, few have another gradient on fresh transitions; of those that are not, few the same."""
    known, first, joined = Rows(), [], []
    for program in proposals(30_000, seed=5):
        own = of_loss(program, "gamma")["gradient"]
        if np.max(np.abs(own)) < SAME:
            continue
        if (number := known.same(own)) is None:
            known.append(own)
            first.append(program)
        else:
            joined.append((first[number], program))
    of = lambda program, num=40: np.asarray(gradients(assemble(LOSSES, program, registers_of(LISTS)), num))
    found = {program: of(program) for program in {*first, *(x for pair in joined for x in pair)}}
    is_false = [distance(found[one], found[other]) > 0.1 for one, other in joined]
    rows = np.stack([np.concatenate([unit(x) for x in found[program]]) for program in first])
    order = np.argsort(rows @ np.random.default_rng(0).normal(size=rows.shape[1]))
    beside = [(first[i], first[j]) for i, j in zip(order[:-1], order[1:], strict=True)]
    beside = [pair for pair in beside if distance(*(found[x] for x in pair)) < 1e-6]
    num_missed = sum(distance(*(of(x, 4000) for x in pair)) < 1e-6 for pair in beside)
    assert len(joined) > 700
    assert np.mean(is_false) <= 0.01
    assert num_missed <= 0.01 * len(joined)
