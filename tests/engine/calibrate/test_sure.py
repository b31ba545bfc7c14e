"""How sure predictions of NCCL are: intervals hold for machines that took no part in them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine import Calibration
from simreduce.engine.calibrate.intervals import (
    ELSEWHERE,
    GENERATION,
    MACHINE,
    SIZES,
    Errors,
    Spread,
    is_known,
    published_errors,
    read_errors,
    spread,
    weighted_quantile,
    write_errors,
)
from simreduce.engine.runtime import NcclConstants
from simreduce.engine.setup import Setup
from simreduce.files.published import published_tables
from tests.engine.calibrate.covering import coverage, part_inside
from tests.thorough import examples

MIB = 1 << 20


def errors(machine: str, *found: float, **other: object) -> Errors:
    about = {"collective": "all_reduce", "link": "nvlink", "size": 0, **other}
    return Errors(f"{machine} {other}", machine, errors=found, **about)


def test_a_machine_counts_once_however_much_was_published_of_it():
    few = [errors(name, value) for name, value in zip("abcd", (-0.3, -0.1, 0.1, 0.3), strict=True)]
    many = [*few[:-1], errors("d", *(0.3,) * 100), errors("d", *(0.3,) * 50)]

    assert Spread(many).ends("all_reduce", "nvlink", 8) == pytest.approx(
        Spread(few).ends("all_reduce", "nvlink", 8), rel=0.1
    )


def test_an_interval_leans_to_where_the_errors_are():
    """Predictions that are too short have an interval that ends late."""
    low, high = Spread([errors(str(i), -0.5 - i / 100) for i in range(9)]).ends(
        "all_reduce", "nvlink", 8
    )

    assert low == 1.0
    assert high == pytest.approx(np.exp(0.58), rel=0.02)


def test_few_machines_say_less_of_the_next_one():
    def width(count: int) -> float:
        found = [errors(f"{i}", *np.linspace(-0.5, 0.5, 101)) for i in range(count)]
        low, high = Spread(found).ends("all_reduce", "nvlink", 8)
        return float(np.log(high / low))

    assert width(2) > width(5) > width(50) > 0.8
    assert width(50) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    ("near", "far"),
    [
        ({"collective": "reduce"}, {"collective": "all_to_all"}),
        ({"link": "shm"}, {"link": "net"}),
        ({"link": "net"}, {"link": "other_net"}),
        ({"size": 64 << 10}, {"size": 8 * MIB}),
    ],
)
def test_near_cells_count_more(near, far):
    asked = {"collective": "broadcast", "link": "nvlink", "size": 0}
    steps = np.linspace(-1.0, 1.0, 21)

    def ends(tight, wide):
        found = [errors(f"a{i}", *0.1 * steps, **{**asked, **tight}) for i in range(20)]
        found += [errors(f"b{i}", *steps, **{**asked, **wide}) for i in range(20)]
        return Spread(found).ends("broadcast", "nvlink", 8)

    assert ends(near, far)[1] < ends(far, near)[1]


@settings(max_examples=examples(100, usual=10))
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.5), st.floats(0.0, 0.2))
def test_four_of_five_points_of_a_machine_never_seen_lie_inside(seed, between, within):
    """Machines err together: what counts is the spread between them."""
    random = np.random.default_rng(seed)
    found = random.normal(0, between, (60, 1)) + random.normal(0, within, (60, 4))
    covered = coverage([errors(str(i), *row) for i, row in enumerate(found.tolist())])

    assert 0.62 <= np.mean([inside for _, inside in covered]) <= 0.95


def test_equal_errors_count_in_the_order_of_the_file_on_every_processor():
    rng = np.random.default_rng(3)
    values, weights = rng.integers(-3, 4, 1000) / 10, rng.random(1000)
    apart = values + 1e-12 * np.arange(1000)
    parts = np.linspace(0.0, 1.0, 1001)

    assert [weighted_quantile(values, weights, part) for part in parts] == pytest.approx(
        [weighted_quantile(apart, weights, part) for part in parts], abs=1e-8
    )


def test_errors_are_written_and_read():
    found = (
        errors("a", 0.125, -0.25),
        errors("b", 0.5, size=MIB, link="net", kind="k", site="s", generation="g", misfit=0.25),
    )

    assert read_errors(write_errors(found)) == found


def test_the_shipped_intervals_cover_machines_that_took_no_part_in_them():
    cells, every = defaultdict(list), []
    for row, inside in coverage(published_errors()):
        if row.link != "other_net":
            each = [(row.machine, inside)] * len(row.errors)
            cells[row.collective, row.link == "net", row.size] += each
            every += each

    assert 0.75 <= np.mean([inside for _, inside in every]) <= 0.88
    diverse = [each for each in cells.values() if len({machine for machine, _ in each}) >= 5]
    assert len(diverse) >= 8
    parts = [np.mean([inside for _, inside in each]) for each in diverse]
    assert min(parts) >= 0.4
    assert np.mean([0.7 <= part <= 0.95 for part in parts]) >= 0.6


def test_every_collective_link_and_size_has_an_interval():
    for collective in ("all_reduce", "send_receive"):
        for link in ("nvlink", "pci", "shm", "net", "other_net"):
            for size in SIZES:
                low, high = spread(collective, link, size)
                assert 0.2 < low <= 1.0 <= high < 5


def test_what_is_left_out_of_an_interval_is_a_machine():
    without = spread("all_reduce", "nvlink", 8, frozenset(["dgx-h100"]))

    assert without != spread("all_reduce", "nvlink", 8)
    assert without == Spread([r for r in published_errors() if r.machine != "dgx-h100"]).ends(
        "all_reduce", "nvlink", 8
    )


def test_constants_of_others_have_no_interval():
    assert Setup("dgx-h100").interval(MIB, 1.0) == spread("all_reduce", "nvlink", MIB)
    mine = Calibration("mine", nccl=NcclConstants(launch=1e-6))
    assert Setup("dgx-h100", calibration=mine).interval(MIB, 1.0) is None


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("dgx-h100", "nvlink"),
        ("dgx-h100x2", "net"),
        ("p5x2", "other_net"),
        ("p5", "nvlink"),
        ("polarisx2", "other_net"),
        ("pcie-no-p2p-8", "shm"),
        ("dgx-h100x2,nic=efa_100x4", "other_net"),
        ("p5x2,nic=ib_ndr", "net"),
    ],
)
def test_the_network_that_is_there_chooses_the_band(name, link):
    """Not that of the node by itself: `nic=` puts another one in its place."""
    assert Setup(name).link_class == link


@pytest.mark.parametrize("by", ["site", "generation"])
def test_intervals_of_unmeasured_machines_cover_sites_and_generations_that_took_no_part(by):
    """Where constants are another generation's, those of measured machines hold far less."""
    rows = published_errors(ELSEWHERE)
    covered = coverage(rows, by)

    assert 0.75 <= part_inside(covered) <= 0.87
    assert 0.70 <= part_inside([each for each in covered if each[0].size < MIB]) <= 0.90
    assert part_inside(coverage(rows, by, published_errors(GENERATION))) < 0.75


