"""Names of nodes and the order people expect of them."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts gpu2 before gpu10; distinct names have distinct keys."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return (*((int(p), "") if p[0] in "0123456789" else (-1, p) for p in parts), (-2, name))
