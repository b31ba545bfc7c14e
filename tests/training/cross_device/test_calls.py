"""Which path a reduction takes, by version; what is refused; the order of results."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.training.cross_device import (
    AllReduceCrossDeviceOps,
    CollectiveAllReduce,
    MultiWorkerAllReduce,
    ReductionToOneDevice,
    batch_reduce,
    broadcast_variables,
    reduce,
    result_labels,
)
from simreduce.training.cross_device.one_device import PerDevice, PerDeviceSlices
from simreduce.workload import Gradient, Workload
from tests.training.cross_device.evaluate import evaluate, machine

NCCL = AllReduceCrossDeviceOps("nccl")
COPIES = AllReduceCrossDeviceOps("hierarchical_copy", num_packs=0)
VERSIONS = ("1.12", "1.14", "2.x")
CPU = 4


def by_nccl(plan):
    """Whether NCCL has a part in it."""
    return bool(plan.executor.any())


def is_star(plan, root):
    """Every copy begins or ends at `root`."""
    return all(root in (source, target) for source, target, _ in plan.copies())


class TestReduce:
    """The table of `reduce()`."""

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("devices", [[0, 1, 2, 3], [3, 1], [2, 0, 1]])
    def test_equal_device_sets_are_all_reduced(self, version, devices):
        plan = reduce(
            NCCL, "sum", PerDevice.on(devices, 16), sorted(devices), machine(), version=version
        )

        assert by_nccl(plan)
        assert verify(plan) == []

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("destinations", [[1], [3, 0], [CPU], [0, 1, 2, 3]])
    def test_other_sets_go_through_the_first_destination(self, version, destinations):
        plan = reduce(
            NCCL, "mean", PerDevice.on([0, 1, 2], 16), destinations, machine(), version=version
        )

        assert not by_nccl(plan)
        assert is_star(plan, plan.devices[destinations[0]])
        assert verify(plan) == []

    @pytest.mark.parametrize(("version", "star"), [("1.12", False), ("1.14", False), ("2.x", True)])
    def test_a_cpu_among_the_destinations_ends_the_all_reduce_from_2_on(self, version, star):
        devices = [0, 1, 2, CPU]
        plan = reduce(COPIES, "sum", PerDevice.on(devices, 16), devices, machine(), version=version)

        assert star == is_star(plan, "gpu0")
        assert verify(plan) == []

    @pytest.mark.parametrize("version", VERSIONS)
    def test_slices_go_through_one_device(self, version):
        value = PerDeviceSlices(((1, 2), (0, 3)), 8)
        plan = reduce(NCCL, "sum", value, [0, 1], machine(), version=version)

        # 1.12 takes the first destination; later the value is its own destination, so it is its
        # first device.
        assert is_star(plan, "gpu0" if version == "1.12" else "gpu1")
        assert plan.contract.collective == "sparse_gather"
        assert verify(plan) == []

    def test_one_device_is_an_identity_in_2(self):
        plan = reduce(NCCL, "mean", PerDevice.on([2], 16), 2, machine(), version="2.x")

        assert [Kind.INPUT, Kind.OUTPUT] == list(plan.kind)
        assert verify(plan) == []

    def test_nccl_on_a_cpu_is_refused_by_upstream(self):
        value = PerDevice.on([0, CPU], 16)

        assert is_star(reduce(NCCL, "sum", value, [0, CPU], machine()), "gpu0")
        with pytest.raises(StrategyError, match="cpu0 is no GPU"):
            reduce(NCCL, "sum", value, [0, CPU], machine(), faithful=True)

    @pytest.mark.parametrize("version", VERSIONS)
    def test_several_values_on_a_device_cannot_be_all_reduced(self, version):
        value = PerDevice(((0, 1), (1, 2)), 16)

        assert verify(reduce(COPIES, "mean", value, [0, 1], machine(), version=version)) == []
        with pytest.raises(StrategyError, match="several values"):
            reduce(COPIES, "mean", value, [0, 1], machine(), version=version, faithful=True)

    def test_the_mean_is_divided_on_every_device(self):
        plan = reduce(COPIES, "mean", PerDevice.on(range(4), 2), range(4), machine())
        scales = [op for op in range(len(plan)) if plan.kind[op] == Kind.SCALE]

        assert {0, 1, 2, 3} == {int(plan.device[op]) for op in scales}
        assert {4} == {int(plan.arg[op]) for op in scales}
        assert {f"gpu{d}": [[Fraction(6, 4)] * 2] for d in range(4)} == evaluate(
            plan, lambda k, _: k
        )

    def test_odd_hierarchical_copy(self):
        value = PerDevice.on(range(3), 4)

        assert verify(reduce(COPIES, "sum", value, range(3), machine())) == []
        assert "rank 2 is missing" in str(
            verify(reduce(COPIES, "sum", value, range(3), machine(), faithful=True))[0]
        )


class TestBatchReduce:
    """The table of `batch_reduce()`."""

    ALL = tuple(range(4))

    def batch(self, *sizes):
        return [(PerDevice.on(self.ALL, n), self.ALL) for n in sizes]

    @pytest.mark.parametrize("version", VERSIONS)
    def test_equal_sets_are_one_batch(self, version):
        """One pack of everything: 2(n-1) transfers in all."""
        method = AllReduceCrossDeviceOps("hierarchical_copy", num_packs=1)
        plan = batch_reduce(method, "sum", self.batch(5, 6, 7), machine(), version=version)

        assert plan.transfers == 6
        assert {18} == {n for _, _, n in plan.copies()}
        assert verify(plan) == []

    @pytest.mark.parametrize("version", VERSIONS)
    def test_one_other_set_takes_every_value_on_its_own(self, version):
        method = AllReduceCrossDeviceOps("hierarchical_copy", num_packs=1)
        pairs = [
            *self.batch(5, 6),
            (PerDevice.on([0, 1], 7), [0, 1]),
            (PerDevice.on(self.ALL, 8), [2]),
        ]
        plan = batch_reduce(method, "sum", pairs, machine(), version=version)

        assert {5: 6, 6: 6, 7: 2, 8: 3} == Counter(n for _, _, n in plan.copies())
        assert verify(plan) == []

    def sparse(self):
        pairs = self.batch(5, 6)
        pairs.insert(1, (PerDeviceSlices(tuple((d, 2) for d in self.ALL), 10), self.ALL))
        return pairs

    @pytest.mark.parametrize("version", VERSIONS)
    def test_slices_leave_the_batch_and_come_back_in_order(self, version):
        method = AllReduceCrossDeviceOps("hierarchical_copy", num_packs=1)
        plan = batch_reduce(method, "sum", self.sparse(), machine(), version=version)

        assert Counter(n for _, _, n in plan.copies())[11] == 6
        assert verify(plan) == []
        for results in evaluate(plan, lambda k, _: k).values():
            assert [5, 80, 8, 6] == [len(r) for r in results]

    @pytest.mark.parametrize("elements", [0, 5])
    @pytest.mark.parametrize("version", ["1.12", "1.14"])
    @pytest.mark.parametrize(
        "method", [MultiWorkerAllReduce("psgpu"), AllReduceCrossDeviceOps("hierarchical_copy")]
    )
    def test_slices_may_name_the_devices_in_another_order(self, method, version, elements):
        """Contributor 0 is on gpu0 for the dense value, and on gpu2 for the slices."""
        dense = PerDevice.on((0, 2), elements)
        slices = PerDeviceSlices(((2, 2), (0, 1)), 3)
        for values in ((dense, slices), (slices, dense)):
            pairs = [(value, (0, 2)) for value in values]

            assert verify(batch_reduce(method, "sum", pairs, machine(), version=version)) == []

    @pytest.mark.parametrize(
        ("version", "packs"), [("1.12", (5, 6)), ("1.14", (5, 6)), ("2.x", (11,))]
    )
    def test_upstream_takes_the_whole_batch_apart_for_them_up_to_1_14(self, version, packs):
        method = AllReduceCrossDeviceOps("hierarchical_copy", num_packs=1)
        plan = batch_reduce(method, "sum", self.sparse(), machine(), version=version, faithful=True)
        moved = Counter(n for _, _, n in plan.copies())

        assert dict.fromkeys(packs, 6) == {n: k for n, k in moved.items() if n in (5, 6, 11)}
        assert verify(plan) == []

    def test_the_cpu_test_is_not_made_for_batches(self):
        devices = (0, 1, 2, CPU)
        pairs = [(PerDevice.on(devices, 5), devices)]
        plan = batch_reduce(COPIES, "sum", pairs, machine(), version="2.x")

        assert not is_star(plan, "gpu0")
        assert verify(plan) == []

    def test_one_device_is_an_identity_in_2(self):
        pairs = [(PerDevice.on([1], 5), 1), (PerDeviceSlices(((1, 2),), 3), [1])]
        plan = batch_reduce(NCCL, "mean", pairs, machine(), version="2.x")

        assert {Kind.INPUT, Kind.OUTPUT} == set(plan.kind)
        assert verify(plan) == []

    @pytest.mark.parametrize(("faithful", "members"), [(False, 10), (True, 12)])
    def test_small_gradients_are_packed(self, faithful, members):
        method = AllReduceCrossDeviceOps(
            "hierarchical_copy", num_packs=0, agg_small_grads_max_bytes=64
        )
        plan = batch_reduce(method, "sum", self.batch(*[1] * 14), machine(), faithful=faithful)

        assert {members: 6, 14 - members: 6} == Counter(n for _, _, n in plan.copies())
        assert verify(plan) == []

    @pytest.mark.parametrize("faithful", [False, True])
    def test_results_come_in_the_order_of_the_batch(self, faithful):
        method = AllReduceCrossDeviceOps(
            "hierarchical_copy", num_packs=0, agg_small_grads_max_bytes=16
        )
        plan = batch_reduce(
            method, "sum", self.batch(100, 1, 90, 2, 3), machine(), faithful=faithful
        )

        for results in evaluate(plan, lambda k, _: k).values():
            assert [100, 1, 90, 2, 3] == [len(r) for r in results]


class TestCollective:
    """CollectiveAllReduce."""

    METHOD = CollectiveAllReduce()

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("destinations", [[1], [0, CPU], [CPU], [0, 3], [3]])
    @pytest.mark.parametrize("communication", ["auto", "nccl"])
    def test_other_destinations_wait_for_all_results(self, version, destinations, communication):
        value = PerDevice.on([2, 0, 1], 48)
        method = CollectiveAllReduce(communication=communication)
        plan = reduce(method, "mean", value, destinations, machine(), version=version)
        missing = [plan.devices[d] for d in destinations if d not in value.devices]
        late = [(s, t) for s, t, n in plan.copies() if n == 48]

        assert verify(plan) == []
        assert [("gpu2", name) for name in missing] == late  # from the first device of the value
        assert (communication == "nccl") == by_nccl(plan)
        for op in range(len(plan)):
            if plan.kind[op] == Kind.COPY and plan.hi[op] - plan.lo[op] == 48:
                waits = plan.controls[plan.control_start[op] : plan.control_start[op + 1]]
                assert {0, 1, 2} == {int(plan.device[w]) for w in waits}

    def test_a_missing_destination_is_served_by_its_own_worker(self):
        shape = machine("dgx1vx2")
        value = PerDevice.on([1, 2, 9, 10], 640)
        plan = reduce(self.METHOD, "sum", value, [0, 8, 17], shape)

        assert verify(plan) == []
        assert [("n0.gpu1", "n0.gpu0"), ("n1.gpu1", "n1.gpu0"), ("n1.gpu1", "n1.cpu0")] == [
            (s, t) for s, t, n in plan.copies() if n == 640
        ]

    def test_the_mean_divides_by_the_devices_of_all_workers(self):
        shape = machine("dgx1vx2")
        plan = reduce(self.METHOD, "mean", PerDevice.on(range(16), 64), range(16), shape)

        assert {16} == {int(a) for a, k in zip(plan.arg, plan.kind, strict=True) if k == Kind.SCALE}
        assert verify(plan) == []

    @pytest.mark.parametrize(
        ("version", "elements"), [("1.12", 16 + 16 + 16), ("1.14", 48), ("2.x", 1 + 2 + 3)]
    )
    def test_batches_are_merged_or_packed(self, version, elements):
        """One collective: up to 1.14 over a buffer with fields of 64 bytes, later over a
        concatenation.
        """
        batch = [(PerDevice.on([0, 1], n), [0, 1]) for n in (1, 2, 3)]
        plan = batch_reduce(self.METHOD, "sum", batch, machine(), version=version)

        assert verify(plan) == []
        assert 2 * elements == sum(n for _, _, n in plan.copies())

    @pytest.mark.parametrize("version", ["1.14", "2.x"])
    def test_results_come_in_the_order_of_the_batch(self, version):
        pairs = [(PerDevice.on([0, 1], n), [0, 1]) for n in (1, 20, 300)]
        plan = batch_reduce(
            CollectiveAllReduce(bytes_per_pack=1), "mean", pairs, machine(), version=version
        )

        assert verify(plan) == []
        for results in evaluate(plan, lambda k, _: k).values():
            assert [1, 20, 300] == [len(r) for r in results]

    def test_what_it_refuses(self):
        shape = machine()
        slices = PerDeviceSlices(((0, 2), (1, 2)), 3)

        with pytest.raises(StrategyError, match="does not all-reduce IndexedSlices"):
            reduce(self.METHOD, "sum", slices, [0, 1], shape, version="1.12")
        with pytest.raises(StrategyError, match="does not all-reduce IndexedSlices"):
            batch_reduce(
                self.METHOD,
                "sum",
                [(PerDevice.on([0, 1], 2), [0, 1]), (slices, [0, 1])],
                shape,
                version="1.12",
            )
        with pytest.raises(StrategyError, match="group of 2"):
            reduce(self.METHOD, "sum", PerDevice.on([0], 3), [0], shape, version="1.12")
        with pytest.raises(StrategyError, match="all GPUs or all CPUs"):
            reduce(self.METHOD, "sum", PerDevice.on([0, CPU], 3), [0], shape)
        with pytest.raises(StrategyError, match="same number of devices"):
            reduce(self.METHOD, "sum", PerDevice.on([0, 1, 8], 3), [0], machine("dgx1vx2"))
        with pytest.raises(StrategyError, match="several values"):
            reduce(self.METHOD, "sum", PerDevice(((0, 2), (1, 1)), 3), [0], shape)

    @pytest.mark.parametrize("version", ["1.14", "2.x"])
    def test_a_group_of_one_is_passed_through(self, version):
        plan = reduce(self.METHOD, "mean", PerDevice.on([1], 3), [0, 1], machine(), version=version)

        assert [("gpu1", "gpu0", 3)] == plan.copies()
        assert verify(plan) == []


class TestGather:
    """IndexedSlices of CollectiveAllReduce."""

    def test_1_14_gathers_values_then_indices(self):
        value = PerDeviceSlices(((0, 2), (1, 2), (3, 2)), 10)
        plan = reduce(CollectiveAllReduce(), "mean", value, [0, 1, 3], machine())

        assert {20: 6, 2: 6} == Counter(n for _, _, n in plan.copies())
        assert verify(plan) == []
        expected = [[Fraction(k, 3) for k in (0, 1, 2) for _ in range(20)], [0, 0, 1, 1, 2, 2]]
        assert {f"gpu{d}": expected for d in (0, 1, 3)} == evaluate(plan, lambda k, _: k)

    def test_1_14_needs_equal_lengths(self):
        with pytest.raises(StrategyError, match="have 2, 3 rows"):
            reduce(
                CollectiveAllReduce(),
                "sum",
                PerDeviceSlices(((0, 2), (1, 3)), 10),
                [0, 1],
                machine(),
            )

    def test_2_asks_for_the_lengths_first(self):
        value = PerDeviceSlices(((0, 2), (1, 2)), 10)
        plan = reduce(CollectiveAllReduce(), "sum", value, [0, 1], machine(), version="2.x")

        assert {1: 2, 20: 2, 2: 2} == Counter(n for _, _, n in plan.copies())
        assert verify(plan) == []

    @pytest.mark.parametrize("communication", ["ring", "nccl"])
    def test_2_pads_to_the_longest(self, communication):
        value = PerDeviceSlices(((0, 2), (1, 0), (2, 5)), 10)
        method = CollectiveAllReduce(communication=communication)
        plan = reduce(method, "sum", value, [0, 1, 2], machine("full:3"), version="2.x")

        assert 6 * (1 + 50 + 5) == sum(n for _, _, n in plan.copies())
        assert verify(plan) == []
        expected = [
            [k for k, rows in ((0, 2), (2, 5)) for _ in range(10 * rows)],
            [0, 0, 2, 2, 2, 2, 2],
        ]
        assert {f"gpu{d}": expected for d in range(3)} == evaluate(plan, lambda k, _: k)

    def test_nccl_launches_the_indices_after_the_values(self):
        value = PerDeviceSlices(((0, 4), (1, 4)), 10)
        plan = reduce(
            CollectiveAllReduce(communication="nccl"),
            "sum",
            value,
            [0, 1],
            machine(),
            version="2.x",
        )
        before = {0: 0, 1: 0}
        for op in range(len(plan)):
            if plan.kind[op] == Kind.CONCAT and plan.hi[op] - plan.lo[op] == 80:
                before[int(plan.device[op])] = op
        held = [
            op
            for op in range(len(plan))
            if plan.control_start[op + 1] - plan.control_start[op] == 1
        ]

        assert set(before.values()) <= {int(plan.controls[plan.control_start[op]]) for op in held}

    @pytest.mark.parametrize("version", ["1.14", "2.x"])
    @pytest.mark.parametrize("destinations", [[3], [0, CPU], [1, 2, 0]])
    @pytest.mark.parametrize("communication", ["ring", "nccl"])
    def test_any_destinations(self, version, destinations, communication):
        value = PerDeviceSlices(((2, 3), (0, 3), (1, 3)), 4, dimensions=2)
        method = CollectiveAllReduce(communication=communication)
        plan = reduce(method, "mean", value, destinations, machine(), version=version)

        assert verify(plan) == []


class TestMultiWorker:
    """MultiWorkerAllReduce."""

    SHAPE = machine("dgx1vx2")
    ALL = tuple(range(16))

    def batch(self, *sizes):
        return [(PerDevice.on(self.ALL, n), self.ALL) for n in sizes]

    @pytest.mark.parametrize("faithful", [False, True])
    def test_the_default_shuffles_over_the_first_two_cpus(self, faithful):
        plan = reduce(
            MultiWorkerAllReduce(),
            "mean",
            *self.batch(10)[0],
            self.SHAPE,
            version="1.12",
            faithful=faithful,
        )
        across = Counter((s, t, n) for s, t, n in plan.copies() if s[:2] != t[:2])

        assert {("n0.cpu0", "n1.cpu0", 5): 2, ("n1.cpu0", "n0.cpu0", 5): 2} == across
        assert verify(plan) == []

    @pytest.mark.parametrize(("faithful", "sizes"), [(False, [300, 5, 40]), (True, [5, 40, 300])])
    def test_upstream_returns_results_range_by_range(self, faithful, sizes):
        method = MultiWorkerAllReduce([("pscpu", 2, 64), ("xring",)])
        plan = batch_reduce(method, "sum", self.batch(300, 5, 40), self.SHAPE, faithful=faithful)

        assert verify(plan) == []
        for results in evaluate(plan, lambda k, _: k).values():
            assert sizes == [len(r) for r in results]
            assert {120} == {x for r in results for x in r}

    def test_devices_are_taken_worker_by_worker(self):
        mixed = (8, 0, 9, 1)
        plan = reduce(
            MultiWorkerAllReduce("nccl/xring"), "sum", PerDevice.on(mixed, 64), mixed, self.SHAPE
        )

        assert {("n0.gpu0", "n1.gpu0"), ("n1.gpu0", "n0.gpu0")} == {
            (s, t) for s, t, _ in plan.copies() if s[:2] != t[:2]
        }
        assert verify(plan) == []

    @pytest.mark.parametrize(("faithful", "members"), [(False, 10), (True, 12)])
    def test_it_packs_small_gradients(self, faithful, members):
        method = MultiWorkerAllReduce(agg_small_grads_max_bytes=64)
        plan = batch_reduce(method, "sum", self.batch(*[1] * 14), self.SHAPE, faithful=faithful)
        to_cpu = Counter(n for s, t, n in plan.copies() if "gpu" in s)

        assert {members: 16, 14 - members: 16} == to_cpu
        assert verify(plan) == []

    def test_every_fault_of_a_spec(self):
        method = MultiWorkerAllReduce([("pcpu", 1, 4), ("collective", 1, 8)])
        with pytest.raises(StrategyError) as error:
            batch_reduce(method, "sum", self.batch(2, 16), self.SHAPE)

        assert ["pcpu", "collective", "no range takes 1 of the 2"] == [
            next(w for w in ("pcpu", "collective", "no range takes 1 of the 2") if w in p)
            for p in error.value.problems
        ]

    def test_a_spec_of_another_type_has_no_range_upstream(self):
        with pytest.raises(StrategyError, match="a name, a tuple"):
            reduce(MultiWorkerAllReduce(2), "sum", *self.batch(4)[0], self.SHAPE)
        with pytest.raises(StrategyError, match="no range takes 1 of the 1"):
            reduce(MultiWorkerAllReduce(2), "sum", *self.batch(4)[0], self.SHAPE, faithful=True)

    def test_labels_of_results(self):
        names = [f"/job:worker/task:0/gpu:{i}" for i in range(12)]

        assert names == result_labels(names)
        assert [0, 1, 10, 11, 2, 3] == [
            int(n.rsplit(":")[-1]) for n in result_labels(names, faithful=True)[:6]
        ]


class TestFaults:
    """What is refused, all at once."""

    def test_of_reduce(self):
        value = PerDevice(((0, 0), (9, 1), (9, 1)), 4)
        with pytest.raises(StrategyError) as error:
            reduce(
                ReductionToOneDevice(7, "addn"),
                "max",
                value,
                [1, 9],
                machine(),
                version="1.13",
            )
        text = str(error.value)

        for part in (
            "reduce_op 'max'",
            "version '1.13'",
            "reduce_to_device 7",
            "'addn'",
            "0 values on device 0",
            "device 9",
            "listed twice",
            "destination 9 is no device",
        ):
            assert part in text

    @pytest.mark.parametrize(
        ("pairs", "says"),
        [
            ([], "at least one"),
            (
                [(PerDevice.on([0], 1), 0), (PerDevice.on([0], 1), [])],
                "pair 1: destinations can not be empty",
            ),
            ([(PerDevice((), 1), 0)], "pair 0: the value must be on one device"),
        ],
    )
    def test_of_batch_reduce(self, pairs, says):
        with pytest.raises(StrategyError, match=says):
            batch_reduce(NCCL, "sum", pairs, machine())

    @pytest.mark.parametrize(
        ("method", "says"),
        [
            (AllReduceCrossDeviceOps("xring"), "all_reduce_alg 'xring'"),
            (AllReduceCrossDeviceOps(num_packs=-1), "num_packs -1"),
            (AllReduceCrossDeviceOps(agg_small_grads_max_bytes=1), "no packing of small gradients"),
            (MultiWorkerAllReduce(), "TensorFlow 2 has none"),
            (CollectiveAllReduce(communication="grpc"), "communication 'grpc'"),
            (CollectiveAllReduce(bytes_per_pack=-1), "bytes_per_pack -1"),
        ],
    )
    def test_of_methods(self, method, says):
        with pytest.raises(StrategyError, match=says):
            reduce(method, "sum", PerDevice.on([0, 1], 1), [0], machine(), version="2.x")


def test_initial_variables_reach_every_rank():
    shape = machine("dgx1vx2")
    variables = Workload("two", (Gradient("w", 100), Gradient("b", 7)))
    for source in (0, 3, 9):
        plan = broadcast_variables(variables, shape, source)

        assert verify(plan) == []
        assert 2 * 15 == plan.transfers
        assert 2 == sum(s[:2] != t[:2] for s, t, _ in plan.copies())


METHODS = st.one_of(
    st.builds(
        ReductionToOneDevice,
        st.one_of(st.none(), st.integers(0, 8)),
        st.sampled_from(["add_n", "pairwise"]),
    ),
    st.builds(
        AllReduceCrossDeviceOps, st.sampled_from(["nccl", "hierarchical_copy"]), st.integers(0, 3)
    ),
    st.builds(
        CollectiveAllReduce,
        st.integers(1, 3),
        st.integers(0, 300),
        st.sampled_from(["ring", "nccl"]),
    ),
    st.builds(
        MultiWorkerAllReduce,
        st.sampled_from(["xring", "pscpu", "psgpu", "nccl/pscpu", [("nccl", 1, 9), ("pscpu",)]]),
    ),
)


@st.composite
def pairs(draw, shape):
    """A value, dense or not, somewhere, with destinations anywhere."""
    anywhere = st.integers(0, len(shape.devices) - 1)
    devices = draw(st.lists(anywhere, min_size=1, max_size=6, unique=True))
    if draw(st.booleans()):
        most = draw(st.sampled_from([1, 1, 3]))
        value = PerDevice(
            tuple((d, draw(st.integers(1, most))) for d in devices), draw(st.integers(0, 40))
        )
    else:
        rows = tuple((d, draw(st.integers(0, 4))) for d in devices)
        value = PerDeviceSlices(rows, draw(st.integers(1, 5)), dimensions=draw(st.integers(0, 2)))
    return value, draw(st.one_of(st.just(devices), st.lists(anywhere, min_size=1, max_size=6)))


@given(
    st.data(), METHODS, st.sampled_from(["sum", "mean"]), st.sampled_from(VERSIONS), st.booleans()
)
def test_every_plan_keeps_its_contract(data, method, op, version, several):
    """Any devices, any destinations: proven, or refused in words."""
    shape = machine(
        data.draw(st.sampled_from(["full:8", "dgx1v", "full:4"])) if not several else "dgx1vx2"
    )
    batch = data.draw(st.lists(pairs(shape), min_size=1, max_size=4))
    try:
        plan = batch_reduce(method, op, batch, shape, version=version)
        single = reduce(method, op, *batch[0], shape, version=version)
    except StrategyError:
        return

    assert verify(plan) == []
    assert verify(single) == []
    assert plan.devices == shape.devices


@given(st.data(), METHODS, st.sampled_from(VERSIONS))
def test_every_batch_on_one_set_of_devices_keeps_its_contract(data, method, version):
    """As above, where the all-reduce paths are open."""
    shape = machine(data.draw(st.sampled_from(["full:8", "dgx1vx2"])))
    devices = data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=8, unique=True))
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=5))
    batch = [(PerDevice.on(devices, n), data.draw(st.permutations(devices))) for n in sizes]
    if data.draw(st.booleans()):
        batch.append((PerDeviceSlices(tuple((d, 2) for d in devices), 3), devices))
    try:
        plan = batch_reduce(method, "mean", batch, shape, version=version)
    except StrategyError:
        return

    assert verify(plan) == []
