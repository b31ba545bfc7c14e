"""Published timings of collectives, with their sources."""

from simreduce.files.published.reading import (
    COLLECTIVES,
    ITERATIONS,
    LAUNCHERS,
    PUBLISHED,
    RCCL,
    PublishedTable,
    published_tables,
    read_published,
)

__all__ = [
    "COLLECTIVES",
    "ITERATIONS",
    "LAUNCHERS",
    "PUBLISHED",
    "RCCL",
    "PublishedTable",
    "published_tables",
    "read_published",
]
