"""The verbs of planners."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, strategies as st

from simreduce.errors import InternalError, PlanError
from simreduce.plan import ZEROS, Contract, Executor, Kind, Plan, PlanBuilder, Value, Values, verify
from simreduce.plan.ops import GrowingColumn
from simreduce.plan.plan import NO_STREAM
from simreduce.testing import NO_CONTRACT


@pytest.fixture
def b() -> PlanBuilder:
    return PlanBuilder(("gpu0", "gpu1", "gpu2"))


def finished(b: PlanBuilder) -> Plan:
    return b.finish(NO_CONTRACT)


def texts(b: PlanBuilder) -> list[str]:
    plan = finished(b)
    return [plan.describe(op) for op in range(len(plan))]


# input


def test_an_input_is_contributed_by_its_device_unless_somebody_else_is_named(b):
    b.input(1, 0, 8)
    b.input(1, 0, 8, contributor=5)
    b.zeros(1, 8, 10)

    assert [1, 5, ZEROS] == finished(b).arg.tolist()


def test_a_reversed_interval_is_refused(b):
    with pytest.raises(PlanError, match=r"INPUT on gpu2: the interval \[8, 3\) is reversed"):
        b.input(2, 8, 3)


# copy


def test_a_value_is_sent_to_a_device_once(b):
    """The second copy is the first, and no op."""
    x = b.input(0, 0, 8)
    first = b.copy(x, 1)

    assert first == b.copy(x, 1)
    assert ["op 0 INPUT gpu0 [0, 8)", "op 1 COPY gpu0 -> gpu1 [0, 8)"] == texts(b)


def test_other_parts_and_other_devices_are_other_copies(b):
    """Only the same part to the same device is the same copy."""
    x = b.input(0, 0, 8)
    copies = [
        b.copy(x, 1),
        b.copy(x, 2),
        b.copy(x, 1, 0, 4),
        b.copy(x, 1, 4, 8),
        b.copy(x, 1, 0, 4),
    ]

    assert [1, 2, 3, 4, 3] == [value.op for value in copies]
    assert [(0, 8), (0, 8), (0, 4), (4, 8)] == list(
        zip(finished(b).lo[1:], finished(b).hi[1:], strict=True)
    )


def test_equal_values_of_different_ops_are_copied_each(b):
    """What an op makes is a value of its own."""
    x, y = b.input(0, 0, 8), b.input(0, 0, 8)

    assert b.copy(x, 1).op != b.copy(y, 1).op


def test_a_copy_to_its_own_device_is_the_value_itself(b):
    x = b.input(0, 0, 8)

    assert x == b.copy(x, 0)
    assert len(b) == 1


def test_a_part_copied_to_its_own_device_is_that_part_without_an_op(b):
    """A view, as wide as a copy to another device would be."""
    x = b.input(0, 0, 8)

    assert Value(x.op, 0, 2, 5, 0) == b.copy(x, 0, 2, 5)
    assert len(b) == 1


def test_a_view_is_copied_as_wide_as_it_is(b):
    """A value with narrower bounds needs no op to be narrow."""
    x = b.input(0, 0, 8)._replace(lo=2, hi=5)
    moved = b.copy(x, 1)

    assert Value(1, 1, 2, 5, 0) == moved
    assert ["op 0 INPUT gpu0 [0, 8)", "op 1 COPY gpu0 -> gpu1 [2, 5)"] == texts(b)


def test_streams_and_controls_are_written_down(b):
    """A stream is a channel of a device."""
    x, y = b.input(0, 0, 4), b.input(0, 4, 8)
    first = b.copy(x, 1, stream=b.stream(0))
    b.copy(y, 1, stream=b.stream(2, channel=1), after=[first.op])
    plan = finished(b)

    assert [NO_STREAM, NO_STREAM, 0, 1 * 3 + 2] == plan.stream.tolist()
    assert [0, 0, 0, 0, 1] == plan.control_start.tolist()
    assert [first.op] == plan.controls.tolist()


# slice, split, concat


def test_a_split_cuts_from_the_start(b):
    pieces = b.split(b.input(1, 10, 20), [3, 0, 7])

    assert [(10, 13), (13, 13), (13, 20)] == [(p.lo, p.hi) for p in pieces]
    assert [Kind.INPUT, *[Kind.SLICE] * 3] == finished(b).kind.tolist()
    assert [1, 1, 1] == [p.device for p in pieces]


def test_a_split_in_one_piece_is_no_op(b):
    x = b.input(0, 0, 8)

    assert [x] == b.split(x, [8])
    assert len(b) == 1


def test_a_split_may_leave_a_rest(b):
    """Sizes need not fill the value."""
    assert [(0, 3)] == [(p.lo, p.hi) for p in b.split(b.input(0, 0, 8), [3])]


def test_what_was_split_is_joined_again_to_the_same_interval(b):
    x = b.input(0, 4, 12)
    whole = b.concat(b.split(x, [1, 2, 5]))

    assert (x.device, x.lo, x.hi, x.dtype) == (whole.device, whole.lo, whole.hi, whole.dtype)
    assert [1, 2, 3] == finished(b).operands_of(whole.op)
    assert not [p for p in verify(finished(b)) if p.rule != "not promised"]


def test_a_join_of_one_is_the_value_itself(b):
    x = b.input(0, 0, 8)

    assert x == b.concat([x])
    assert len(b) == 1


def test_a_slice_is_an_op_of_its_own(b):
    b.slice(b.input(2, 0, 8), 1, 4)

    assert ["op 0 INPUT gpu2 [0, 8)", "op 1 SLICE gpu2 [1, 4)"] == texts(b)


# add, scale, cast, output


def test_an_add_covers_what_its_operands_have_in_common(b):
    total = b.add([b.input(0, 0, 8), b.input(0, 2, 10), b.input(0, 1, 7)])

    assert Value(3, 0, 2, 7, 0) == total
    assert [0, 1, 2] == finished(b).operands_of(total.op)


def test_an_add_of_values_with_nothing_in_common_is_refused(b):
    with pytest.raises(PlanError, match=r"ADD on gpu0: the interval \[6, 4\) is reversed"):
        b.add([b.input(0, 0, 4), b.input(0, 6, 8)])


def test_an_add_may_read_one_value_twice(b):
    """Double counting is verify's business."""
    x = b.input(0, 0, 8)
    b.add([x, x])

    assert finished(b).operands_of(1) == [0, 0]


