"""Price lists: what machines, networks and energy cost, and what a configuration costs in an hour.

Every price is a `PriceItem` with the value that the file has, in the file's unit, and the factor
that makes it money per hour: 1 for what is paid by the hour, one over the hours in use for what is
bought, watts for energy. What a configuration pays in an hour is a sum over items, each with a
quantity: linear in every price, so that the value at which a choice changes is exact.

Several lists join to one. Of a price that two of them have, the first counts, and a note says so.

Quantities of price lists: money, prices per hour or per piece, periods of time, power.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simreduce import units
from simreduce.errors import InputError, did_you_mean, near_or_all, quote
from simreduce.files import exists, parse_toml, read_text
from simreduce.files.formats import (
    LINE,
    TEXT,
    Field,
    FieldValues,
    Format,
    ListOf,
    MapOf,
    Scalar,
    TableOf,
    number,
    quantity,
)
from simreduce.files.formats.syntax import Faults, inside

HOUR = 3600.0
"""Seconds of an hour, in which prices and energy are counted."""

_MONEY = re.compile(
    r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+)\s*([A-Z]{3})(?:\s*/\s*([A-Za-z]+))?\s*"
)
_PERIODS = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": HOUR, "d": 24 * HOUR,
    **dict.fromkeys(("day", "days"), 24 * HOUR),
    "weeks": 7 * 24 * HOUR,
    **dict.fromkeys(("month", "months"), 730 * HOUR),
    **dict.fromkeys(("year", "years"), 8760 * HOUR),
}  # fmt: skip
_PER_HOUR = {"h": 1.0, "d": 24.0, "month": 730.0, "year": 8760.0}


_MOST_MONEY = 1e15
"""More than all that the world earns in a year, in most currencies."""


@dataclass(frozen=True, slots=True)
class Money:
    """An `amount` of a `currency`; `per` is "" for a piece, else "h" or "kWh"."""

    amount: float
    currency: str
    per: str = ""

    @property
    def unit(self) -> str:
        """`USD`, `USD/h` or `USD/kWh`."""
        return f"{self.currency}/{self.per}" if self.per else self.currency


def _read_money(
    value: object, words: str, per: Mapping[str, float], *, piece: bool = True
) -> Money:
    """Return a sum `per` one of some units, or per `piece`; the first unit is the result's."""
    match = _MONEY.fullmatch(value) if isinstance(value, str) and len(value) <= 60 else None
    if match is None:
        raise ValueError(f"must be {words}, with a currency of three letters, got {quote(value)}")
    number, currency, unit = match.groups()
    if unit not in per and (unit or not piece):
        raise ValueError(f"must be {words}, got {quote(value)}{did_you_mean(unit or '', per)}")
    amount = float(number) / per[unit] if unit else float(number)
    if amount > _MOST_MONEY:
        raise ValueError(f"{quote(value)} is too large")
    return Money(amount, currency, next(iter(per)) if unit else "")


_read_period = partial(
    units.read, table=_PERIODS, what="time", examples="'30 s', '72 h' or '4 years'"
)
_TIME = "a time", ("72 h", "30 d", "4 years")
PERIOD = quantity(_read_period, *_TIME, (0.0, math.inf, "from 0 s"))
SOME_PERIOD = quantity(_read_period, *_TIME, (1e-9, math.inf, "above 0 s"))
POWER = quantity(
    partial(units.read, table={"W": 1.0, "kW": 1e3, "MW": 1e6}, what="power", examples="'10.2 kW'"),
    "a power",
    ("10.2 kW",),
)
MONEY = quantity(
    partial(_read_money, words="a sum such as '50000 USD'", per={}), "a sum of money",
    ("50000 USD",),
)  # fmt: skip
HOURLY = quantity(
    partial(_read_money, words="a price such as '500 USD/h'", per=_PER_HOUR, piece=False),
    "a price per time", ("500 USD/h",),
)  # fmt: skip
PRICE = quantity(
    partial(_read_money, words="a price such as '39.33 USD/h' or '310000 USD'", per=_PER_HOUR),
    "a price per time or per piece", ("39.33 USD/h", "310000 USD"),
)  # fmt: skip
ENERGY_PRICE = quantity(
    partial(
        _read_money,
        words="a price such as '0.09 USD/kWh'",
        per={"kWh": 1.0, "MWh": 1e3},
        piece=False,
    ),
    "a price of energy",
    ("0.09 USD/kWh",),
)


def format_period(seconds: float) -> str:
    """`3.2 h`, `12.5 d`: four significant digits in the unit that people use for such times."""
    if seconds == 0.0:
        return "0 s"
    for unit, name in ((8760 * HOUR, "years"), (24 * HOUR, "d"), (HOUR, "h"), (60.0, "min")):
        if seconds >= (2 * unit if name in ("years", "d") else unit):
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds:.4g} s" if seconds >= 1.0 else f"{seconds * 1e3:.4g} ms"


ENERGY = "energy"
FOLDER = Path(__file__).parent / "price_lists"


