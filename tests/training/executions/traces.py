"""Writes traces as other programs do."""

from __future__ import annotations

from google.protobuf.internal.encoder import _VarintBytes

from simreduce.training.executions import message_types

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = 0, 2, 7


def node(number, kind, after=(), micros=0, **attributes):
    """A node of Chakra's; attributes by the type of their value."""
    made = message_types().node(
        id=number, name=f"node{number}", type=kind, duration_micros=micros, data_deps=list(after)
    )
    attribute = message_types().attribute
    for name, value in attributes.items():
        field = {bool: "bool_val", int: "int64_val", str: "string_val"}[type(value)]
        made.attr.append(attribute(name=name, **{field: value}))
    return made


def chakra(path, nodes, version="0.0.4"):
    """The file of one rank: each message behind its length."""
    messages = [message_types().metadata(version=version), *nodes]
    texts = [message.SerializeToString() for message in messages]
    path.write_bytes(b"".join(_VarintBytes(len(text)) + text for text in texts))
    return str(path)


def kernel(name, stream, begin, took, launched=None, number=0, **args):
    """Events of a profiler's timeline: a kernel, and its launch."""
    args = {"stream": stream, "correlation": number, **args}
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": took, "args": args},
    ]
    if launched is not None:
        args = {"correlation": number}
        events.append(
            {
                "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launched,
                "dur": 1, "args": args,
            }
        )  # fmt: skip
    return events
