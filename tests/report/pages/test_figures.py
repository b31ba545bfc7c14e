"""Pages show the figures of their documents: in order, in units, of the right rows."""

from __future__ import annotations

from simreduce.report.blocks import Attachments, Chart, Rows
from simreduce.report.pages import make_page
from tests.report.pages import documents


def tables_of(page):
    """The tables of a page, by their headings."""
    blocks = [block for section in page.sections for block in section.blocks]
    tables = [block.table for block in blocks if isinstance(block, Rows | Chart)]
    return {tuple(column.name for column in table.columns): table for table in tables}


def column(page, heading, name):
    """The cells below `heading` of the table that has it beside the column `name`."""
    (found,) = (
        [row[heads.index(heading)] for row in table.rows]
        for heads, table in tables_of(page).items()
        if {heading, name} <= {*heads}
    )
    return found


def facts_of(page):
    return {fact.question: (fact.answer, fact.more) for fact in page.facts}


def test_no_tie_in_queues_makes_a_strategy_the_fastest():
    """A page shows both times, and compares by the longer."""
    document = documents.bench_of()
    for row in document["rows"]:
        row["time_us"] = {"ring": 30.0, "nccl": 40.0}[row["algorithm"]]
        if row["algorithm"] == "ring":
            row["moved_us"] = 60.0
    page = make_page(document, Attachments())
    assert "nccl is the fastest of these: 40 us" in page.answer
    assert page.answer.endswith("1.50 times as fast as ring.")

    del document["rows"][1::2]
    only = make_page(document, Attachments())
    assert "or 60 us if starts move by 0.1% (queues tie)" in only.answer


def test_bench_answers_for_the_largest_size_and_names_the_fastest_at_each():
    document = documents.bench_of()
    times = {(1024, "ring"): 1.0, (1024, "nccl"): 2.0, (65536, "ring"): 40.0, (65536, "nccl"): 30.0}
    for row in document["rows"]:
        row["time_us"] = times[row["size_bytes"], row["algorithm"]]
    bounded = make_page(document, Attachments())
    for row in document["rows"]:
        row.pop("lower_bound", None)
    page = make_page(document, Attachments())

    assert facts_of(bounded)["Fastest at each size"] == ("nccl", "At every size.")
    assert page.answer == bounded.answer
    assert page.answer.startswith("At 65.54 kB, nccl is the fastest of these: 30 us")
    assert page.answer.endswith("1.33 times as fast as ring.")
    assert facts_of(page)["Fastest at each size"] == (
        "2 algorithms",
        "ring from 1.024 kB; nccl from 65.54 kB.",
    )


def test_the_nearest_change_of_the_choice_stands_first():
    near = {
        **documents.CAPACITY["sensitivity"][0],
        "assumption": "p.power",
        "above": {"at": 10.5, "becomes": "p6"},
    }
    sensitivity = [*documents.CAPACITY["sensitivity"], near]
    page = make_page({**documents.CAPACITY, "sensitivity": sensitivity}, Attachments())

    assert ("p.power +5.0%", "Then: p6.") == facts_of(page)["When does the choice change?"]
    assert ["p.power", "p.price"] == column(page, "assumption", "now")


def test_what_limits_a_plan_is_what_its_critical_path_spends_most_on():
    document = documents.explain_document(*documents.record())
    page = make_page(document, Attachments(explanation=document))
    spent = [float(cell) for cell in column(page, "time", "spent on")]

    assert spent == sorted(spent, reverse=True)
    assert len(set(spent)) > 1
    assert facts_of(page)["What limits it?"][0] == column(page, "spent on", "time")[0]


def test_each_lower_bound_stands_beside_its_name():
    document = documents.explain_document(*documents.record())
    floors = {"critical_path_us": 4.0, "resource_us": 3.0, "lane_us": 2.0, "hardware_us": 1.0}
    document = {**document, "time_us": 8.0, "floors": floors}
    page = make_page(document, Attachments(explanation=document))
    words = ["operations, each alone", "its full rate", "loaded lane", "any algorithm"]

    assert ["4.00", "3.00", "2.00", "1.00"] == column(page, "time", "lower bound")
    assert ["50.0%", "37.5%", "25.0%", "12.5%"] == column(page, "of the time", "lower bound")
    for name, end in zip(column(page, "lower bound", "time"), words, strict=True):
        assert name.endswith(end)


def test_reductions_alone_are_in_ms(tmp_path):
    document, _ = documents.step_of(tmp_path)
    page = make_page(document, Attachments())

    assert [f"{row['alone_us'] / 1e3:.3f}" for row in document["candidates"]] == column(
        page, "alone", "strategy"
    )
