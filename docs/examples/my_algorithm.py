"""A reduction of your own: sum every tensor on the last GPU, then copy it to every GPU."""

from __future__ import annotations

import simreduce as sr
from simreduce.plan import PlanBuilder
from simreduce.planners.algorithms import Options, Results, Tensors
from simreduce.planners.layouts import Layout


@sr.algorithm("mine", "sums every tensor on the last GPU, then copies it to every GPU")
def mine(builder: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """`tensors[i][rank]` is tensor i on a rank; the result has the same shape."""
    last = len(layout) - 1
    results = []
    for tensor in tensors:
        arrived = [builder.copy(value, last) for value in tensor[:-1]]
        total = builder.add([*arrived, tensor[-1]])
        results.append([*(builder.copy(total, rank) for rank in range(last)), total])
    return results


if __name__ == "__main__":
    plan = sr.compile("mine", "resnet50", "dgx1v")
    assert not sr.verify(plan)
    print(sr.simulate(plan, "dgx1v"))
    print(sr.rank("dgx1v", "resnet50", ["mine+packs=8", "reduce_to_one+packs=8"]))
