"""Calibrations from files: what is read, and every fault with its place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, strategies as st

from simreduce.engine import NOMINAL, Calibration, LinkConstants, Processor
from simreduce.engine.calibrate import (
    CONTROLS,
    GENERATIONS,
    load_calibration,
    nccl_names,
    own_calibrations,
    shipped,
    to_toml,
)
from simreduce.errors import CalibrationError
from simreduce.testing.strategies import ANY, calibrations

FULL = """
title = "everything a file can say"
step = "2 ms"
[provenance]
hardware = "four GPUs"
date = 2018-04-24
[dispatch]
copy = "50 us"
add = "0 s"
[links.qpi]
bandwidth = "7 GB/s"
[links.nvlink2]
latency = "1 us"
[links."gpu0>gpu1"]
bandwidth = "3 GB/s"
[cpu]
cores = 2
moving = 1.5
own_cache = "1 MiB"
past_own = "60 GB/s"
shared = true
message = "0.25 ms"
cache = "16 MiB"
memory = "12 GB/s"
[cpu.rates]
transfer = "1.5 GB/s"
add = "6 GB/s"
[errors]
"dispatch.copy" = "5 us"
step = "0.5 ms"
"cpu.moving" = 0.25
"cpu.cache" = "1 MiB"
"cpu.memory" = "2 GB/s"
"cpu.rates.add" = "1 GB/s"
"links.qpi.bandwidth" = "0 GB/s"
[controls.copies]
"64 KiB" = "95 us"
"1 MiB" = "0.4 ms"
[controls.sums]
"64 KiB" = "80 us"
"""


def _refused(text: str) -> tuple[str, ...]:
    with pytest.raises(CalibrationError) as caught:
        load_calibration(text)
    return caught.value.problems


def test_a_file_is_read_in_si_units(write):
    """Named like the file."""
    assert Calibration(
        name="mine",
        title="everything a file can say",
        dispatch={"copy": 50 * 1e-6, "add": 0.0},
        links={
            "qpi": LinkConstants(bandwidth=7e9),
            "nvlink2": LinkConstants(latency=1e-6),
            "gpu0>gpu1": LinkConstants(bandwidth=3e9),
        },
        step=2 * 1e-3,
        cpu=Processor(
            2.0,
            1.5,
            True,
            0.25 * 1e-3,
            {"transfer": 1.5e9, "add": 6e9},
            1 << 20,
            60e9,
            16 << 20,
            12e9,
        ),
        provenance={"hardware": "four GPUs", "date": "2018-04-24"},
        errors={
            "dispatch.copy": 5 * 1e-6,
            "step": 0.5 * 1e-3,
            "cpu.moving": 0.25,
            "cpu.cache": 1 << 20,
            "cpu.memory": 2e9,
            "cpu.rates.add": 1e9,
            "links.qpi.bandwidth": 0.0,
        },
        controls={
            ("copies", 1 << 16): 95 * 1e-6,
            ("copies", 1 << 20): 0.4 * 1e-3,
            ("sums", 1 << 16): 80 * 1e-6,
        },
    ) == load_calibration(write("mine.toml", FULL))


def test_what_is_written_reads_as_the_same(write):
    """Every constant, title and note."""
    whole = load_calibration(write("mine.toml", FULL))
    assert whole == load_calibration(write("mine.toml", to_toml(whole)))


controls = st.dictionaries(
    st.tuples(st.sampled_from(CONTROLS), st.integers(1, 1 << 28).map(lambda count: 4 * count)),
    st.floats(1e-9, 3600),
)


@given(
    calibrations(ANY), st.text(st.characters(exclude_categories=["C"])), st.floats(0, 1), controls
)
def test_any_calibration_is_written_and_read(tmp_path_factory, drawn, title, step, controls):
    """To the last bit."""
    drawn = replace(drawn, name="mine", title=title, step=step, controls=controls)
    path = tmp_path_factory.mktemp("written") / "mine.toml"
    path.write_text(to_toml(drawn), "utf-8")
    assert drawn == load_calibration(str(path))


def test_a_file_may_have_no_constant(write):
    """It differs from `nominal` in name and title only."""
    assert Calibration("mine", "x") == load_calibration(write("mine.toml", 'title = "x"'))


@pytest.mark.parametrize("path", ["/dev/null", "mine.toml"])
def test_an_empty_file_is_refused(write, path):
    """With the keys that it may have."""
    write("mine.toml", "# nothing\n")
    keys = "title, step, provenance, dispatch, issue, links, cpu, nccl, errors, controls"

    assert (f"{path}: is empty; give any of {keys}",) == _refused(path)


def test_nominal_is_the_first_that_is_shipped():
    """It is a value of its own, without a file."""
    assert "nominal" == shipped()[0]
    assert NOMINAL is load_calibration("nominal")
    assert not NOMINAL.dispatch
    assert not NOMINAL.links


@pytest.mark.parametrize("name", shipped()[1:])
def test_a_shipped_calibration_says_what_was_measured(name):
    """Its title and provenance, and the standard error of each of its constants."""
    calibration = load_calibration(name)

    assert name == calibration.name
    assert calibration.title
    assert {"hardware", "software", "source", "method"} <= set(calibration.provenance)
    constants = {f"dispatch.{kind}" for kind in calibration.dispatch} | {
        f"links.{link}.{figure}"
        for link, values in calibration.links.items()
        for figure in ("bandwidth", "latency")
        if getattr(values, figure) is not None
    }
    constants |= set(nccl_names()) & set(calibration.errors)
    assert constants == set(calibration.errors)


def test_the_calibration_of_2018():
    """The two constants that a fit to three published points gave, with their standard errors."""
    calibration = load_calibration("dgx1p-tf2018")

    assert {"copy"} == set(calibration.dispatch)
    assert {"qpi"} == set(calibration.links)
    assert math.isclose(55e-6, calibration.dispatch["copy"])
    assert LinkConstants(bandwidth=3.76e9) == calibration.links["qpi"]
    assert {"dispatch.copy", "links.qpi.bandwidth"} == set(calibration.errors)
    assert math.isclose(11e-6, calibration.errors["dispatch.copy"])
    assert math.isclose(0.47e9, calibration.errors["links.qpi.bandwidth"])


def test_every_fault_of_a_file_is_told_at_once(write):
    """With the place, and the nearest spelling where there is one."""
    path = write(
        "mine.toml",
        """
