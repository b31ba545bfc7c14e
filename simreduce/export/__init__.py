"""What to type elsewhere to get a strategy: pure functions of strategies."""

from simreduce.export.settings import Settings, as_typed, settings

__all__ = ["Settings", "as_typed", "settings"]
