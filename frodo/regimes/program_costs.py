"""What a compiled program costs: the FLOPs of its products, the bytes that it moves, and its memory.

XLA's own analysis counts what is in a loop once. Here the text of the compiled program is walked, and a loop counts as
often as it is taken, which the compiler writes beside it. FLOPs are those of matrix products and convolutions, two for
each multiplication: the peak of an accelerator is that of these. The arithmetic of single numbers shows in the bytes.
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from frodo.devices import cpu_devices

_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.+?) ([a-z][a-z\-]*)\((.*)$")
_SHAPE = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_IS_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id")
_IS_SLICE = ("dynamic-slice", "gather", "slice")


class Costs(NamedTuple):
    """What one call of a program costs; bytes but for `flops`.

    Attributes:
      flops: of matrix products and convolutions.
      moved: read from memory and written to it, if what is fused stays out of it.
      arguments, outputs: of the call; `aliased` of the outputs lie where arguments lay.
      temporary: what it needs besides.
    """

    flops: float
    moved: float
    arguments: int = 0
    outputs: int = 0
    aliased: int = 0
    temporary: int = 0

    @property
    def memory(self) -> int:
        """All that lies in memory while it runs."""
        return self.arguments + self.outputs - self.aliased + self.temporary

    def times(self, num: int) -> "Costs":
        """Return the costs of so many calls, one after the other."""
        return self._replace(flops=num * self.flops, moved=num * self.moved)


class _Instruction(NamedTuple):
    shape: str
    kind: str
    operands: list[str]
    attributes: str


_Computation = dict[str, _Instruction]  # by name, in order; the last one is the result


def costs_of(fn: Callable[..., Any], *arguments: Any, donated: int | tuple[int, ...] = ()) -> Costs:
    """Compile a function for arguments of which only shapes and dtypes count, and say what a call costs.

    Nothing is allocated. It is compiled for the CPU, whatever else is there: the products of accelerators are calls of
    libraries, in which no FLOPs can be counted. Instructions are not optimised, which changes no product and no memory.
    """
    options: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    with jax.default_device(cpu_devices()[0]):
        lowered = jax.jit(fn, donate_argnums=donated).lower(*arguments)
    return costs_of_compiled(lowered.compile(compiler_options=options))


def costs_of_compiled(compiled: jax.stages.Compiled) -> Costs:
    """Return what a call of a compiled program costs."""
    memory: Any = compiled.memory_analysis()
    flops, moved = _count(compiled.as_text() or "")
    return Costs(
        flops,
        moved,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
    )


def _count(text: str) -> tuple[float, float]:
    """Return FLOPs and bytes of a compiled program, by its text."""
    computations: dict[str, _Computation] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            current = computations.setdefault(found[2], {})
            entry = found[2] if found[1] else entry
        elif found := _INSTRUCTION.match(line):
            arguments, _, attributes = found[4].partition(")")
            operands = re.findall(r"%([\w.\-]+)", arguments)
            current[found[1]] = _Instruction(found[2], found[3], operands, attributes)
    known: dict[str, tuple[float, float]] = {}

    def total(name: str) -> tuple[float, float]:
        """Return what a computation costs with all that it calls."""
        if name not in known:
            own = computations[name]
            parts = [of_instruction(own, one) for one in own.values()]
            known[name] = sum(flops for flops, _ in parts), sum(moved for _, moved in parts)
        return known[name]

    def of_instruction(own: _Computation, one: _Instruction) -> tuple[float, float]:
        if one.kind == "while":
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', one.attributes)
            flops, moved = total(_called(one, "body")[0])
            return flops * (num := int(trips[1]) if trips else 1), moved * num
        if one.kind == "conditional":
            branches = _called(one, "branch_computations", "true_computation", "false_computation")
            return max(total(branch) for branch in branches)
        if one.kind == "call":
            return total(_called(one, "to_apply")[0])
        if one.kind == "fusion":
            (fused,) = _called(one, "calls")
            return total(fused)[0], _moved_by_fusion(own, one, computations[fused])
        return _flops(own, one), _moved(own, one)

    return total(entry)


def _called(one: _Instruction, *names: str) -> list[str]:
    """Return the computations that an instruction calls by these attributes."""
    found = [re.search(rf"\b{name}=\{{?((?:%[\w.\-]+(?:, )?)+)", one.attributes) for name in names]
    return [name for match in found if match for name in re.findall(r"%([\w.\-]+)", match[1])]


def _flops(own: _Computation, one: _Instruction) -> float:
    if one.kind == "dot":
        sizes = _dims(own[one.operands[0]].shape)
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)
        contracted = [sizes[int(axis)] for axis in axes[1].split(",")] if axes and axes[1] else []
        return 2.0 * math.prod(_dims(one.shape)) * math.prod(contracted)
    if one.kind == "convolution":
        labels = re.search(r"dim_labels=\w+_(\w+)->", one.attributes)
        assert labels
        kernel = _dims(own[one.operands[1]].shape)
        return 2.0 * math.prod(_dims(one.shape)) * math.prod(kernel) / kernel[labels[1].index("o")]
    return 0.0


def _moved(own: _Computation, one: _Instruction) -> float:
    """Return the bytes of an instruction: a slice reads what it takes, an update writes what it puts."""
    if one.kind in _IS_FREE:
        return 0.0
    if one.kind in _IS_SLICE:
        return 2.0 * _bytes(one.shape)
    if one.kind in ("dynamic-update-slice", "scatter"):
        return 2.0 * _bytes(own[one.operands[-1 if one.kind == "scatter" else 1]].shape)
    return _bytes(one.shape) + sum(_bytes(own[name].shape) for name in one.operands)


def _moved_by_fusion(own: _Computation, one: _Instruction, fused: _Computation) -> float:
    """Return the bytes that a fusion reads and writes."""
    result = list(fused.values())[-1]
    is_update = result.kind == "dynamic-update-slice"
    moved = _bytes(fused[result.operands[1]].shape if is_update else one.shape)
    for name, parameter in fused.items():
        if parameter.kind != "parameter":
            continue
        users = [user for user in fused.values() if name in user.operands]
        if users and all(user.kind in _IS_SLICE and user.operands[0] == name for user in users):
            moved += sum(_bytes(user.shape) for user in users)
        elif not (is_update and users == [result] and result.operands[0] == name):
            moved += _bytes(parameter.shape)
    return moved


def _dims(shape: str) -> list[int]:
    match = _SHAPE.search(shape)
    assert match, shape
    return [int(size) for size in match[2].split(",") if size]


def _bytes(shape: str) -> float:
    """Return the bytes of an array, or of all in a tuple."""
    return sum(_width(kind) * math.prod(int(x) for x in sizes.split(",") if x) for kind, sizes in _SHAPE.findall(shape))


def _width(kind: str) -> float:
    """Return the bytes of a number of a type, such as f32, bf16, u8 or pred."""
    bits = re.search(r"\d+", kind)
    return int(bits[0]) / 8 if bits else 1.0