titel = "x"
title = 5
provenance = { hardware = 1 }
dispatch = { copy = 50, cpoy = "50 us", add = "1 h", slice = "-1 us" }
errors = { "dispatch.copy" = "1 us", "links.qpi.bandwith" = "1 GB/s" }
step = "1 GB/s"
cpu.cores = 0.5
cpu.moving = "2"
cpu.shared = 1
cpu.cache = "2 s"
cpu.memory = "0 GB/s"
cpu.rates = { copy = "1 s", input = "1 GB/s" }
[links]
qpi = { bandwidth = "0 GB/s", latency = "1 GB/s", lanes = 2 }
nvlink = 3
""",
    )

    assert (
        "mine.toml: titel: unknown key (did you mean 'title'?)",
        "mine.toml: title: must be text, got 5",
        (
            "mine.toml: step: '1 GB/s': unknown unit 'GB/s' for a time; write for example '1.5 us' "
            "or "
            "'700 ns'"
        ),
        "mine.toml: provenance.hardware: must be text, got 1",
        "mine.toml: dispatch.cpoy: unknown key (did you mean 'copy'?)",
        (
            "mine.toml: dispatch.copy: 50 has no unit; write a time as text, for example '1.5 us' "
            "or "
            "'700 ns'"
        ),
        "mine.toml: dispatch.add: must be between 0 s and 10 s, got '1 h'",
        "mine.toml: dispatch.slice: '-1 us' is not a time; write for example '1.5 us' or '700 ns'",
        "mine.toml: links.qpi.lanes: unknown key; known keys: bandwidth, latency",
        "mine.toml: links.qpi.bandwidth: must be between 1 kB/s and 1 PB/s, got '0 GB/s'",
        (
            "mine.toml: links.qpi.latency: '1 GB/s': unknown unit 'GB/s' for a time; write for "
            "example "
            "'1.5 us' or '700 ns'"
        ),
        "mine.toml: links.nvlink: must be a table, got 3",
        "mine.toml: cpu.cores: must be a number of cores from 1 to 1024, got 0.5",
        "mine.toml: cpu.moving: must be a number of cores from 1 to 1024, got '2'",
        "mine.toml: cpu.shared: must be true or false, got 1",
        (
            "mine.toml: cpu.cache: '2 s': unknown unit 's' for a size; write for example '64 MiB' "
            "or "
            "'64 MB'"
        ),
        "mine.toml: cpu.memory: must be between 1 kB/s and 1 PB/s, got '0 GB/s'",
        (
            "mine.toml: cpu.rates.input: unknown key; known keys: slice, concat, copy, add, scale, "
            "cast, transfer"
        ),
        (
            "mine.toml: cpu.rates.copy: '1 s': unknown unit 's' for a bandwidth; write for example "
            "'25 "
            "GB/s' or '200 Gbit/s'"
        ),
        "mine.toml: errors.links.qpi.bandwith: unknown key (did you mean 'links.qpi.bandwidth'?)",
    ) == _refused(path)


def test_every_fault_of_controls_is_told(write):
    """Whose time is it, of values of which size, and how long: none of them is guessed."""
    text = """
