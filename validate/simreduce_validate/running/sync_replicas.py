"""One rank of SyncReplicasOptimizer. Variables, accumulators and the queue of tokens are on rank 0,
as if it were the parameter server too; rank 0 is the chief as well.

A step is one update: every rank sends its gradients, the accumulators take their mean when all are
there, the variables are updated, every rank is given a token and reads the variables. No tokens are
given at first, so that no rank runs ahead of an update.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from simreduce_validate.running.rank import serve_rank
from simreduce_validate.running.session import session_config

v1 = tf.compat.v1
v1.disable_v2_behavior()

_SERVER = "/job:worker/task:0"
_PAUSE = 0.05
"""Seconds between two looks at whether the chief is ready."""


_Optimizer: Any = v1.train.Optimizer


class _Keeping(_Optimizer):  # type: ignore[misc]  # TensorFlow has no types
    """The new value of a variable is its gradient, the mean: so that every update can be checked,
    however many came before.
    """

    def __init__(self) -> None:
        super().__init__(use_locking=False, name="keeping")

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return handle.assign(grad, read_value=False)


class SyncReplicas:
    """What a worker of SyncReplicasOptimizer runs."""

    def __init__(self) -> None:
        self._server: Any
        self._session: Any
        self._call: Any
        self._held: Sequence[Any] = ()

    def join(self, addresses: Sequence[str], rank: int, own: Sequence[Any]) -> None:
        """Serve, and be ready to send these gradients."""
        config = session_config()
        cluster = tf.train.ClusterSpec({"worker": list(addresses)})
        self._server = tf.distribute.Server(cluster, "worker", rank, protocol="grpc", config=config)
        me = f"/job:worker/task:{rank}"
        with tf.Graph().as_default() as graph:
            with v1.device(_SERVER):
                count = v1.train.get_or_create_global_step()
                variables = [_zeros(f"v{i}", each) for i, each in enumerate(own)]
            with v1.device(me), v1.variable_scope(f"rank{rank}"):
                gradients = [_zeros(f"g{i}", each, local=True) for i, each in enumerate(own)]
                self._held = [_zeros(f"held{i}", each, local=True) for i, each in enumerate(own)]
                feeds = [v1.placeholder(each.dtype, each.shape) for each in own]
                load = [
                    g.assign(feed, read_value=False)
                    for g, feed in zip(gradients, feeds, strict=True)
                ]
                optimizer = v1.train.SyncReplicasOptimizer(
                    _Keeping(), len(addresses), len(addresses)
                )
                # What is shared it puts where the variables are.
                sent = [
                    (g.read_value(), variable)
                    for g, variable in zip(gradients, variables, strict=True)
                ]
                token = optimizer.apply_gradients(sent, global_step=count)
            with v1.control_dependencies([token]), v1.device(_SERVER):
                read = [variable.read_value() for variable in variables]
            with v1.device(me):
                kept = [
                    held.assign(value, read_value=False)
                    for held, value in zip(self._held, read, strict=True)
                ]
                update = tf.group(*kept)
            hook = optimizer.make_session_run_hook(rank == 0, num_tokens=0)
            hook.begin()
            shared, mine = v1.global_variables_initializer(), v1.local_variables_initializer()
        config.device_filters.extend([_SERVER, me])
        self._session = v1.Session(self._server.target, graph, config)
        if rank == 0:
            self._session.run(shared)
        self._session.run(mine)
        self._session.run(load, dict(zip(feeds, own, strict=True)))
        # As soon as the chief has made the variables; a rank learns of them in no other way.
        while self._session.run(optimizer.ready_for_local_init_op).size:
            time.sleep(_PAUSE)
        hook.after_create_session(self._session, tf.train.Coordinator())
        self._call = self._session.make_callable(update)

    def step(self) -> None:
        """One update."""
        self._call()

    def results(self) -> Sequence[Any]:
        """The means, as this rank read them."""
        found: list[Any] = self._session.run(self._held)
        return found


def _zeros(name: str, like: Any, *, local: bool = False) -> Any:
    """A variable that nothing trains, of the rank's own if it is `local`."""
    where = v1.GraphKeys.LOCAL_VARIABLES if local else v1.GraphKeys.GLOBAL_VARIABLES
    return v1.get_variable(
        name, like.shape, like.dtype, v1.zeros_initializer(), use_resource=True, trainable=False,
        collections=[where]
    )  # fmt: skip


if __name__ == "__main__":
    serve_rank(SyncReplicas())
