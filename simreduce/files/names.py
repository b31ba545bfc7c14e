"""Names from outside: of nodes, hosts and classes of links."""

from __future__ import annotations

import re
from typing import Self

from simreduce.errors import InputError, quote

RULE = "1 to 255 letters, digits or any of _ . : / -, the first no -"
_NAME = re.compile(r"(?!-)[A-Za-z0-9_.:/-]{1,255}")


class Name(str):
    """Text that ends no word of a shell, no line of a file and no sentence on a terminal.

    There is no other: InputError for a value that breaks the rule.
    """

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Check a value that somebody else wrote."""
        if not is_name(value):
            raise InputError(f"{quote(value)} is not a name ({RULE})")
        return super().__new__(cls, value)


def is_name(value: object) -> bool:
    """Whether a value may be a name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
