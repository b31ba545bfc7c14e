"""Which format a file has, and the ranks of several files together."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simreduce.errors import quote, why_no_path
from simreduce.files.formats import Faults
from simreduce.files.formats.syntax import read_json
from simreduce.files.textfiles import read_bytes, reason
from simreduce.training.executions import execution, nccl_log, pytorch
from simreduce.training.executions.execution import COLLECTIVE, Execution, ExecutionError

_SHOWN = 5
MOST_BYTES = 2 << 30
"""A longer file is refused before it fills the memory."""


ALONE = "a job of one rank: collectives take no time; give every rank's file, or the groups"
"""A note on a job whose other ranks no file names."""
SUFFIXES = (".json", ".et", ".chakra", ".log", ".gz")
"""The ends of records' names."""


def is_record(text: str) -> bool:
    """Whether a text names a record, by its end; no file is looked at."""
    return Path(text).suffix in SUFFIXES and not text.startswith("bytes:")


def read_executions(
    paths: Sequence[str], groups: Mapping[str, tuple[int, ...]] | None = None
) -> Execution:
    """The run that files tell of, one file per rank or one for all.

    `groups` are the ranks of process groups by name, where a trace says names only.

    ExecutionError with every fault of every file.
    """
    faults = Faults()
    found = [e for path in paths if (e := faults.attempt("", _read, path, groups or {}))]
    faults.raise_any(ExecutionError)
    if len(found) == 1:
        (one,) = found
        alone = one.world == 1 and any(node.kind == COLLECTIVE for node in one.nodes[0])
        return replace(one, notes=(*one.notes, ALONE)) if alone else one
    nodes = {}
    for path, one in zip(paths, found, strict=True):
        for rank, row in one.nodes.items():
            faults.check(rank not in nodes, path, f"rank {rank} is in another of these files, too")
            nodes[rank] = row
    faults.raise_any(ExecutionError)
    world = max(*(one.world for one in found), *(rank + 1 for rank in nodes))
    notes = dict.fromkeys(note for one in found for note in one.notes)
    return Execution(paths[0], dict(sorted(nodes.items())), world, tuple(notes))


def _read(path: str, groups: Mapping[str, tuple[int, ...]]) -> Execution:
    content = _content(path)
    if content[:4096].lstrip().startswith((b"{", b"[")):
        return _read_json(path, content)
    if b"NCCL INFO" in content:
        return nccl_log.read(path, content.decode("utf-8", "replace"))
    if b"\x00" in content[:4096] or content[:1] == b"\n" or Path(path).suffix in (".et", ".chakra"):
        return execution.read(path, content, groups)
    raise ExecutionError(
        f"{path}: is neither a Chakra trace (.et), nor JSON of the PyTorch profiler or of DDP's "
        "logging data, nor a log with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL"
    )


def _content(path: str) -> bytes:
    """The bytes of a file, unpacked if it is compressed; nothing is kept of what is too large."""
    try:
        content = read_bytes(Path(path), MOST_BYTES)
    except OSError as error:
        raise ExecutionError(f"{path}: {reason(error)}") from None
    except ValueError as error:
        raise ExecutionError(f"{path!r}: cannot be read: {why_no_path(path, error)}") from None
    if content.startswith(b"\x1f\x8b"):
        try:
            size = sum(map(len, _unpacked(content)))
            content = b"".join(_unpacked(content)) if size <= MOST_BYTES else b""
        except (OSError, EOFError, zlib.error) as error:
            raise ExecutionError(f"{path}: the compressed file is damaged: {error}") from None
        if size > MOST_BYTES:
            raise ExecutionError(f"{path}: more than 2 GiB; record fewer steps")
    if not content:
        raise ExecutionError(f"{path}: is empty")
    return content


def _unpacked(content: bytes) -> Iterator[bytes]:
    """The parts of a compressed file, until there is too much. EOFError if it is cut short."""
    size = 0
    with gzip.open(io.BytesIO(content)) as file:
        while size <= MOST_BYTES and (part := file.read(1 << 20)):
            size += len(part)
            yield part


def _read_json(path: str, content: bytes) -> Execution:
    # Tracers write some arguments of an event twice, and NaN where they measured nothing.
    document = read_json(
        content, f"{path}: is no JSON", ExecutionError, most=MOST_BYTES, twice=True, finite=False
    )
    if isinstance(document, dict) and "traceEvents" in document:
        return pytorch.read_profile(path, document)
    if isinstance(document, dict) and {"bucket_sizes", "rebuilt_bucket_sizes"} & document.keys():
        return pytorch.read_ddp(path, document)
    if isinstance(document, dict) and "nodes" in document and "schema" in document:
        raise ExecutionError(
            f"{path}: is PyTorch's execution trace {quote(document['schema'])}, without what ran "
            "on the GPU; Chakra's trace_link and converter make a .et file of it and of a "
            "profiler's timeline"
        )
    raise ExecutionError(
        f"{path}: this JSON has neither 'traceEvents' of the PyTorch profiler nor 'bucket_sizes' "
        f"of DDP's logging data, and Chakra's traces are no JSON; it has {_found(document)}"
    )


def _found(document: Any) -> str:
    """What a JSON document is, in words: its keys, or its type."""
    if isinstance(document, dict):
        names = [quote(key) for key in list(document)[:_SHOWN]]
        more = ", ..." * (len(document) > _SHOWN)
        return f"the keys {', '.join(names)}{more}" if names else "no key"
    return f"a list of {len(document)}" if isinstance(document, list) else quote(document)
