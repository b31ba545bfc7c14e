"""What to type elsewhere to get a strategy: pure functions of strategies."""

from simreduce.export.settings import Settings, settings

__all__ = ["Settings", "settings"]
