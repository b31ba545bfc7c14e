"""The arguments of `tf.train.SyncReplicasOptimizer` and of its hook, under their own names."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.errors import InputError


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """`replicas_to_aggregate` gradients of every variable make an update, and every update puts out
    tokens for `total_num_replicas` workers (or as many as it needs, if these are more; by default
    they are as many). More workers than gradients are *backups*.

    `num_tokens` are in the queue at the start; -1 are as many as an update needs. None are the
    fewest that do: none, unless workers must send several gradients each. `faithful`: None is -1,
    as upstream, so that the first update waits for nobody, and sparse gradients are averaged as
    upstream does.
    """

    replicas_to_aggregate: int
    total_num_replicas: int | None = None
    num_tokens: int | None = None
    faithful: bool = False

    def __post_init__(self) -> None:
        problems = []
        needed, total = self.replicas_to_aggregate, self.total_num_replicas
        if needed < 1:
            problems.append(
                f"replicas_to_aggregate: an update takes 1 gradient or more, not {needed}"
            )
        if total is not None and total < 1:
            problems.append(f"total_num_replicas: 1 or more, not {total}")
        tokens = self.num_tokens
        if tokens is not None and tokens < -1:
            problems.append(f"num_tokens: 0 or more, or -1 for replicas_to_aggregate, not {tokens}")
        if not problems and tokens is not None and 0 <= tokens < self.fewest_tokens:
            problems.append(
                f"num_tokens: too few tokens to finish the first step: {tokens} given, {self.fewest_tokens} needed"
            )
        if problems:
            raise InputError(problems)

    @property
    def total(self) -> int:
        """Workers that there are tokens for."""
        return (
            self.replicas_to_aggregate
            if self.total_num_replicas is None
            else self.total_num_replicas
        )

    @property
    def fewest_tokens(self) -> int:
        """Without these, one gradient of every worker is not enough for the first update."""
        return max(self.replicas_to_aggregate - self.total, 0)

    @property
    def initial_tokens(self) -> int:
        """In the queue at the start, all of step 0."""
        if self.num_tokens is None:
            return self.replicas_to_aggregate if self.faithful else self.fewest_tokens
        return self.replicas_to_aggregate if self.num_tokens == -1 else self.num_tokens

    @property
    def tokens_per_step(self) -> int:
        """Put out by every update."""
        return max(self.total, self.replicas_to_aggregate)


def easyrec(workers: int) -> SyncSettings:
    """As EasyRec sets it (parameter-server strategy, `sync_replicas`, several workers): everybody's
    gradient in every update, and no token at the start. InputError if it would not: one worker it
    does not synchronise. Its queue runner is another hook's and its queue is closed at the end;
    neither changes what an update takes or is made of.
    """
    if workers < 2:
        raise InputError(f"EasyRec synchronises several workers, not {workers}")
    return SyncSettings(replicas_to_aggregate=workers, total_num_replicas=workers, num_tokens=0)
