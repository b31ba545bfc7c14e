"""How far off predictions of NCCL are, as keys of documents."""

from __future__ import annotations

from simreduce.scenario import Scenario
from simreduce.tune.search.tuned import sureness_of


def factor_keys(scenario: Scenario) -> dict[str, float | None]:
    """80 % of the times of NCCL for such a workload are within `factor` of what is predicted, and
    80 % of ratios of two within `ratio_factor`; None if nothing is known of errors.
    """
    sure = sureness_of(scenario, [gradient.nbytes for gradient in scenario.workload.gradients])
    return {
        "factor": sure.factor if sure else None,
        "ratio_factor": sure.ratio_factor if sure else None,
    }
