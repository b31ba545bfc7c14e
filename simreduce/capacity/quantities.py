"""Quantities of price lists: money, prices per hour or per piece, periods of time, power."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from simreduce.errors import did_you_mean, quote
from simreduce.formats import quantity

HOUR = 3600.0
"""Seconds of an hour, in which prices and energy are counted."""

_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+)"
_PERIOD = re.compile(rf"\s*{_NUMBER}\s*([a-z]+)\s*")
_POWER = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z]+)\s*")
_MONEY = re.compile(rf"\s*{_NUMBER}\s*([A-Z]{{3}})(?:\s*/\s*([A-Za-z]+))?\s*")
_PERIODS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": HOUR,
    "d": 24 * HOUR,
    "days": 24 * HOUR,
    "weeks": 7 * 24 * HOUR,
    "months": 730 * HOUR,
    "years": 8760 * HOUR,
}
_WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6}
_PER = {"h": 1.0, "d": 24.0, "month": 730.0, "year": 8760.0}
_ENERGY = {"kWh": 1.0, "MWh": 1e3}


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


def read_period(value: object) -> float:
    """Seconds of `30 s`, `72 h`, `30 d` or `4 years`; a month has 730 h, a year 8760 h."""
    words = "write a time as text, for example '30 s', '72 h' or '4 years'"
    number, unit = _split(_PERIOD, value, words, _PERIODS | {"year": 1.0, "month": 1.0, "day": 1.0})
    return _finite(number * (_PERIODS.get(unit) or _PERIODS[f"{unit}s"]), value)


def read_power(value: object) -> float:
    """Watts of `10.2 kW`."""
    words = "write a power as text, for example '10.2 kW'"
    number, unit = _split(_POWER, value, words, _WATTS)
    return _finite(number * _WATTS[unit], value)


def read_money(value: object) -> Money:
    """A sum of money, such as `50000 USD`."""
    return _money(value, "a sum such as '50000 USD'", {})


def read_price(value: object) -> Money:
    """A price per piece, or per time that is used: `310000 USD`, `39.33 USD/h`."""
    found = _money(value, "a price such as '39.33 USD/h' or '310000 USD'", _PER)
    return Money(found.amount / _PER[found.per], found.currency, "h") if found.per else found


def read_hourly(value: object) -> Money:
    """A price per time: `500 USD/h`."""
    found = read_price(value)
    if not found.per:
        raise ValueError(f"must be a price per time such as '500 USD/h', got {quote(value)}")
    return found


def read_energy_price(value: object) -> Money:
    """A price of energy: `0.09 USD/kWh`."""
    found = _money(value, "a price such as '0.09 USD/kWh'", _ENERGY)
    if not found.per:
        raise ValueError(f"must be a price such as '0.09 USD/kWh', got {quote(value)}")
    return Money(found.amount / _ENERGY[found.per], found.currency, "kWh")


def _money(value: object, words: str, per: dict[str, float]) -> Money:
    match = _MONEY.fullmatch(value) if isinstance(value, str) and len(value) <= 60 else None
    if match is None:
        raise ValueError(f"must be {words}, with a currency of three letters, got {quote(value)}")
    number, currency, unit = match.groups()
    if unit is not None and unit not in per:
        raise ValueError(f"must be {words}, got {quote(value)}{did_you_mean(unit, per)}")
    return Money(_finite(float(number), value), currency, unit or "")


def _split(
    pattern: re.Pattern[str], value: object, words: str, known: dict[str, float]
) -> tuple[float, str]:
    match = pattern.fullmatch(value) if isinstance(value, str) and len(value) <= 60 else None
    if match is None:
        raise ValueError(f"{quote(value)}: {words}")
    if match[2] not in known:
        near = did_you_mean(match[2], known)
        raise ValueError(f"{quote(value)}: unknown unit {match[2]!r}{near}; {words}")
    return float(match[1]), match[2]


def _finite(number: float, value: object) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{quote(value)} is too large")
    return number


def _limits(least: float, words: str) -> tuple[float, float, str]:
    return least, math.inf, words


PERIOD = quantity(read_period, "a time", ("72 h", "30 d", "4 years"), _limits(0.0, "from 0 s"))
SOME_PERIOD = quantity(
    read_period, "a time", ("72 h", "30 d", "4 years"), _limits(1e-9, "above 0 s")
)
POWER = quantity(read_power, "a power", ("10.2 kW",))
MONEY = quantity(read_money, "a sum of money", ("50000 USD",))
HOURLY = quantity(read_hourly, "a price per time", ("500 USD/h",))
PRICE = quantity(read_price, "a price per time or per piece", ("39.33 USD/h", "310000 USD"))
ENERGY_PRICE = quantity(read_energy_price, "a price of energy", ("0.09 USD/kWh",))


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
