"""One task of a cluster with parameter servers, and its work for SyncReplicasOptimizer.

Started by `simreduce_validate.replicas`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from simreduce.training.replicas import SyncSettings
from simreduce_validate.replicas import PACE
from simreduce_validate.running.serve import serve

v1 = tf.compat.v1
v1.disable_v2_behavior()


class Replica:
    """A server, and one worker's part of one training after another."""

    def __init__(self) -> None:
        self._cluster: Any
        self._server: Any
        self._session: Any = None
        self._task = -1
        self._steps: list[tuple[int, float]] = []  # local_step, and when its gradient was computed
        self._times: list[float] = []

    def start(self, jobs: Mapping[str, Sequence[str]], job: str, task: int) -> None:
        """Begin to serve."""
        self._cluster, self._task = (
            tf.train.ClusterSpec({name: list(all_) for name, all_ in jobs.items()}),
            task,
        )
        self._server = tf.distribute.Server(
            self._cluster, job_name=job, task_index=task, protocol="grpc"
        )

    def open(
        self,
        name: str,
        settings: SyncSettings,
        workers: int,
        variables: int,
        steps: int,
        compute: float,
    ) -> None:
        """Be ready for a training of that name. Every variable has one number for each of the first
        `steps` steps of every worker, and the gradient of a step is 1 there.
        """
        me = f"/job:worker/task:{self._task}"
        self._steps, self._times = [], []
        graph = tf.Graph()
        # What is shared lives in a container of its own, so that trainings on the same servers do
        # not meet.
        with graph.as_default(), graph.container(name):
            with v1.device(v1.train.replica_device_setter(worker_device=me, cluster=self._cluster)):
                count = v1.train.get_or_create_global_step()
                held = [
                    v1.get_variable(f"v{i}", [workers * steps], tf.float64, v1.zeros_initializer())
                    for i in range(variables)
                ]
                rate = 1.0 + tf.cast(count, tf.float64) / PACE
                optimizer = v1.train.SyncReplicasOptimizer(
                    v1.train.GradientDescentOptimizer(rate),
                    settings.replicas_to_aggregate,
                    settings.total,
                )
                with v1.device(me):
                    gradient = tf.numpy_function(
                        self._make_computation(workers, steps, compute), held, tf.float64
                    )
                    gradient.set_shape([workers * steps])
                train = optimizer.apply_gradients(
                    [(gradient, each) for each in held], global_step=count
                )
            chief = self._task == 0
            hook = optimizer.make_session_run_hook(chief, settings.initial_tokens)
            hook.begin()
            initialise = v1.global_variables_initializer()
        config = v1.ConfigProto(device_filters=["/job:ps", me])
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self._session = session = v1.Session(self._server.target, graph, config)
        if chief:
            session.run(initialise)
        hook.after_create_session(session, tf.train.Coordinator())
        self._train, self._held = train, held

    def _make_computation(self, workers: int, steps: int, seconds: float) -> Any:
        """A computation that takes so long and gives the gradient of this worker's next step."""
        times = self._times

        def compute(*_: Any) -> Any:
            time.sleep(seconds)
            step = len(times)
            times.append(time.time())
            gradient = np.zeros(workers * steps)
            if step < steps:
                gradient[self._task * steps + step] = 1.0
            return gradient

        return compute

    def go(self, at: float) -> None:
        """Train for ever, beginning at that time of the system's clock."""
        session, train, steps, times = self._session, self._train, self._steps, self._times

        def train_for_ever() -> None:
            local_step = 0
            time.sleep(max(at - time.time(), 0.0))
            try:
                while True:
                    token = int(session.run(train))
                    steps.append((local_step, times[len(steps)] - at))
                    local_step = token
            except (tf.errors.OpError, RuntimeError):  # closed
                pass

        threading.Thread(target=train_for_ever, daemon=True).start()

    def found(self) -> tuple[list[tuple[int, float]], list[list[float]]]:
        """Of every step that is done: its local_step, and when its gradient was there (s); and the
        variables as they are.
        """
        return list(self._steps), [value.tolist() for value in self._session.run(self._held)]

    def close(self) -> None:
        """End the training."""
        self._session.close()


if __name__ == "__main__":
    replica = Replica()
    serve(
        {
            "start": replica.start,
            "open": replica.open,
            "go": replica.go,
            "found": replica.found,
            "close": replica.close,
        }
    )