def test_scale_and_cast_keep_the_interval(b):
    x = b.input(1, 3, 9, 1)
    mean, wide = b.scale(x, 4), b.cast(x, 0)

    assert Value(1, 1, 3, 9, 1) == mean
    assert Value(2, 1, 3, 9, 0) == wide
    assert [1, 4, 0] == finished(b).arg.tolist()


def test_an_output_of_a_view_declares_the_view(b):
    b.output(b.input(0, 0, 8)._replace(lo=5))

    assert ["op 0 INPUT gpu0 [0, 8)", "op 1 OUTPUT gpu0 [5, 8)"] == texts(b)


def test_the_executor_is_stamped_on_what_follows(b):
    x = b.input(0, 0, 8)
    b.executor = Executor.NCCL
    y = b.copy(x, 1)
    b.executor = Executor.TF
    b.output(y)

    assert [Executor.TF, Executor.NCCL, Executor.TF] == finished(b).executor.tolist()


# walk


def test_a_walk_copies_from_device_to_device(b):
    """One hop after another, and what each device ends up with."""
    seen = b.walk(b.input(0, 0, 8), [1, 2])

    assert [(1, 1), (2, 2)] == [(v.op, v.device) for v in seen]
    assert [
        "op 0 INPUT gpu0 [0, 8)",
        "op 1 COPY gpu0 -> gpu1 [0, 8)",
        "op 2 COPY gpu1 -> gpu2 [0, 8)",
    ] == texts(b)


def test_a_walk_with_own_values_adds_them_on_arrival(b):
    x = [b.input(r, 0, 8) for r in range(3)]
    seen = b.walk(x[0], [1, 2], own=x.__getitem__)
    plan = finished(b)

    assert [4, 6] == [value.op for value in seen]
    assert [[3, 1], [5, 2]] == [plan.operands_of(value.op) for value in seen]
    assert [0, 4] == [plan.operands_of(op)[0] for op in (3, 5)]


def test_a_walk_to_nowhere_is_nothing(b):
    assert [] == b.walk(b.input(0, 0, 8), [])
    assert len(b) == 1


# finish


def test_the_plan_of_the_module_s_example_is_right():
    """Two GPUs, one sum."""
    b = PlanBuilder(("gpu0", "gpu1"))
    x = b.input(0, 0, 8), b.input(1, 0, 8)
    total = b.add([x[0], b.copy(x[1], 0)])
    for value in (total, b.copy(total, 1)):
        b.output(value)
    plan = b.finish(Contract.all_reduce([0, 1], [(0, 8, 0)]))

    assert not verify(plan)
    assert [("gpu1", "gpu0", 8), ("gpu0", "gpu1", 8)] == plan.copies()
    assert plan.transfers == 2


def test_equal_plans_have_equal_digests_and_others_do_not():
    """The digest names all that is in a plan."""

    def plan(hi=8, contract=NO_CONTRACT, stream=NO_STREAM, name="gpu1") -> Plan:
        b = PlanBuilder(("gpu0", name))
        b.copy(b.input(0, 0, hi), 1, stream=stream)
        return b.finish(contract)

    digests = [
        plan(),
        plan(hi=9),
        plan(contract=Contract.all_reduce([0], [(0, 8, 0)])),
        plan(stream=0),
        plan(name="gpu2"),
    ]

    assert plan().digest == plan().digest
    assert 5 == len({p.digest for p in digests})


