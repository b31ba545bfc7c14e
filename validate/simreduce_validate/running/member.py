"""One rank of MultiWorkerMirroredStrategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from simreduce_validate.running.rank import serve_rank


class Member:
    """An all-reduce of every gradient in one call, as the strategy makes it for a step. It finds
    the other ranks in TF_CONFIG.
    """

    def __init__(self) -> None:
        self._call: Any
        self._last: Sequence[Any] = ()

    def join(self, addresses: Sequence[str], rank: int, own: Sequence[Any]) -> None:  # noqa: ARG002 - ranks share a signature
        """Begin, with the ring of the runtime."""
        tf.config.threading.set_intra_op_parallelism_threads(1)
        distribute = tf.distribute
        ring = distribute.experimental.CommunicationOptions(
            implementation=distribute.experimental.CommunicationImplementation.RING
        )
        strategy = distribute.MultiWorkerMirroredStrategy(communication_options=ring)
        variables = [tf.Variable(each) for each in own]

        def summed() -> Any:
            context = distribute.get_replica_context()
            return context.all_reduce(
                distribute.ReduceOp.SUM, [tf.identity(each) for each in variables]
            )

        self._call = tf.function(lambda: strategy.run(summed), autograph=False)

    def step(self) -> None:
        """One call."""
        self._last = self._call()

    def results(self) -> Sequence[Any]:
        """The sums."""
        return [tensor.numpy() for tensor in self._last]


if __name__ == "__main__":
    serve_rank(Member())
