"""How far off predictions of NCCL are, as keys of documents."""

from __future__ import annotations

from simreduce.formats.documents import RATIO, Key, or_null
from simreduce.scenario import Scenario
from simreduce.tune.search.tuned import sureness_of

FACTOR_KEYS = (
    Key(
        "factor",
        or_null(RATIO),
        "80 % of NCCL's times for such a workload are within this factor of the prediction; null "
        "if nothing is known of errors.",
    ),
    Key(
        "ratio_factor",
        or_null(RATIO),
        "80 % of the ratios of two of NCCL's times are within this factor of the prediction; null "
        "if nothing is known of errors.",
    ),
)


def factor_keys(scenario: Scenario) -> dict[str, float | None]:
    """80 % of the times of NCCL for such a workload are within `factor` of what is predicted, and
    80 % of ratios of two within `ratio_factor`; None if nothing is known of errors.
    """
    sure = sureness_of(scenario, [gradient.nbytes for gradient in scenario.workload.gradients])
    return {
        "factor": sure.factor if sure else None,
        "ratio_factor": sure.ratio_factor if sure else None,
    }
