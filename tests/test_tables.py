"""The one text table, its HTML, and the header of reports."""

from __future__ import annotations

import simreduce
from simreduce.files import tables
from simreduce.files.tables import Column, Table

TABLE = Table(
    (Column("name", left=True), Column("time", "(ms)"), Column("why", left=True)),
    (("ring", "1.5", "fast & <good>"), ("all_to_all", "12.25", "")),
)


def test_cells_stand_on_the_side_of_their_column_and_no_line_ends_in_blanks():
    assert [
        "name         time  why",
        "             (ms)",
        "ring          1.5  fast & <good>",
        "all_to_all  12.25",
    ] == TABLE.lines()


def test_indent_gap_and_least_widths():
    table = Table((Column("a", width=4), Column("b", left=True)), (("1", "x"), ("12345", "y")))

    assert ["       a b", "       1 x", "   12345 y"] == table.lines(indent=3, gap=1)


def test_a_table_without_headings_has_rows_only():
    assert ["ring  1"] == Table((Column(""), Column("")), (("ring", "1"),)).lines()


def test_headings_behind_a_sign_leave_rows_alone_for_awk():
    lines = TABLE.lines(comment=True)

    assert [True, True, False, False] == [line.startswith("#") for line in lines]
    assert ["ring", "1.5"] == lines[2].split()[:2]
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(lines, ("why", "", "fast", ""), strict=True)
                if word
            }
        )
        == 1
    )


def test_a_sign_before_a_heading_takes_a_place_of_its_own():
    assert ["#ab  c", "  1  2"] == Table((Column("ab"), Column("c")), (("1", "2"),)).lines(
        comment=True
    )


def test_html_escapes_cells_and_keeps_sides():
    text = TABLE.html(["a < b"])

    assert "fast &amp; &lt;good&gt;" in text
    assert "a &lt; b" in text
    assert '<th style="text-align: right">time</th>' in text
    assert '<td style="text-align: left">ring</td>' in text
    assert 4 == text.count("<tr>") == text.count("</tr>")


def test_columns_from_names():
    assert (Column("#"), Column("who", "", left=True), Column("time", "(s)")) == tables.columns(
        "#|who|time", units="||(s)", left="who"
    )


def test_a_header_aligns_its_words_and_leaves_out_what_it_does_not_know():
    assert [
        "# A title",
        "# topology     dgx1v",
        "#              eight of them",
        "#",
    ] == tables.header("A title", [("topology", "dgx1v"), ("", "eight of them"), ("disturbed", "")])


def test_setup_lines_name_the_machine_and_its_constants():
    assert [
        f"simreduce {simreduce.__version__}: ring",
        "topology dgx1v (abc), runtime tensorflow, calibration nominal",
        "more",
    ] == tables.setup_lines("ring", ("dgx1v", "abc"), "tensorflow", "nominal", "", "more")


def test_the_column_that_is_named_first_is_left_out_first():
    spare = {column.name: column.spare for column in tables.columns("a|b|c", spare="b|a")}

    assert spare["b"] > spare["a"] > spare["c"] == 0
