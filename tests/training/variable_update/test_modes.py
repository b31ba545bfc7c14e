"""The plans of tf_cnn_benchmarks' variable-update modes: who sends what to whom, and that it is
right.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.plan import Kind, Plan, verify
from simreduce.planners.layouts import Layout, layout
from simreduce.topology import load_topology
from simreduce.training.variable_update import MODES, Flags, least_loaded, variable_update
from simreduce.workload import Gradient, Workload
from simreduce.workload.loader import load_workload
from tests.planners.algorithms.test_nccl_and_hybrids import tasks_of
from tests.planners.algorithms.transfers import adds, transfers


def gradients(*elements: int) -> Workload:
    return Workload("test", tuple(Gradient(f"g{i}", n) for i, n in enumerate(elements)))


def planned(mode: str, shape: Layout, *elements: int, **flags: object) -> Plan:
    plan = variable_update(mode, gradients(*elements), shape, Flags(**flags))
    assert verify(plan) == []
    return plan


def test_variables_go_to_the_device_with_the_least():
    assert least_loaded([10, 3, 4, 1, 9, 3, 3], [0, 1]) == [0, 1, 1, 1, 1, 0, 0]


def test_resnet50_variables_without_packing_fill_the_gpus_evenly():
    elements = [g.elements for g in load_workload("resnet50").gradients]
    placed = least_loaded(elements, range(8))
    load = [
        sum(n for n, d in zip(elements, placed, strict=True) if d == device) for device in range(8)
    ]

    assert max(load) - min(load) <= max(elements)


def test_local_parameter_server_on_gpus():
    """Gradients of 10, 3 and 4 elements: the first variable on g0, the others on g1; sums there,
    copies back.
    """
    plan = planned("parameter_server", tasks_of(1, 2), 10, 3, 4)
    both = {("w0/g1", "w0/g0", 10): 1, ("w0/g0", "w0/g1", 10): 1,
            ("w0/g0", "w0/g1", 3): 1, ("w0/g1", "w0/g0", 3): 1,
            ("w0/g0", "w0/g1", 4): 1, ("w0/g1", "w0/g0", 4): 1}  # fmt: skip

    assert Counter(both) == transfers(plan)
    assert Counter({("w0/g0", 2, 10): 1, ("w0/g1", 2, 3): 1, ("w0/g1", 2, 4): 1}) == adds(plan)
    assert {2} == set(plan.arg[plan.kind == Kind.SCALE].tolist())


def test_local_parameter_server_on_the_cpu():
    plan = planned("parameter_server", tasks_of(1, 2), 10, local_parameter_device="cpu")

    assert Counter(
        {
            ("w0/g0", "w0/cpu", 10): 1,
            ("w0/g1", "w0/cpu", 10): 1,
            ("w0/cpu", "w0/g0", 10): 1,
            ("w0/cpu", "w0/g1", 10): 1,
        }
    ) == transfers(plan)


def test_distributed_parameter_server_applies_each_workers_mean_separately():
    """Two workers, one server (task 0): each sums on its CPU; the variable is read once per worker
    and cached.
    """
    plan = planned("parameter_server", tasks_of(2, 2), 10, ps_tasks=(0,))
    moved = transfers(plan)

    assert moved["w1/cpu", "w0/cpu", 10] == 1  # worker 1's mean
    assert moved["w0/cpu", "w1/cpu", 10] == 1  # worker 1's cached read
    assert Counter({("w0/cpu", 2, 10): 1, ("w1/cpu", 2, 10): 1}) == adds(plan)
    assert {2} == set(plan.arg[plan.kind == Kind.SCALE].tolist())  # over the local towers only


def test_a_worker_caches_large_variables_on_its_least_loaded_gpu():
    plan = planned("parameter_server", tasks_of(2, 2), 65_535, 65_536, 70_000, ps_tasks=(0,))
    read = {(s, t): n for s, t, n in plan.copies() if s == "w0/cpu" and t.startswith("w1")}

    assert read == {
        ("w0/cpu", "w1/cpu"): 65_535,
        ("w0/cpu", "w1/g0"): 65_536,
        ("w0/cpu", "w1/g1"): 70_000,
    }


def test_distributed_replicated_averages_on_gpu_i_and_reads_once_per_worker():
    plan = planned("distributed_replicated", tasks_of(2, 2), 10, 20, ps_tasks=(1,))
    moved = transfers(plan)

    assert Counter(
        {("w0/g0", 2, 10): 1, ("w1/g0", 2, 10): 1, ("w0/g1", 2, 20): 1, ("w1/g1", 2, 20): 1}
    ) == adds(plan)
    assert moved["w0/g0", "w1/cpu", 10] == 1
    assert moved["w1/cpu", "w0/cpu", 10] == 1
    assert moved["w0/cpu", "w0/g0", 10] == 1


def test_a_variable_is_read_only_after_every_workers_update():
    plan = planned("distributed_replicated", tasks_of(2, 1), 10)
    variables = [
        op
        for op in range(len(plan))
        if plan.kind[op] == Kind.INPUT and plan.arg[op] == len(plan.devices)
    ]
    waits = plan.controls[plan.control_start[variables[0]] : plan.control_start[variables[0] + 1]]

    assert [Kind(int(plan.kind[op])) for op in waits] == [Kind.OUTPUT] * 2


def test_replicated_chooses_spec_then_hierarchical_copy_then_copies():
    shape = layout(load_topology("full:8"))

    assert (
        planned("replicated", shape, 800, hierarchical_copy=True, packing="packs=8").transfers
        == 112
    )
    assert planned("replicated", shape, 800).transfers == 14
    assert planned("replicated", shape, 800, local_parameter_device="cpu").transfers == 16
    assert planned("replicated", shape, 800, all_reduce_spec="xring").transfers == 112


def test_horovod_reduces_every_gradient_over_all_gpus():
    plan = planned("horovod", tasks_of(2, 2), 40, 80)

    assert {"w0/g0", "w0/g1", "w1/g0", "w1/g1"} == {s for s, _, _ in plan.copies()}


def test_independent_moves_nothing():
    assert planned("independent", tasks_of(1, 2), 10).transfers == 0


@pytest.mark.parametrize(
    ("mode", "workers", "flags", "says"),
    [
        ("replicated", 1, {"all_reduce_spec": "pscpu:2k:xring"}, "one range"),
        ("replicated", 2, {}, "one machine"),
        (
            "replicated",
            1,
            {"hierarchical_copy": True, "network_topology": "dgx2"},
            "one of dgx1, gcp_v100",
        ),
        ("distributed_all_reduce", 2, {}, "needs an all_reduce_spec"),
        ("distributed_all_reduce", 2, {"all_reduce_spec": "nccl"}, "nccl alone"),
        ("collective_all_reduce", 2, {"all_reduce_spec": "xring"}, "collective or collective#2"),
        (
            "collective_all_reduce",
            2,
            {"all_reduce_spec": "collective:2k:collective"},
            "collective or collective#2",
        ),
        ("horovod", 2, {"all_reduce_spec": "nccl"}, "no all_reduce_spec"),
        ("parameter_server", 1, {"local_parameter_device": "tpu"}, "cpu or gpu"),
        ("parameter_server", 2, {"ps_tasks": (5,)}, "the tasks are 0 to 1"),
        ("parameter_servre", 1, {}, "did you mean 'parameter_server'"),
    ],
)
def test_what_modes_do_not_accept(mode, workers, flags, says):
    with pytest.raises(StrategyError, match=says):
        variable_update(mode, gradients(10, 5000), tasks_of(workers, 2), Flags(**flags))


@given(
    st.sampled_from(sorted(MODES)),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.integers(0, 100_000), min_size=1, max_size=6),
    st.sampled_from(["cpu", "gpu"]),
)
def test_every_mode_verifies_or_says_why_not(mode, workers, gpus, sizes, device):
    spec = {"distributed_all_reduce": "psgpu", "collective_all_reduce": "collective"}.get(mode, "")
    flags = Flags(local_parameter_device=device, all_reduce_spec=spec)
    try:
        plan = variable_update(mode, gradients(*sizes), tasks_of(workers, gpus), flags)
    except StrategyError:
        assert (mode == "replicated" and workers > 1) or (
            mode == "collective_all_reduce" and workers * gpus == 1
        )
        return

    assert verify(plan) == []
