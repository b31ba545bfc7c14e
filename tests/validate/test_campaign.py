"""What a campaign measures on which devices, before any of them is started."""

from __future__ import annotations

import re
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from simreduce_validate.campaign import Campaign, split_by_share
from simreduce_validate.devices import refusals
from simreduce_validate.running import Builtin, Measurement
from simreduce_validate.running.backend import Backend
from simreduce_validate.running.execution import StepCounts
from simreduce_validate.running.protocol import FirstStep
from simreduce_validate.validate import validate

import simreduce as sr
from simreduce.app.cli import main
from simreduce.engine import NOMINAL
from simreduce.errors import InputError
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor
from tests.validate.devices import devices

MIB = 1 << 20


def gpus(topology="dgx-h100", **options):
    return devices(topology, backend="gpu", **options)


def campaign(where, **options):
    return Campaign(where, where.setup(NOMINAL), **options)


def test_on_gpus_nccl_is_measured_by_its_op():
    """With the prediction of its plan; all else that can run is a plan of copies and sums."""
    where, workload = gpus(), tensor(MIB, 0)
    strategies = [s for s in map(parse_strategy, ALGORITHMS) if not refusals(s, where, [workload])]
    asked = campaign(where)
    cases = asked.cases(workload, strategies)
    by_op = {case.algorithm: case.work for case in cases if isinstance(case.work, Builtin)}
    nccl = asked.compile("nccl", workload)

    assert {"nccl": Builtin("NcclAllReduce", (MIB // 4,), 8, 0)} == by_op
    assert [asked.predict(nccl)] == [c.predicted for c in cases if c.algorithm == "nccl"]
    assert len(cases) > 20
    assert not any(case.plan.executor.any() for case in cases if case.algorithm != "nccl")


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("nccl", {}, ""),
        ("nccl", {"pretend": True}, "NCCL has no CPU devices"),
        ("nccl", {"split": 2}, "NCCL takes no parts of a GPU, as --split makes"),
        ("nccl:ring", {}, "TensorFlow leaves all choices to NCCL, so only nccl can be measured"),
        ("nccl+mean", {}, "TensorFlow leaves all choices to NCCL, so only nccl can be measured"),
        ("nccl+packs=2", {"pretend": True}, "NCCL has no CPU devices"),
        ("ring", {"split": 2}, ""),
        ("in_switch", {}, "TensorFlow has no device for nvswitch0"),
    ],
)
def test_what_nccl_cannot_run_is_refused_in_one_sentence(text, options, reason):
    found = refusals(parse_strategy(text), gpus(**options), [tensor(MIB, 0)])

    assert [reason] * bool(reason) == found


def test_the_op_of_nccl_is_not_chained():
    chained = refusals(parse_strategy("nccl"), gpus(), [tensor(MIB, 0)], chained=2)

    assert ["TensorFlow's op of NCCL is not chained"] == chained
    assert [] == refusals(parse_strategy("ring"), gpus(), [tensor(MIB, 0)], chained=2)


def test_nccl_by_name_is_refused_before_a_device_is_started(monkeypatch, capsys):
    """Also as one of TensorFlow's own, with every fault at once."""
    line = "validate switch:4 --algo ring,nccl --builtin NcclAllReduce,CollectiveReduceV2:nccl"
    monkeypatch.setattr("sys.argv", ["simreduce", *line.split()[1:]])
    with pytest.raises(SystemExit) as end:
        main(validate)
    err = capsys.readouterr().err

    assert 2 == end.value.code
    assert 2 == len(re.findall("--builtin .*: NCCL has no CPU devices", err))


def test_copies_are_no_plan_of_nccls_on_gpus():
    """A plan of NCCL's is not emitted as copies there, whoever asks."""
    where = gpus()
    backend = Backend("gpu", where.layout.devices, where.stage.place, (), 1.0, {}, None, None)
    plan = campaign(where).compile("nccl", tensor(1024, 0))

    with pytest.raises(InputError, match="the plan is NCCL's, which copies are not"):
        backend.prepare(plan)


shares = st.lists(st.floats(0, 2), min_size=1, max_size=40)


@given(shares)
def test_parts_hold_every_candidate_once_and_what_has_room(shares):
    """None can take the first of the next part too; one too large stands alone."""
    parts = split_by_share(shares)
    held = [sum(shares[place] for place in part) for part in parts]

    assert list(range(len(shares))) == [place for part in parts for place in part]
    assert all(total <= 0.5 or len(part) == 1 for part, total in zip(parts, held, strict=True))
    assert all(
        total + shares[after.start] > 0.5 for total, after in zip(held[:-1], parts[1:], strict=True)
    )


class _Ready:
    """A candidate that holds memory from when it is prepared until it is released."""

    def __init__(self, backend, share):
        self.backend, self.mine = backend, share
        self.prepared = FirstStep((f"{len(backend.held)}",), (), StepCounts(), 0.0)
        backend.held.append(backend.held[-1] + share)

    def time(self, repetitions):
        return np.full(repetitions, 1e-3)

    def measured(self, seconds):
        return Measurement(seconds, self.prepared.faults, (), self.prepared)

    def release(self):
        self.backend.held.append(self.backend.held[-1] - self.mine)


class _OneGpu:
    """A backend of GPUs with little memory, which counts what candidates hold."""

    def __init__(self, where, memory):
        self.provenance = {}
        about = {"gpu_memory_bytes": memory}
        place = where.stage.place
        real = Backend("gpu", where.layout.devices, place, (), 1.0, about, None, None)
        self.share, self.held = real.share, [0.0]

    def prepare(self, work, **_):
        return _Ready(self, self.share(work))


@pytest.mark.parametrize("rounds", [None, 5])
def test_candidates_are_built_in_turns_as_memory_allows(rounds, monkeypatch):
    """Five tensors of 1 MiB each on every GPU, in half of 30 MiB: three at a time. All of them have
    as many samples as the first. Who watches gets each with the first step of its own case.
    """
    where = gpus()
    backend = _OneGpu(where, 30 * MIB)

    @contextmanager
    def opened(*_, **__):
        yield backend

    monkeypatch.setattr("simreduce_validate.devices.open_backend", opened)
    watched = {}
    asked = campaign(
        where,
        repetitions=rounds,
        watch=lambda place, _, first: watched.setdefault(place, set()).add(first.faults),
    )
    names = ["ring", "direct", "nccl", "double_tree", "halving_doubling", "xring", "psgpu"]
    cases = asked.cases(tensor(MIB, 0), [parse_strategy(name) for name in names])
    timings, _ = asked.measure([cases])

    assert names == [timing.case.algorithm for timing in timings]
    assert 3 * 5 / 30 == pytest.approx(max(backend.held))
    assert 0 == pytest.approx(backend.held[-1])
    assert 1 == len({len(timing.measured.seconds) for timing in timings})
    assert {i: {timing.faults} for i, timing in enumerate(timings)} == watched
    assert len(names) == len({timing.faults for timing in timings})


def test_cpu_devices_share_the_memory_of_the_machine():
    """Each GPU has its own."""
    where = devices("switch:4")
    plan = sr.compile("ring", tensor(MIB, 0), where.layout)
    share = {}
    for about in ({}, {"gpu_memory_bytes": 100 * MIB}):
        backend = Backend("x", where.layout.devices, where.stage.place, (), 1.0, about, None, None)
        share[len(about)] = (
            backend.share(plan),
            backend.share(Builtin("NcclAllReduce", (MIB // 4,), 4)),
        )

    assert (0.05, 0.05) == share[1]
    assert share[0][0] == share[0][1] > 0


@pytest.mark.parametrize("many", [1, 8])
def test_opening_has_time_for_every_gpu(many, monkeypatch):
    """120 s, and 30 s more for each GPU; a longer --timeout is for opening too."""
    asked = []
    child = SimpleNamespace(
        ask=lambda method, *_, seconds: asked.append((method, seconds)) or {}, close=lambda: None
    )
    monkeypatch.setattr("simreduce_validate.running.backend.Child", lambda *_: child)
    monkeypatch.setattr("simreduce_validate.running.backend.check_tensorflow", lambda: None)
    for timeout in (100.0, 1000.0):
        where = gpus(ngpus=many, timeout=timeout)
        with where.open(many):
            pass

    assert [("open", 120.0 + 30 * many), ("open", 1000.0 + 30 * many)] == asked