def test_a_kind_of_machine_that_nobody_measured_has_the_wider_interval():
    known, other = Setup("dgx-h100"), Setup("a100-mesh-4")

    assert other.interval(MIB, 1.0) == spread("all_reduce", "nvlink", MIB, file=ELSEWHERE)
    (low, high), (lower, higher) = known.interval(MIB, 1.0), other.interval(MIB, 1.0)
    assert higher / lower > high / low
    assert Setup("dgx-a100x2,nic=efa_100x4").interval(MIB, 1.0) == spread(
        "all_reduce", "other_net", MIB, file=ELSEWHERE
    )  # nobody measured eight A100 on a switch over this network


@pytest.mark.parametrize(
    ("name", "measured"),
    [("dgx1v", "v100-cube-mesh-8"), ("hgx-h200", "dgx-h100"), ("p4d", "hgx-a100-80g")],
)
def test_a_machine_of_a_measured_kind_is_known_by_another_name(name, measured):
    assert name not in {row.machine for row in published_errors()}
    assert Setup(name).node_kind == Setup(measured).node_kind
    assert Setup(name).interval(MIB, 1.0) == spread("all_reduce", "nvlink", MIB)


def test_intervals_hold_where_only_others_measured_a_kind():
    rows = [
        row
        for row in published_errors()
        if is_known(row.kind, row.link, frozenset((row.machine, row.site)))
    ]
    others = coverage(rows, "site", published_errors())

    assert len({row.machine for row in rows}) >= 8
    assert 0.75 <= part_inside(others) <= 0.92


def test_intervals_after_a_calibration_cover_however_far_off_the_log_was():
    """Without the misfit they cover nearly all of the tables that fit, and half of the others."""
    rows = published_errors(MACHINE)
    ordered = sorted(row.misfit for row in rows)
    ends = [0.0, *np.quantile(ordered, (1 / 3, 2 / 3)), np.inf]

    assert 0.75 <= part_inside(coverage(rows, "site")) <= 0.86
    for low, high in pairwise(ends):
        mine = [row for row in rows if low <= row.misfit < high]
        assert 0.7 <= part_inside(coverage(mine, "site", rows)) <= 0.9
    alike = [replace(row, misfit=None) for row in rows]
    far = [new for new, row in zip(alike, rows, strict=True) if row.misfit >= 0.4]
    assert part_inside(coverage(far, "site", alike)) < 0.7


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.sampled_from(SIZES))
def test_an_interval_widens_with_what_its_log_was_off(a, b, size):
    less, more = sorted((a, b))
    low, high = spread("all_reduce", "nvlink", size, file=MACHINE, misfit=less)
    lower, higher = spread("all_reduce", "nvlink", size, file=MACHINE, misfit=more)

    assert lower <= low <= 1.0 <= high <= higher


def test_rccl_has_intervals_of_its_own_errors():
    rows = published_errors(library="rccl")

    assert {row.generation.partition("-")[0] for row in rows} == {"rccl"}
    assert {row.machine for row in rows} == {"mi300x", "mi308x", "mi325x", "mi350x", "mi355x"}
    assert not {row.table for row in rows} & {row.table for row in published_errors()}
    for name, link in (("mi355x", "nvlink"), ("mi300xx2", "net")):
        ends = Setup(name, "nccl").interval(MIB, 1.0)
        assert ends == spread("all_reduce", link, MIB, library="rccl")
        assert ends != spread("all_reduce", link, MIB)
    other = Setup("frontier", "nccl").interval(MIB, 1.0)
    assert other == spread("all_reduce", "nvlink", MIB, file=ELSEWHERE, library="rccl")


def test_errors_of_rccl_are_those_of_tables_that_took_no_part_in_its_constants():
    held = {table.name: table.held for table in published_tables() if table.library == "RCCL"}
    rows = published_errors(library="rccl")

    assert all(held[row.table] for row in rows if row.generation == "rccl-cdna4")
    assert {row.table for row in rows if row.link == "net"} == {"mi308x_2n", "oci_mi300x_2n"}