[controls]
copeis = { "1 KiB" = "1 us" }
sums = 3
[controls.copies]
"64 KiB" = "95 us"
"65536 B" = "96 us"
"64" = "1 us"
"6 B" = "1 us"
"2 GiB" = "1 us"
"8 B" = 5
"12 B" = "0 s"
"16 B" = "1 MB"
"""

    assert (
        "mine.toml: controls.copeis: unknown key (did you mean 'copies'?)",
        "mine.toml: controls.sums: must be a table, got 3",
        (
            "mine.toml: controls.copies.8 B: 5 has no unit; write a time as text, for example '1.5 "
            "us' "
            "or '700 ns'"
        ),
        "mine.toml: controls.copies.12 B: must be between 1 ns and 1 h, got '0 s'",
        (
            "mine.toml: controls.copies.16 B: '1 MB': unknown unit 'MB' for a time; write for "
            "example "
            "'1.5 us' or '700 ns'"
        ),
        "mine.toml: controls.copies.65536 B: a size that is there already: 64 KiB",
        "mine.toml: controls.copies.64: '64' has no unit; write for example '64 MiB' or '64 MB'",
        (
            "mine.toml: controls.copies.6 B: must be between 4 B and 1 GiB, of whole values of 4 B,"
            " "
            "got '6 B'"
        ),
        (
            "mine.toml: controls.copies.2 GiB: must be between 4 B and 1 GiB, of whole values of 4 "
            "B, "
            "got '2 GiB'"
        ),
    ) == _refused(write("mine.toml", text))


def test_a_direction_that_no_link_has_is_told(write):
    """With the nearest spelling; the ends of a link may have any name."""
    names = ("pcie3_x16:d2x", ":d2h", "pcie3_x16:", "a:1>b:2", "pcie3_x16:h2d")
    text = "".join(f'[links."{name}"]\n' for name in names)

    assert (
        "mine.toml: links.pcie3_x16:d2x: no direction 'd2x' (did you mean 'd2h'?); known: d2h, h2d",
        "mine.toml: links.:d2h: a link class is missing before ':d2h'",
        "mine.toml: links.pcie3_x16:: no direction ''; known: d2h, h2d",
    ) == _refused(write("mine.toml", text))


@pytest.mark.parametrize("section", ["dispatch", "links", "errors", "provenance", "controls"])
def test_a_section_that_is_no_table_is_told(write, section):
    """By its name."""
    assert (f"mine.toml: {section}: must be a table, got 1",) == _refused(
        write("mine.toml", f"{section} = 1")
    )


def test_a_calibration_made_here_is_known_by_name(tmp_path, monkeypatch):
    """As one that is shipped is."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    own_calibrations().mkdir(parents=True)
    (own_calibrations() / "mine.toml").write_text('step = "1 ms"', "utf-8")

    assert Calibration("mine", step=1e-3) == load_calibration("mine")
    assert ("no calibration 'mime' (did you mean 'mine'?); a file ends in .toml",) == _refused(
        "mime"
    )