def test_columns_are_small(b):
    """About 32 bytes an op, so that millions fit."""
    x = [b.input(r, 0, 800) for r in range(3)]
    for i in range(300):
        b.walk(x[i % 3]._replace(lo=i, hi=i + 1), [(i + 1) % 3, (i + 2) % 3], own=x.__getitem__)
    plan = finished(b)

    columns = [getattr(plan, field.name) for field in fields(plan)]
    held = sum(
        c.itemsize if c.strides == (0,) else c.nbytes for c in columns if isinstance(c, np.ndarray)
    )
    assert held < 36 * len(plan)


# in the plural: what waits for what


def waited_for(plan: Plan) -> list[list[int]]:
    rows = zip(plan.control_start[:-1].tolist(), plan.control_start[1:].tolist(), strict=True)
    return [plan.controls[start:end].tolist() for start, end in rows]


def test_copies_wait_for_all_of_a_list_or_each_for_its_own_of_an_array(b):
    x = b.inputs(np.arange(3), 0, 8)
    b.copies(x, np.array([1, 2, 0]), after=[0, 2])
    b.copies(x, np.array([2, 0, 1]), after=np.array([3, 4, 5]))

    assert [[]] * 3 + [[0, 2]] * 3 + [[3], [4], [5]] == waited_for(finished(b))


def test_barriers_wait_for_as_many_as_they_are_told(b):
    x = b.inputs(np.arange(3), 0, 8)
    gates = b.barriers(np.arange(3), np.array([2, 0, 1]), x.op[[1, 2, 0]])
    plan = finished(b)

    assert [3, 4, 5] == gates.tolist()
    assert [[1, 2], [], [0]] == waited_for(plan)[3:]
    assert {ZEROS} == set(plan.arg[gates].tolist())
    assert [0, 0, 0] == plan.nbytes[gates].tolist()


def test_a_finished_plan_grows_no_more(b):
    plan = finished(b)
    b.input(0, 0, 8)
    with pytest.raises(InternalError):
        finished(b)
    with pytest.raises(InternalError):
        b.inputs(np.arange(1000) % 2, 0, 8)

    assert 0 == len(plan)


@given(st.integers(0, 2**60), st.integers(1, 2**17))
def test_a_cut_is_that_of_whole_numbers_of_any_size(elements, pieces):
    """Part i goes from elements * i // pieces on, although the product has more than 64 bits."""
    zero = np.zeros(1, dtype=np.int64)
    cut = Values(zero, zero, zero, np.array([elements])).cut(pieces)
    some = sorted({0, pieces // 3, pieces - 1})

    assert [elements * i // pieces for i in some] == cut.lo[0, some].tolist()
    assert [elements * (i + 1) // pieces for i in some] == cut.hi[0, some].tolist()


@pytest.mark.parametrize("top", [2**31 - 1, 2**31, 2**40])
def test_addresses_are_as_wide_as_the_highest_needs(b, top):
    """Those that came before it are kept, one by one or as a block."""
    few = b.inputs(np.array([0, 1]), 3, 8)
    wide = b.inputs(np.arange(60) % 3, np.arange(60) + top - 70, np.arange(60) + top - 59)
    last = b.input(0, 1, 5)
    plan = b.finish(NO_CONTRACT)

    assert plan.lo.tolist() == [*few.lo.tolist(), *wide.lo.tolist(), last.lo]
    assert plan.hi.tolist() == [*few.hi.tolist(), *wide.hi.tolist(), last.hi]
    assert plan.hi.max() == top
    assert plan.hi.itemsize == plan.lo.itemsize == (4 if top < 2**31 else 8)
    assert plan.nbytes.dtype == np.int64


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 100), st.integers(0, 2)),
            st.lists(st.integers(0, 2), max_size=100).map(
                lambda numbers: (len(numbers), np.array(numbers, dtype=int))
            ),
        )
    )
)
def test_a_column_is_what_was_appended_to_it(parts):
    """One number at a time, one for many, or an array; and it takes no memory while all are one."""
    column = GrowingColumn(np.int32)
    for count, numbers in parts:
        column.extend(count, numbers)
    expected = [int(n) for count, numbers in parts for n in np.broadcast_to(numbers, count)]

    assert column.filled().tolist() == expected
    assert column.starts().tolist() == np.cumsum([0, *expected]).tolist()
    assert column.filled().dtype == column.starts().dtype == np.int32
    if len(set(expected)) == 1:
        assert len(column.array) == 0
