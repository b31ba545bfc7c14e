"""Published throughputs of sharded training (PyTorch's FSDP) beside predictions.

MosaicML published tokens a second of MPT models on A100 with 40 GB and on many numbers of GPUs:
https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md, "A100 40GB
with 1600 Gbps node-node interconnect (RoCE)", FULL_SHARD, bfloat16, 2048 tokens a sequence. Of
those, the rows whose batch of a GPU is the same on several numbers of GPUs are here, but for one of
1b on 32 GPUs, which is 18 % below both of its neighbours.

The compute of a GPU is fitted to the first number of GPUs, so what is compared is what more GPUs
cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from simreduce import dtypes
from simreduce.engine.setup import Setup
from simreduce.planners.strategy import parse_strategy
from simreduce.study.accuracy.points import Point
from simreduce.training import StepJob, StepPrediction, profile_from_seconds
from simreduce.training.sharded import Sharding, sharded_method, simulate_sharded_step
from simreduce.workload import Model
from simreduce.workload.decoder import Decoder

_TOKENS, _WORDS = 2048, 50368
_ROUNDS = 3
"""In so many rounds the compute comes to be what the first row leaves for it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Tokens a second and GPU of a model, by number of GPUs.

    `parameters` are as published, with so many sequences a GPU. With `again`, the backward pass
    computes the forward pass again.
    """

    name: str
    blocks: int
    width: int
    parameters: int
    batch: int
    tokens: dict[int, int]
    again: bool = False

    @property
    def model(self) -> Model:
        """GPT-2 with another number of words and of positions."""
        times = 3 if self.again else 2
        shape = Decoder(
            self.blocks, self.width, 1, 1, self.width, 4 * self.width, _WORDS, _TOKENS,
            gated=False, bias=True, tied=True, positions=_TOKENS,
        )  # fmt: skip
        layers = (replace(each, backward=times * each.forward) for each in shape.layers(_TOKENS))
        return Model(f"MPT {self.name}", tuple(layers))


SERIES = (
    Series("125m", 12, 768, 125_311_488, 26, {16: 130535, 32: 127122, 64: 125234, 128: 123936}),
    Series("350m", 24, 1024, 355_985_408, 18, {16: 55413, 32: 53811, 64: 52689, 128: 51934}),
    Series("760m", 24, 1536, 760_470_528, 12, {16: 29607, 32: 29648, 64: 29344, 128: 28940}),
    Series("1b", 24, 2048, 1_315_950_592, 10, {64: 19001, 128: 18647}),
    Series("3b", 32, 2560, 2_651_837_440, 6, {32: 9914, 64: 9736, 128: 9538}),
    Series("7b", 32, 4096, 6_658_859_008, 18, {32: 3725, 64: 3665, 128: 3623}, again=True),
    Series("13b", 40, 5120, 12_853_954_560, 16, {64: 1976, 128: 1972}, again=True),
)


@dataclass(frozen=True, slots=True)
class ShardedPoint(Point[Series]):
    """Published and predicted tokens a second and GPU of a model on so many GPUs.

    `exposed` are the seconds of communication that no compute hides. The compute of `fitted` ones
    was fitted to them.
    """

    gpus: int
    exposed: float
    fitted: bool


def predict_sharded(chosen: Iterable[Series]) -> Iterator[ShardedPoint]:
    """Every row of the models, as it is predicted."""
    for series in chosen:
        model, first = series.model, min(series.tokens)
        whole = series.batch * _TOKENS / series.tokens[first]
        compute = whole
        for _ in range(_ROUNDS):
            compute += whole - _step(series, model, first, compute).seconds
        for gpus, tokens in series.tokens.items():
            step = _step(series, model, gpus, compute)
            predicted = series.batch * _TOKENS / step.seconds
            yield ShardedPoint(series, tokens, predicted, gpus, step.exposed, gpus == first)


def _step(series: Series, model: Model, gpus: int, compute: float) -> StepPrediction:
    """A step of FSDP on machines with 8 A100 and 8 ports of 200 Gbit/s.

    It has Composer's defaults: the next unit is gathered after the backward pass of one.
    """
    job = StepJob(model, profile_from_seconds(model, compute), series.batch)
    setup = Setup(f"dgx-a100x{gpus // 8}", "nccl")
    sharding = Sharding(backward_prefetch="post", param_dtype=dtypes.code("bfloat16"))
    how = sharded_method("fsdp", parse_strategy("nccl"), job, setup.layout, sharding)
    return simulate_sharded_step(job, how, setup).step
