"""The arguments of `tf.train.SyncReplicasOptimizer` and of its hook, under their own names."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.errors import InputError


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """The optimizer's arguments.

    An update takes `replicas_to_aggregate` gradients of every variable and puts out tokens for
    `total_num_replicas` workers, at least as many as gradients (the default). Workers beyond the
    gradients are *backups*.

    `num_tokens` is the queue's length at the start; -1 for `replicas_to_aggregate`. None is the
    fewest that work: 0 unless workers must send several gradients each. If `faithful`, None is -1,
    as upstream, so the first update waits for nobody; sparse gradients are averaged as upstream.
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
                "num_tokens: too few tokens to finish the first step:"
                f" {tokens} given, {self.fewest_tokens} needed"
            )
        if problems:
            raise InputError(problems)

    @property
    def total(self) -> int:
        """How many workers get tokens."""
        return (
            self.replicas_to_aggregate
            if self.total_num_replicas is None
            else self.total_num_replicas
        )

    @property
    def fewest_tokens(self) -> int:
        """Tokens needed for the first update, beside one gradient of every worker."""
        return max(self.replicas_to_aggregate - self.total, 0)

    @property
    def initial_tokens(self) -> int:
        """Tokens in the queue at the start, all of step 0."""
        if self.num_tokens is None:
            return self.replicas_to_aggregate if self.faithful else self.fewest_tokens
        return self.replicas_to_aggregate if self.num_tokens == -1 else self.num_tokens

    @property
    def tokens_per_step(self) -> int:
        """Tokens that every update puts out."""
        return max(self.total, self.replicas_to_aggregate)


def easyrec(workers: int) -> SyncSettings:
    """Return the settings of EasyRec (parameter-server strategy, `sync_replicas`).

    A gradient of every worker is in every update, and there is no token at the start. InputError
    for one worker, which EasyRec does not synchronise.
    """
    if workers < 2:
        raise InputError(f"EasyRec synchronises several workers, not {workers}")
    return SyncSettings(replicas_to_aggregate=workers, total_num_replicas=workers, num_tokens=0)
