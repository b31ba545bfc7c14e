"""Price lists: what machines, networks and energy cost, and what a configuration costs in an hour.

Every price is an `Item` with the value that the file has, in the file's unit, and the factor that
makes it money per hour: 1 for what is paid by the hour, one over the hours in use for what is
bought, watts for energy. What a configuration pays in an hour is a sum over items, each with a
quantity: linear in every price, so that the value at which a choice changes is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import (
    LINE,
    TEXT,
    Faults,
    Field,
    Format,
    ListOf,
    MapOf,
    Scalar,
    TableOf,
    Values,
    number,
)
from simreduce.files.textfiles import exists, parse_toml, read_text
from simreduce.study.capacity.quantities import ENERGY_PRICE, HOUR, POWER, PRICE, SOME_PERIOD, Money

ENERGY = "energy"
FOLDER = Path(__file__).parent / "price_lists"


def _share(value: object) -> float:
    found = number(0.0, 1.0).read(value)
    if found == 0.0:
        raise ValueError("must be above 0 and at most 1, got 0")
    return found


_SHARE_SCHEMA = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_SHARE = Scalar("a number above 0 and at most 1", _SHARE_SCHEMA, _share)
_ABOUT = (
    Field("lifetime", SOME_PERIOD, "Time over which what is bought is paid off.",
          default_words="the list's"),
    Field("source", TEXT, "Where the price was published."),
    Field("date", TEXT, "When it was read."),
)  # fmt: skip


def _has_price(values: Values, faults: Faults, path: str) -> None:
    if not any(key in values.given for key in ("node", "port", "cable")):
        faults.add(path, "give a price per node, port or cable")


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
    Field("lifetime", SOME_PERIOD, "Time over which what is bought is paid off.",
          default_words="`4 years`"),
    Field("utilisation", _SHARE, "Part of its lifetime in which what is bought computes.", 1.0),
)  # fmt: skip
_LIFETIME = 4 * 8760 * HOUR


@dataclass(frozen=True, slots=True)
class Item:
    """A price.

    It has its `name` (`machines.p4d.price`), the `value` in the file's `unit`, and `hourly`, the
    factor that makes it money per hour of one unit.
    """

    name: str
    value: float
    unit: str
    hourly: float = 1.0


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a configuration: machines of a name, and the network's links, counted."""

    machine: str
    nodes: int
    network: str = ""
    ports: int = 0
    cables: int = 0


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices by name, in one `currency`; watts of a machine and of a network's port."""

    title: str
    date: str
    currency: str
    items: Mapping[str, Item]
    machine_watts: Mapping[str, float] = field(default_factory=dict)
    port_watts: Mapping[str, float] = field(default_factory=dict)
    overhead: float = 1.0

    def but(self, name: str, value: float) -> PriceList:
        """The list with another value of one price."""
        items = {**self.items, name: replace(self.items[name], value=value)}
        return replace(self, items=MappingProxyType(items))

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
        return self.overhead * (machines + self.port_watts.get(pieces.network, 0.0) * pieces.ports)

    def per_hour(self, quantities: Mapping[str, float]) -> float:
        """Money per hour of such quantities."""
        return sum(
            count * self.items[name].value * self.items[name].hourly
            for name, count in quantities.items()
        )

    def lacks(self, machine: str) -> str:
        """Why a machine has no price, "" if it has one."""
        if f"machines.{machine}.price" in self.items:
            return ""
        ends = "machines.", ".price"
        known = [
            n.removeprefix(ends[0]).removesuffix(ends[1]) for n in self.items if n[:9] == ends[0]
        ]
        near = did_you_mean(machine, known) or f"; there are {', '.join(known) or 'none'}"
        return f"has no price of {quote(machine)}{near}"


def load_prices(text: str) -> PriceList:
    """The price list in a file, or the shipped one of that name. InputError lists every fault."""
    path = Path(text)
    if path.suffix != ".toml" and not exists(text):
        if text not in shipped():
            near = did_you_mean(text, shipped()) or f"; shipped: {', '.join(shipped())}"
            raise InputError(f"no price list {quote(text)}{near}; a file ends in .toml")
        path = FOLDER / f"{text}.toml"
    shown = text if path.parent != FOLDER else path.name
    faults = Faults(shown)
    table = parse_toml(shown, read_text(path, InputError), InputError)
    found = parse_prices(table, faults, "")
    if found is None or faults.problems:
        raise InputError(faults.problems)
    return found if found.title else replace(found, title=path.stem)


def shipped() -> list[str]:
    """Names of the price lists that come with simreduce."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def parse_prices(table: object, faults: Faults, path: str) -> PriceList | None:
    """The list in a table; None if it has a fault, which `faults` notes."""
    before = len(faults.problems)
    values = PRICES.read(table, faults, path)
    items: dict[str, Item] = {}
    currencies: dict[str, str] = {}
    lifetime = values["lifetime"] or _LIFETIME
    place = f"{path}." if path else ""

    def add(name: str, price: Money | None, own: float | None) -> None:
        if price is None:
            return
        currencies.setdefault(price.currency, name)
        hours = (own or lifetime) * values["utilisation"] / HOUR
        items[name] = Item(name, price.amount, price.unit, 1.0 if price.per else 1.0 / hours)

    for machine, each in (values["machines"] or {}).items():
        add(f"machines.{machine}.price", each["price"], each["lifetime"])
    for network, each in (values["networks"] or {}).items():
        for piece in ("node", "port", "cable"):
            add(f"networks.{network}.{piece}", each[piece], each["lifetime"])
    add(ENERGY, values["energy"], None)
    if not values["machines"] and "machines" not in values.faulty:
        faults.add(f"{place}machines", "missing; give the price of at least one machine")
    first = next(iter(currencies), "")
    for currency, name in list(currencies.items())[1:]:
        faults.add(f"{place}{name}", f"is in {currency}, others are in {first}; convert them")
    if len(faults.problems) > before:
        return None
    return PriceList(
        values["title"] or "", values["date"] or "", first, MappingProxyType(items),
        {name: each["power"] for name, each in (values["machines"] or {}).items()},
        {name: each["power"] for name, each in (values["networks"] or {}).items()},
        values["overhead"],
    )  # fmt: skip
