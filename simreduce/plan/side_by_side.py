"""Several plans as one, and the order of a plan's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, ranges, row_starts
from simreduce.plan.contract import Contract, Homes
from simreduce.plan.plan import Kind, Plan


def side_by_side(plans: Sequence[Plan], devices: Sequence[str]) -> Plan:
    """Return one plan of all `plans` on `devices`, which include all their devices.

    The plans follow each other in program order, and no op waits for an op of another plan.
    Addresses follow each other likewise. Contributors keep their numbers, and their homes within
    the addresses of their plan. The collective is the first plan's.
    """
    index = {name: i for i, name in enumerate(devices)}
    moved = [_on(plan, [index[name] for name in plan.devices], len(devices)) for plan in plans]
    tops = [max(int(p.hi.max(initial=0)), int(p.contract.hi.max(initial=0))) for p in moved]
    room = row_starts(np.array(tops))[:-1]
    base = row_starts(np.array([len(p) for p in moved]))[:-1]

    def join(name: str, by: Ints | None = None) -> AnyInts:
        columns = [getattr(p, name) for p in moved]
        if by is not None:
            columns = [(c + k).astype(c.dtype) for c, k in zip(columns, by, strict=True)]
        return np.concatenate(columns)

    def starts(name: str) -> AnyInts:
        counts = np.concatenate([np.diff(getattr(p, name)) for p in moved])
        return row_starts(counts).astype(np.int32)

    return Plan(
        devices=tuple(devices),
        kind=join("kind"),
        device=join("device"),
        lo=np.concatenate(
            [np.add(p.lo, k, dtype=np.int64) for p, k in zip(moved, room, strict=True)]
        ),
        hi=np.concatenate(
            [np.add(p.hi, k, dtype=np.int64) for p, k in zip(moved, room, strict=True)]
        ),
        dtype=join("dtype"),
        arg=join("arg"),
        stream=join("stream"),
        executor=join("executor"),
        operand_start=starts("operand_start"),
        operands=join("operands", base),
        control_start=starts("control_start"),
        controls=join("controls", base),
        contract=_join_contracts([p.contract for p in moved], room, tops),
    )


def _on(plan: Plan, place: Sequence[int], devices: int) -> Plan:
    """`plan` with device d renumbered as place[d] of `devices`, streams too."""
    to = np.array(place, dtype=np.int32)
    channel, owner = np.divmod(plan.stream, max(len(plan.devices), 1))
    stream = np.where(plan.stream < 0, plan.stream, channel * devices + to[owner]).astype(
        plan.stream.dtype
    )
    homes = tuple(
        Homes(lo, {k: int(to[home]) for k, home in device.items()})
        for lo, device in plan.contract.homes
    )
    contract = replace(plan.contract, device=to[plan.contract.device], homes=homes)
    return replace(plan, device=to[plan.device], stream=stream, contract=contract)


def _join_contracts(contracts: Sequence[Contract], room: Ints, tops: Sequence[int]) -> Contract:
    """All promises. The addresses of plan i begin at `room[i]`, and there are `tops[i]` of them."""
    first = row_starts(np.array([len(c.sets) for c in contracts]))[:-1].astype(np.int32)
    pairs = list(zip(contracts, room, strict=True))
    return Contract(
        collective=contracts[0].collective,
        device=np.concatenate([c.device for c in contracts]),
        lo=np.concatenate([np.add(c.lo, k, dtype=np.int64) for c, k in pairs]),
        hi=np.concatenate([np.add(c.hi, k, dtype=np.int64) for c, k in pairs]),
        dtype=np.concatenate([c.dtype for c in contracts]),
        members=np.concatenate([c.members + k for c, k in zip(contracts, first, strict=True)]),
        divisor=np.concatenate([c.divisor for c in contracts]),
        sets=tuple(s for c in contracts for s in c.sets),
        homes=_join_homes(contracts, room, tops),
    )


def _join_homes(
    contracts: Sequence[Contract], room: Ints, tops: Sequence[int]
) -> tuple[Homes, ...]:
    """The homes of every contract, within the addresses of its plan only."""
    homes: list[Homes] = []
    for contract, base, top in zip(contracts, room.tolist(), tops, strict=True):
        for lo, device in (Homes(0, {}), *contract.homes):
            if lo >= top:
                continue
            if homes and homes[-1].lo == base + lo:
                homes.pop()
            if device != (homes[-1].device if homes else {}):
                homes.append(Homes(base + lo, device))
    return tuple(homes)


def results_last(plan: Plan, key: Sequence[int]) -> Plan:
    """`plan` with its OUTPUTs at the end, in ascending `key` (one per OUTPUT, in program order;
    ties keep it).
    """
    is_output = plan.kind == Kind.OUTPUT
    outputs = np.flatnonzero(is_output)[np.argsort(np.asarray(key, dtype=np.int64), kind="stable")]
    order = np.concatenate([np.flatnonzero(~is_output), outputs])
    place = np.empty(len(plan), dtype=np.int64)
    place[order] = np.arange(len(plan))

    def permute(start: AnyInts, items: AnyInts) -> tuple[AnyInts, AnyInts]:
        counts = np.diff(start)[order]
        moved = place[items[ranges(start[:-1][order], counts)]].astype(items.dtype)
        return row_starts(counts).astype(start.dtype), moved

    operand_start, operands = permute(plan.operand_start, plan.operands)
    control_start, controls = permute(plan.control_start, plan.controls)
    names = ("kind", "device", "lo", "hi", "dtype", "arg", "stream", "executor")
    return replace(
        plan,
        **{name: getattr(plan, name)[order] for name in names},
        operand_start=operand_start,
        operands=operands,
        control_start=control_start,
        controls=controls,
    )
