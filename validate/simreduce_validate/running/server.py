"""One worker of a cluster: a `tf.distribute.Server` that runs what the driver sends it. Started by
`workers`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from simreduce_validate.running.computer import Computer, this_computer
from simreduce_validate.running.serve import serve
from simreduce_validate.running.session import session_config

JOB = "worker"
_held: list[object] = []


def start(addresses: Sequence[str], task: int, cpus: int, threads: int) -> Computer:
    """Begin to serve; returns the computer of this process."""
    config = session_config(cpus, threads)
    config.experimental.collective_group_leader = f"/job:{JOB}/replica:0/task:0"
    server = tf.distribute.Server(
        tf.train.ClusterSpec({JOB: list(addresses)}),
        job_name=JOB,
        task_index=task,
        protocol="grpc",
        config=config,
    )
    _held.append(server)
    return this_computer()


if __name__ == "__main__":
    serve({"start": start})
