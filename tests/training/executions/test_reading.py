"""Files of recorded runs as files: compressed, cut short, too large, or no files at all."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc

import pytest

from simreduce.training.executions import ExecutionError
from simreduce.training.executions.reading import read_executions

LOG = "".join(
    f"h:{rank}:{rank} [{rank}] NCCL INFO AllReduce: opCount {i:x} sendbuff 0x1 recvbuff 0x2 count "
    f"512 datatype 7 op 0 root 0 comm 0xa [nranks=2] stream 0x5\n"
    for i in range(40)
    for rank in range(2)
).encode()


def test_a_compressed_file_is_read_whole_or_refused(tmp_path):
    """Whether it has one part or several; never as far as it goes."""
    path = tmp_path / "nccl.log.gz"
    whole = gzip.compress(LOG)
    half = LOG.index(b"\n", len(LOG) // 2) + 1
    for content in (whole, gzip.compress(LOG[:half]) + gzip.compress(LOG[half:])):
        path.write_bytes(content)
        assert [40, 40] == [len(nodes) for nodes in read_executions([str(path)]).nodes.values()]
    for content in (whole[:-4], whole[: len(whole) // 2], whole[:-8] + bytes(8), whole + b"more"):
        path.write_bytes(content)
        with pytest.raises(ExecutionError, match="the compressed file is damaged"):
            read_executions([str(path)])


def test_what_is_too_large_takes_no_memory(tmp_path, monkeypatch):
    """As it is, or when it is unpacked."""
    most = 8 << 20
    monkeypatch.setattr("simreduce.training.executions.reading.MOST_BYTES", most)
    large, packed = tmp_path / "large.json", tmp_path / "packed.json.gz"
    large.touch()
    os.truncate(large, 1 << 40)
    packed.write_bytes(gzip.compress(b" " * 4 * most))
    for path in (large, packed):
        tracemalloc.start()
        with pytest.raises(ExecutionError, match="more than"):
            read_executions([str(path)])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < most


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(
            {
                "displayTimeUnit": "ns",
                "traceEvents": [
                    {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}}
                ],
            }
        ).encode(),
        b"\n\xeb\x84\r\x12\t/host:CPU\x1a\xd8\x0e\x08\x9e\xcb\xb2\xff\xd6\x86\x83\xf5\xc7\x01\x12",
        b'\n\x9c\x9e\x01\x12\x0e/host:metadata"\xd3\x06\x08\x02\x12\xce\x06\x08\x02\x12\x17jit_',
    ],
    ids=["trace.json of JAX 0.10.2", "xplane.pb of TensorFlow 2.21.0", "xplane.pb of JAX 0.10.2"],
)
def test_profiles_of_jax_and_tensorflow_are_refused_by_name(tmp_path, content):
    """Their beginnings; the refusal says what to bring."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ExecutionError, match=r"the profiler of JAX or TensorFlow.*NCCL's log"):
        read_executions([str(path)])