def _share(value: object) -> float:
    found = number(0.0, 1.0).read(value)
    if found == 0.0:
        raise ValueError("must be above 0 and at most 1, got 0")
    return found


_SHARE = Scalar(
    "a number above 0 and at most 1",
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    _share,
)
_ABOUT = (
    Field("lifetime", SOME_PERIOD, "Time over which what is bought is paid off.",
          default_words="the list's"),
    Field("source", TEXT, "Where the price was published."),
    Field("date", TEXT, "When it was read."),
)  # fmt: skip


def _has_price(values: FieldValues, faults: Faults, path: str) -> None:
    faults.check(
        {"node", "port", "cable"} & values.given, path, "give a price per node, port or cable"
    )


MACHINE_PRICE = Format(
    "machines",
    "What a machine costs.",
    Field("price", PRICE, "Price of one: per time, or of the piece.", required=True),
    Field("power", POWER, "Power that it draws while it trains.", 0.0, default_words="`0 kW`"),
    *_ABOUT,
)
NETWORK_PRICE = Format(
    "networks",
    "What a network costs, by the class of its links. Pieces are counted on the machine: `simreduce"
    " topo show` draws them.",
    Field("node", PRICE, "Price for each machine that is joined."),
    Field("port", PRICE, "Price of each switch port in use."),
    Field("cable", PRICE, "Price of each cable with its two ends, of hosts and between switches."),
    Field("power", POWER, "Power that each switch port in use draws.", 0.0,
          default_words="`0 kW`"),
    *_ABOUT,
    check=_has_price,
)  # fmt: skip
PRICES = Format(
    "prices",
    "A price list. Prices age: state where and when you found them.",
    Field("title", LINE, "What the list holds."),
    Field("date", TEXT, "When the prices were read."),
    Field("sources", ListOf(TEXT), "Where they were published."),
    Field("machines", MapOf(TableOf(MACHINE_PRICE), key="MACHINE"),
          "Machines by the name that options use."),
    Field("networks", MapOf(TableOf(NETWORK_PRICE), key="CLASS"),
          "Networks by the class of their links, such as `ib_ndr`."),
    Field("energy", ENERGY_PRICE, "Price of energy.", default_words="energy is included"),
    Field("overhead", number(1.0), "Power drawn from the grid over that of the equipment (PUE).",
          1.0),
    Field("lifetime", SOME_PERIOD, "Time over which what is bought is paid off.", 4 * 8760 * HOUR,
          default_words="`4 years`"),
    Field("utilisation", _SHARE, "Part of its lifetime in which what is bought computes.", 1.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PriceItem:
    """A price.

    It has its `name` (`machines.p4d.price`), the `value` in the file's `unit`, and `hourly`, the
    factor that makes it money per hour of one unit. `spread` says over which time the price of a
    piece is paid off. `source` and `date` say where and when it was published.
    """

    name: str
    value: float
    unit: str
    hourly: float = 1.0
    spread: str = ""
    source: str = ""
    date: str = ""

    @property
    def bought(self) -> bool:
        """Whether it is the price of a piece, not one per time or energy."""
        return "/" not in self.unit


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a configuration: machines of a name, and the network's links, counted.

    `network` is their class, "" for one machine; `classes` are those of all links.
    """

    machine: str
    nodes: int
    network: str = ""
    ports: int = 0
    cables: int = 0
    classes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices by name, in one `currency`; watts that a machine and a network's port draw from the
    grid. `sources` are those of the whole list, `notes` what a reader should know of it.
    """

    title: str
    date: str
    currency: str
    items: Mapping[str, PriceItem]
    machine_watts: Mapping[str, float] = field(default_factory=dict)
    port_watts: Mapping[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def but(self, name: str, value: float) -> PriceList:
        """The list with another value of one price."""
        return replace(
            self,
            items=MappingProxyType({**self.items, name: replace(self.items[name], value=value)}),
        )

    def quantities(self, pieces: Pieces) -> dict[str, float]:
        """How much of each item a configuration pays for: pieces, and kW of energy."""
        counts = {
            f"machines.{pieces.machine}.price": float(pieces.nodes),
            f"networks.{pieces.network}.node": float(pieces.nodes),
            f"networks.{pieces.network}.port": float(pieces.ports),
            f"networks.{pieces.network}.cable": float(pieces.cables),
            ENERGY: self.watts(pieces) / 1e3,
        }
        return {name: count for name, count in counts.items() if name in self.items and count}

    def watts(self, pieces: Pieces) -> float:
        """Watts that a configuration draws from the grid."""
        machines = self.machine_watts.get(pieces.machine, 0.0) * pieces.nodes
        return machines + self.port_watts.get(pieces.network, 0.0) * pieces.ports

    def per_hour(self, quantities: Mapping[str, float]) -> float:
        """Money per hour of such quantities."""
        return sum(
            count * self.items[name].value * self.items[name].hourly
            for name, count in quantities.items()
        )

    @property
    def machines(self) -> dict[str, PriceItem]:
        """The price of each machine by its name."""
        ends = "machines.", ".price"
        return {
            name.removeprefix(ends[0]).removesuffix(ends[1]): item
            for name, item in self.items.items()
            if name.startswith(ends[0])
        }

    def lacks(self, machine: str) -> str:
        """Why a machine has no price, "" if it has one."""
        known = self.machines
        if machine in known:
            return ""
        near = did_you_mean(machine, known) or f"; there are {', '.join(known) or 'none'}"
        return f"has no price of {quote(machine)}{near}"


def load_prices(text: str) -> PriceList:
    """The price list in a file, or the shipped one of that name. InputError lists every fault."""
    path = Path(text)
    if path.suffix != ".toml" and not exists(text):
        if text not in shipped():
            raise InputError(
                f"no price list {quote(text)}{near_or_all(text, shipped(), '; shipped: ')};"
                " a file ends in .toml"
            )
        path = FOLDER / f"{text}.toml"
    shown = text if path.parent != FOLDER else path.name
    faults = Faults(shown)
    found = faults.require(
        parse_prices(parse_toml(shown, read_text(path, InputError), InputError), faults, "")
    )
    return found if found.title else replace(found, title=path.stem)


def join(lists: Sequence[PriceList]) -> PriceList:
    """Several price lists as one. The first of two prices of a thing counts, and a note says so.

    InputError if they are not all in one currency.
    """
    first, *others = lists
    items, notes = dict(first.items), [*first.notes]
    for each in others:
        if each.currency != first.currency:
            raise InputError(
                f"{_named(each)} is in {each.currency}, {_named(first)} in {first.currency};"
                " convert one"
            )
        for name, item in each.items.items():
            kept = items.setdefault(name, item)
            if (kept.value, kept.unit) != (item.value, item.unit):
                notes.append(
                    f"of {name}, {kept.value:,.10g} {kept.unit} counts,"
                    f" not {item.value:,.10g} {item.unit} of {_named(each)}"
                )
        notes += each.notes
    return PriceList(
        " and ".join(dict.fromkeys(each.title for each in lists)),
        period_of(item.date for item in items.values()),
        first.currency,
        MappingProxyType(items),
        dict(ChainMap(*(dict(each.machine_watts) for each in lists))),
        dict(ChainMap(*(dict(each.port_watts) for each in lists))),
        tuple(dict.fromkeys(source for each in lists for source in each.sources)),
        tuple(dict.fromkeys(notes)),
    )


def _named(prices: PriceList) -> str:
    return quote(prices.title) if prices.title else "the list of the file"


def period_of(dates: Iterable[str]) -> str:
    """The first and the last of some dates, such as `2024-08 to 2024-12`."""
    known = sorted({date for date in dates if date})
    return " to ".join(dict.fromkeys((known[0], known[-1]))) if known else ""


def shipped() -> list[str]:
    """Names of the price lists that come with simreduce."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def parse_prices(table: object, faults: Faults, path: str) -> PriceList | None:
    """The list in a table; None if it has a fault, which `faults` notes."""
    before = len(faults.problems)
    values = PRICES.read(table, faults, path)
    items: dict[str, PriceItem] = {}
    currencies: dict[str, str] = {}

    def add(name: str, price: Money | None, of: Mapping[str, Any]) -> None:
        if price is None:
            return
        currencies.setdefault(price.currency, name)
        seconds, used = of.get("lifetime") or values["lifetime"], values["utilisation"]
        item = PriceItem(
            name, price.amount, price.unit, source=of.get("source") or "",
            date=of.get("date") or values["date"] or "" if of else "",
        )  # fmt: skip
        if item.bought:
            spread = format_period(seconds) + (f", {used:.0%} of them in use" if used < 1 else "")
            item = replace(item, hourly=HOUR / (seconds * used), spread=spread)
        items[name] = item

    for machine, each in (values["machines"] or {}).items():
        add(f"machines.{machine}.price", each["price"], each)
    for network, each in (values["networks"] or {}).items():
        for piece in ("node", "port", "cable"):
            add(f"networks.{network}.{piece}", each[piece], each)
    add(ENERGY, values["energy"], {})
    faults.check(
        values["machines"] or "machines" in values.faulty,
        inside(path, "machines"),
        "missing; give the price of at least one machine",
    )
    first = next(iter(currencies), "")
    for currency, name in list(currencies.items())[1:]:
        faults.add(inside(path, name), f"is in {currency}, others are in {first}; convert them")
    if len(faults.problems) > before:
        return None
    return PriceList(
        values["title"] or "", period_of(item.date for item in items.values()), first,
        MappingProxyType(items),
        _drawn(values["machines"], values["overhead"]),
        _drawn(values["networks"], values["overhead"]), tuple(values["sources"] or ()),
    )  # fmt: skip


def _drawn(tables: Mapping[str, FieldValues] | None, overhead: float) -> dict[str, float]:
    """Watts drawn from the grid, by the names of tables with a `power`."""
    return {name: overhead * each["power"] for name, each in (tables or {}).items()}
