"""A plan as TensorFlow ops: each op of the plan is one op on its device, and waits for what the
plan says.

| plan | TensorFlow |
| --- | --- |
| INPUT | `ReadVariableOp`: what a step is given stays on its device, so that no feed is timed |
| COPY | an op on the destination that reads the source: `DeepCopy` between CPU devices of one
process, where TensorFlow would share the buffer instead of copying it, else `Identity`, as the
transfer is the copy |
| ADD | `AddV2` of two, `AddN` of more |
| SLICE, CONCAT, CAST, SCALE | `Slice`, `ConcatV2`, `Cast`, `RealDiv` (`FloorDiv` of whole numbers)
|
| OUTPUT | its operand, which the route keeps on the device |

A view of an operand is a `Slice` on the operand's device, which TensorFlow makes without copying
where it begins and ends at 64 bytes. A CONCAT in place makes no op: its value is the list of its
parts, which are joined where an op needs them as one.

Ops wait (control edges, streams) by control edges. For a COPY these are on an `Identity` beside the
source, as a receive is posted as soon as the step starts. An edge from another device is a message
without contents, which the simulator does not count. `nccl` ops are copies and sums like others:
CPUs have no NCCL.

Plans for CPU devices of one process have been through `make_ops_explicit`: they have neither views
nor copies that wait.

Nothing may be rewritten, or the executed graph would not be the plan: see `execution`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.plan import Kind, Plan
from simreduce.plan.plan import IN_PLACE
from simreduce_validate.running.placement import is_cpu, process
from simreduce_validate.running.processes import waits
from simreduce_validate.running.program import Made, Program

ops = tf.raw_ops


class Piece(NamedTuple):
    """Elements [lo, hi) of an address space, as a tensor."""

    lo: int
    hi: int
    tensor: Any


Pieces: TypeAlias = tuple[Piece, ...]
"""A value: adjacent intervals on one device. All but CONCATs in place are one."""


def program(plan: Plan, place: Sequence[str], chained: int = 1) -> Program:
    """The plan as a program, `chained` times in a row in one step. `place` is the TensorFlow device
    of every device.

    InputError for what TensorFlow would do elsewhere than the plan says.
    """
    int32 = dtypes.code("int32")
    if not all(map(is_cpu, place)) and (plan.dtype == int32).any():
        raise InputError(
            "int32: TensorFlow keeps it in the memory of the host, not of the GPU; use int64 or a "
            "float"
        )
    return Program(plan, tuple(place), lambda given: emit(plan, place, given, chained), chained)


def emit(plan: Plan, place: Sequence[str], given: Mapping[int, Any], chained: int = 1) -> Made:
    """Add the ops of `plan` to the current graph, `chained` times in a row; what its OUTPUTs are
    the last time.

    `given` is the variable of every INPUT, by op. On every device, a repetition starts when all
    results of the one before it are there, as in `simreduce.repeat`.
    """
    emission, loose = _Emission(plan, place, given), []
    for number in range(chained):
        emission.add(f"again{number}/" if number else "")
        # Empty parts, and what no op of the plan reads. TensorFlow would leave out what leads to
        # nothing.
        loose += [p.tensor for pieces in emission.made for p in pieces if not p.tensor.consumers()]
    outputs = np.flatnonzero(plan.kind == Kind.OUTPUT).tolist()
    results = {op: [piece.tensor for piece in emission.made[op]] for op in outputs}
    return Made(results, loose)


class _Emission:
    def __init__(self, plan: Plan, place: Sequence[str], given: Mapping[int, Any]) -> None:
        self.plan, self.place, self.given = plan, place, given
        self.types = [tf.dtypes.as_dtype(name) for name in dtypes.NAMES]
        self.made: list[Pieces] = []
        self.views: dict[tuple[int, int, int], Any] = {}
        self.sent: set[tuple[str, int]] = set()
        self.prefix = ""
        self.gates: dict[int, Any] = {}
        self.numbers: dict[tuple[int, int], Any] = {}

    def add(self, prefix: str) -> None:
        """The whole plan once; names begin with `prefix`."""
        plan = self.plan
        self.prefix, self.gates = prefix, self._gates(prefix)
        self.made, self.views = [], {}
        rows = zip(
            waits(plan),
            plan.kind.tolist(),
            plan.device.tolist(),
            plan.lo.tolist(),
            plan.hi.tolist(),
            strict=True,
        )
        for (op, before), kind, device, lo, hi in rows:
            operands = plan.operands_of(op)
            # What the op reads it waits for anyway.
            control = [
                p.tensor.op
                for v in dict.fromkeys(before)
                if v not in operands
                for p in self.made[v]
            ]
            self.made.append(self._op(op, Kind(kind), device, lo, hi, operands, control))

    def _gates(self, prefix: str) -> dict[int, Any]:
        """By device, an op that is done when all results of the repetition before are there."""
        results: dict[int, list[Any]] = {}
        for op, pieces in enumerate(self.made):
            if self.plan.kind[op] == Kind.OUTPUT:
                results.setdefault(int(self.plan.device[op]), []).extend(
                    p.tensor.op for p in pieces
                )
        gates = {}
        for device, waited in results.items():
            with tf.device(self.place[device]), tf.control_dependencies(waited):
                gates[device] = tf.no_op(name=f"{prefix}gate{device}")
        return gates

    def _op(
        self,
        op: int,
        kind: Kind,
        device: int,
        lo: int,
        hi: int,
        operands: list[int],
        control: list[Any],
    ) -> Pieces:
        plan, name = self.plan, f"{self.prefix}op{op}"
        if kind == Kind.COPY:
            return (Piece(lo, hi, self._copy(name, operands[0], device, lo, hi, control)),)
        if kind == Kind.CONCAT and plan.arg[op] == IN_PLACE:
            pieces = tuple(p for v in operands for p in self.made[v])
            return self._hold_back(name, pieces, device, control)
        if kind == Kind.OUTPUT:
            pieces = self.made[operands[0]]
            if (pieces[0].lo, pieces[-1].hi) != (lo, hi):
                pieces = (Piece(lo, hi, self._view(operands[0], lo, hi)),)
            return self._hold_back(name, pieces, device, control)
        read = [self._view(v, *self._part(v, kind, lo, hi)) for v in operands]
        with tf.device(self.place[device]), tf.control_dependencies(control):
            return (Piece(lo, hi, self._local(op, name, kind, device, read)),)

    def _part(self, value: int, kind: Kind, lo: int, hi: int) -> tuple[int, int]:
        """The interval of its operand `value` that an op reads: SLICE and CONCAT take all of it."""
        if kind in (Kind.SLICE, Kind.CONCAT):
            return int(self.plan.lo[value]), int(self.plan.hi[value])
        return lo, hi

    def _local(self, op: int, name: str, kind: Kind, device: int, read: list[Any]) -> Any:
        """An op that reads tensors on its own device, as one tensor."""
        plan = self.plan
        dtype, elements = self.types[plan.dtype[op]], int(plan.hi[op] - plan.lo[op])
        match kind:
            case Kind.INPUT:
                with tf.control_dependencies([self.gates[device]] if device in self.gates else []):
                    tensor = ops.ReadVariableOp(resource=self.given[op], dtype=dtype, name=name)
                tensor.set_shape([elements])
                return tensor
            case Kind.SLICE:
                begin = int(plan.lo[op] - plan.lo[plan.operands_of(op)[0]])
                return ops.Slice(
                    input=read[0],
                    begin=self._number(begin, device),
                    size=self._number(elements, device),
                    name=name,
                )
            case Kind.CONCAT:
                # TensorFlow's ConcatV2 takes two or more.
                return (
                    ops.ConcatV2(values=read, axis=0, name=name)
                    if len(read) > 1
                    else ops.Identity(input=read[0], name=name)
                )
            case Kind.ADD:
                if len(read) == 2:
                    return ops.AddV2(x=read[0], y=read[1], name=name)
                return (
                    ops.AddN(inputs=read, name=name)
                    if read[1:]
                    else ops.Identity(input=read[0], name=name)
                )
            case Kind.SCALE:
                divide = ops.RealDiv if dtype.is_floating else ops.FloorDiv
                return divide(x=read[0], y=tf.constant(int(plan.arg[op]), dtype), name=name)
            case Kind.CAST:
                return ops.Cast(x=read[0], DstT=dtype, name=name)
        raise AssertionError(kind)

    def _number(self, number: int, device: int) -> Any:
        """A vector of one number on a device, made once: an executor has less to do."""
        key = number, device
        if key not in self.numbers:
            with tf.control_dependencies(None):
                self.numbers[key] = tf.constant([number], name=f"number{number}_{device}")
        return self.numbers[key]

    def _copy(
        self, name: str, value: int, device: int, lo: int, hi: int, control: list[Any]
    ) -> Any:
        source = self.place[self.plan.device[value]]
        target = self.place[device]
        tensor = self._view(value, lo, hi)
        if control or (tensor.name, device) in self.sent:
            # Also for a second copy to one device: TensorFlow would send the tensor once for both.
            with tf.device(source), tf.control_dependencies(control):
                tensor = ops.Identity(input=tensor, name=f"{name}/source")
        self.sent.add((tensor.name, device))
        shares = is_cpu(source) and is_cpu(target) and process(source) == process(target)
        with tf.device(target):
            return (
                ops.DeepCopy(x=tensor, name=name)
                if shares
                else ops.Identity(input=tensor, name=name)
            )

    def _hold_back(self, name: str, pieces: Pieces, device: int, control: list[Any]) -> Pieces:
        """The same value, not before `control`."""
        if not control:
            return pieces
        with tf.device(self.place[device]), tf.control_dependencies(control):
            return tuple(
                piece._replace(tensor=ops.Identity(input=piece.tensor, name=f"{name}/{i}"))
                for i, piece in enumerate(pieces)
            )

    def _view(self, value: int, lo: int, hi: int) -> Any:
        """Elements [lo, hi) of a value as one tensor, on the value's device."""
        pieces = self.made[value]
        if len(pieces) == 1 and (pieces[0].lo, pieces[0].hi) == (lo, hi):
            return pieces[0].tensor
        key = value, lo, hi
        if key not in self.views:
            name = f"{self.prefix}op{value}/{lo}to{hi}"
            with tf.device(self.place[self.plan.device[value]]):
                parts = [_cut(p, lo, hi, name) for p in pieces if p.lo < hi and p.hi > lo]
                parts = parts or [_cut(pieces[0], pieces[0].lo, pieces[0].lo, name)]
                self.views[key] = (
                    ops.ConcatV2(values=parts, axis=0, name=name) if parts[1:] else parts[0]
                )
        return self.views[key]


def _cut(piece: Piece, lo: int, hi: int, name: str) -> Any:
    """The part of a piece that lies in [lo, hi)."""
    a, b = max(piece.lo, lo), min(piece.hi, hi)
    if (a, b) == (piece.lo, piece.hi):
        return piece.tensor
    return ops.Slice(input=piece.tensor, begin=[a - piece.lo], size=[b - a], name=f"{name}/part")
