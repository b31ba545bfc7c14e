"""Quantities of price lists: money, prices per hour or per piece, periods of time, power."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from simreduce import units
from simreduce.errors import did_you_mean, quote
from simreduce.files.formats import quantity

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
_WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6}
_PER_HOUR = {"h": 1.0, "d": 24.0, "month": 730.0, "year": 8760.0}
_PER_KWH = {"kWh": 1.0, "MWh": 1e3}


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
    if not math.isfinite(amount):
        raise ValueError(f"{quote(value)} is too large")
    return Money(amount, currency, next(iter(per)) if unit else "")


_read_period = partial(
    units.read, table=_PERIODS, what="time", examples="'30 s', '72 h' or '4 years'"
)
_TIME = "a time", ("72 h", "30 d", "4 years")
PERIOD = quantity(_read_period, *_TIME, (0.0, math.inf, "from 0 s"))
SOME_PERIOD = quantity(_read_period, *_TIME, (1e-9, math.inf, "above 0 s"))
POWER = quantity(
    partial(units.read, table=_WATTS, what="power", examples="'10.2 kW'"), "a power", ("10.2 kW",)
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
    partial(_read_money, words="a price such as '0.09 USD/kWh'", per=_PER_KWH, piece=False),
    "a price of energy", ("0.09 USD/kWh",),
)  # fmt: skip


def format_period(seconds: float) -> str:
    """`3.2 h`, `12.5 d`: four significant digits in the unit that people use for such times."""
    if seconds == 0.0:
        return "0 s"
    for unit, name in ((8760 * HOUR, "years"), (24 * HOUR, "d"), (HOUR, "h"), (60.0, "min")):
        if seconds >= (2 * unit if name in ("years", "d") else unit):
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds:.4g} s" if seconds >= 1.0 else f"{seconds * 1e3:.4g} ms"


def format_amount(amount: float) -> str:
    """`12,300` or `1.374`: four significant digits, whole from 10,000 on."""
    if not math.isfinite(amount):
        return "unlimited"
    if abs(amount) >= 1e4:
        return f"{amount:,.0f}"
    return f"{amount:.4g}"