def test_an_unknown_name_is_told_with_the_nearest(tmp_path, monkeypatch):
    """And that a file ends in .toml."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert (
        "no calibration 'dgx1p-tf2017' (did you mean 'dgx1p-tf2018'?); a file ends in .toml",
    ) == _refused("dgx1p-tf2017")
    known = ", ".join(["nominal", *sorted(["dgx1p-tf2018", *GENERATIONS.values()])])
    assert (f"no calibration ''; known: {known}; a file ends in .toml",) == _refused("")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.toml", "missing.toml: there is no such file"),
        (".", ".: is a directory, not a file"),
        ("a\x00.toml", "'a\\x00.toml': cannot be read: embedded null byte"),
    ],
)
def test_what_cannot_be_read_is_told(name, message):
    """With the system's reason."""
    assert (message,) == _refused(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "mine.toml: line 1 is not UTF-8 text"),
        (
            b"x",
            (
                "mine.toml: not valid TOML: Expected '=' after a key in a key/value pair (at end "
                "of "
                "document)"
            ),
        ),
        (b"x = " + b"[" * 9999, "mine.toml: line 1: nested too deeply, more than 64 levels"),
    ],
)
def test_what_is_no_toml_is_told(write, content, message):
    """With the place in the file."""
    assert (message,) == _refused(write("mine.toml", content))


values = st.sampled_from(
    [
        "1",
        "-1",
        "1.5",
        "nan",
        "true",
        '"x"',
        '"1 us"',
        '"1 GB/s"',
        '"0 s"',
        '"9e99 s"',
        "[]",
        "{}",
        '{bandwidth = "1 GB/s"}',
        '{copy = "1 us"}',
        '{"4 B" = "1 us"}',
        "1979-05-27",
        "07:32:00",
        "0x" + "f" * 5000,
        "1" + "0" * 5000,
        '["x"]',
    ]
)
keys = st.sampled_from(
    [
        "title",
        "provenance",
        "dispatch",
        "links",
        "errors",
        "controls",
        "controls.copies",
        "copy",
        "add",
        "bandwidth",
        "latency",
        "qpi",
        "links.qpi",
        "dispatch.copy",
        '"dispatch.copy"',
        '"links.qpi.bandwidth"',
        "x",
    ]
)
lines = st.one_of(
    st.tuples(keys, values).map(" = ".join),
    keys.map("[{}]".format),
    keys.map("[[{}]]".format),
    st.text(max_size=10),
)


@given(
    st.one_of(
        st.binary(max_size=40),
        st.lists(lines, max_size=6).map(lambda t: "\n".join(t).encode("utf-8", "replace")),
    )
)
@example(b"title = 0x" + b"f" * 5000)
@example(b"provenance = {a = 0x" + b"f" * 5000 + b"}")
@example(b"dispatch = {copy = 0x" + b"f" * 5000 + b"}")
def test_any_file_is_a_calibration_or_a_calibration_error(tmp_path_factory, content):
    """Whatever bytes it holds; what is read has figures that a simulation can use."""
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(content)

    problems: tuple[str, ...] = ()
    try:
        calibration = load_calibration(str(path))
    except CalibrationError as error:
        problems = error.problems
    else:
        assert all(0 <= seconds <= 10 for seconds in calibration.dispatch.values())
        assert all(seconds > 0 for seconds in calibration.controls.values())
        assert all(
            link.bandwidth is None or link.bandwidth >= 1e3 for link in calibration.links.values()
        )

    assert all(problem.startswith(str(path)) for problem in problems)


@given(st.text(max_size=30))
@example("\ud800.toml")
@example("x" * 5000)
@example("x" * 5000 + ".toml")
def test_any_text_names_a_calibration_or_is_a_calibration_error(text):
    """Whatever a user types."""
    try:
        name = load_calibration(text).name
    except CalibrationError as error:
        name = str(error)

    assert name


def test_sizes_of_caches_may_have_errors(write):
    content = (
        '[cpu]\nown_cache = "1 MiB"\npast_own = "4 GB/s"\n[errors]\n"cpu.own_cache" = "64 KiB"'
    )
    found = load_calibration(write("mine.toml", content))

    assert found.errors == {"cpu.own_cache": 65536}
    assert load_calibration(write("mine.toml", to_toml(found))) == found
