"""`simreduce prices`: a price list, and those that are shipped, as documents and as text."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.files import tables
from simreduce.files.formats.documents import ITSELF, TEXT, Document, Key, Record, list_of
from simreduce.files.tables import Column
from simreduce.report.capacity import ITEM, PRICE_LIST
from simreduce.study.capacity.price_list import PriceList

_SHIPPED = Record(
    "list", "A price list.",
    Key("name", TEXT, "Its name.", "0", column=Column("list", left=True)),
    Key("title", TEXT, "What it holds.", "1.title", column=Column("what", left=True)),
    Key("date", TEXT, "When its prices were read, from the first to the last.", "1.date",
        column=Column("of", left=True)),
    Key("machines", list_of(TEXT), "Machines with a price.", lambda row: [*row[1].machines],
        column=Column("machines", left=True)),
)  # fmt: skip
LISTS = Document(
    "price-lists",
    "`simreduce prices --json`: the price lists that come with simreduce.",
    Key("lists", list_of(_SHIPPED), "Every list.", ITSELF),
    command="prices",
)
"""Of names with price lists."""
PRICES = Document(
    "price-list",
    "`simreduce prices NAME --json`: a price list, or several that were joined.",
    Key("currency", TEXT, "The currency of all prices."),
    Key("prices", PRICE_LIST, "The list.", ITSELF),
    Key("notes", list_of(TEXT), "Which of two prices counts, where lists differ."),
    command="prices",
)
"""Of a `PriceList`."""


def lists_text(lists: Sequence[tuple[str, PriceList]]) -> str:
    """A line for each list."""
    table = _SHIPPED.table([_SHIPPED.write(each) for each in lists])
    return "\n".join(table.lines())


def prices_text(prices: PriceList) -> str:
    """Every price, then where they were published."""
    table = ITEM.table([ITEM.write(item) for item in prices.items.values()])
    lines = [*tables.header(tables.label(prices.title, prices.date), ()), *table.lines()]
    lines += ["", *(f"Source: {source}" for source in prices.sources)] if prices.sources else []
    lines += ["", *(f"Note: {note}." for note in prices.notes)] if prices.notes else []
    return "\n".join(lines)
