"""A replayed run as Chrome's trace-event JSON: of every recorded rank a track for each lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simreduce.executions import COMPUTE
from simreduce.trace.chrome import document
from simreduce.trace.rows import rows
from simreduce.trace.threads import Slice, Thread, thread_events
from simreduce.training.replay import Replay


def replay_trace_text(replay: Replay, about: Mapping[str, Any]) -> Iterator[str]:
    """The file in pieces; `about` is what to say of the run as a whole."""
    facts = {key: value for key, value in about.items() if not isinstance(value, list)}
    return document(facts, thread_events(_threads(replay)))


def _threads(replay: Replay) -> Iterator[Thread]:
    lanes: dict[tuple[int, str], list[Slice]] = {}
    for ran in replay.ran:
        node = ran.node
        moved = {} if node.kind == COMPUTE else {"bytes": node.nbytes, "kind": node.kind}
        args = moved if node.seconds is None else moved | {"recorded_us": node.seconds * 1e6}
        lane = node.lane or "transfers"
        lanes.setdefault((ran.rank, lane), []).append((ran.begin, ran.end, node.name, args))
    for (rank, lane), slices in sorted(lanes.items()):
        begin, end = (np.array([s[i] for s in slices], dtype=np.float64) for i in (0, 1))
        for number, row in enumerate(rows(np.arange(len(slices)), begin, end), 1):
            thread = lane if number == 1 else f"{lane} ({number})"
            yield f"rank {rank}", thread, [(s, until, *slices[i][2:]) for i, s, until in row]
