"""The published step of five all-reduces, against what simreduce predicts for it.

tensorflow/benchmarks, commit 3777598 (2018-04-24): ResNet-50 gradients, fp32, 8 GPUs, time per step
of 5 chained all-reduces. The machine is not named; a DGX-1 with P100 fits from its link rates
alone, one with V100 does not.

    python -m simreduce_validate.step_of_five          # published against predicted
    python -m simreduce_validate.step_of_five --fit    # fits the constants of dgx1p-tf2018
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

import simreduce as sr
from simreduce.arrays import Floats
from simreduce.engine import NOMINAL, Calibration, LinkConstants
from simreduce.plan import Plan
from simreduce.topology import Topology

STEPS = 5
PUBLISHED: Mapping[str, float] = {
    "copy_to_cpu": 0.322 / STEPS,
    "copy_to_gpus": 0.290 / STEPS,
    "hierarchical_copy": 0.130 / STEPS,
    "hierarchical_copy+packs=8": 0.050 / STEPS,
}
"""Seconds of one all-reduce, by strategy."""

FITTED = "dgx1p-tf2018"
FITTED_TO = ("copy_to_cpu", "copy_to_gpus", "hierarchical_copy")
"""The points that the two constants are fitted to; the fourth is predicted without them."""

START = (50e-6, 4e9)
FINEST = 0.012
"""Steps of the search below this, about 1 %, are below what the published digits tell."""
SLOPE = 0.1


@cache
def _step(strategy: str, machine: str) -> tuple[Plan, Topology]:
    topology = sr.load_topology(machine)
    plan = sr.compile(strategy, sr.load_workload("resnet50"), sr.layout(topology))
    return sr.repeat(plan, STEPS), topology


def predict(strategy: str, machine: str, calibration: Calibration) -> float:
    """Seconds of one all-reduce, as a fifth of the chained step."""
    plan, topology = _step(strategy, machine)
    return sr.simulate(plan, topology, "tensorflow", calibration).seconds / STEPS


def constants(dispatch: float, qpi: float) -> Calibration:
    """The calibration with these two constants: seconds per transfer, bytes/s per QPI lane and
    direction.
    """
    links = {"qpi": LinkConstants(bandwidth=qpi)}
    return Calibration(FITTED, dispatch={"copy": dispatch}, links=links)


@dataclass(frozen=True, slots=True)
class Fit:
    """Least squares on log(predicted / published). Errors are one standard error; there is one
    degree of freedom.
    """

    dispatch: float
    dispatch_error: float
    qpi: float
    qpi_error: float
    residuals: Mapping[str, float]


def _residuals(logs: Floats, points: Sequence[str]) -> Floats:
    calibration = constants(math.exp(logs[0]), math.exp(logs[1]))
    return np.array([math.log(predict(p, "dgx1p", calibration) / PUBLISHED[p]) for p in points])


def squared_error(dispatch: float, qpi: float, points: Sequence[str] = FITTED_TO) -> float:
    """Sum over the points of log(predicted / published) squared."""
    return _squared(np.log([dispatch, qpi]), points)


def _squared(logs: Floats, points: Sequence[str]) -> float:
    r = _residuals(logs, points)
    return float(r @ r)


def fit(points: Sequence[str] = FITTED_TO) -> Fit:
    """Pattern search in the logarithms of both constants: to the best of 8 neighbours, or half the
    step.

    The error is jagged (a constant decides which of two copies is first in a queue), so that its
    gradient leads nowhere; standard errors come from slopes over a step as wide as they are.
    """
    x, step = np.log(START), 0.2
    best = _squared(x, points)
    neighbours = [np.array([i, j]) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    while step > FINEST:
        found = [(_squared(x + step * d, points), *(x + step * d)) for d in neighbours]
        if min(found)[0] < best:
            best, *place = min(found)
            x = np.array(place)
        else:
            step /= 2
    r = _residuals(x, points)
    slopes = [
        (_residuals(x + SLOPE * d, points) - _residuals(x - SLOPE * d, points)) / (2 * SLOPE)
        for d in np.eye(2)
    ]
    jacobian = np.stack(slopes, axis=1)
    variance = best / max(len(points) - 2, 1)
    error = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)) * variance)
    dispatch, qpi = np.exp(x).tolist()
    residuals = dict(zip(points, r.tolist(), strict=True))
    return Fit(dispatch, dispatch * float(error[0]), qpi, qpi * float(error[1]), residuals)


def alone(point: str, start: Fit) -> tuple[float | None, float | None]:
    """(dispatch, qpi) that this point alone asks for, the other constant being as fitted; None
    where none does.
    """

    def solve(axis: int, low: float, high: float) -> float | None:
        def miss(value: float) -> float:
            pair = (value, start.qpi) if axis == 0 else (start.dispatch, value)
            return predict(point, "dgx1p", constants(*pair)) - PUBLISHED[point]

        at_low, at_high = miss(low), miss(high)
        if at_low * at_high > 0:
            return None
        for _ in range(20):
            middle = math.sqrt(low * high)
            if miss(middle) * at_low > 0:
                low = middle
            else:
                high = middle
        return math.sqrt(low * high)

    return solve(0, 1e-7, 1e-3), solve(1, 5e8, 2e10)


def report() -> str:
    """Published against predicted: nominal on both machines, and with the fitted constants."""
    cases = (("dgx1p", NOMINAL), ("dgx1v", NOMINAL), ("dgx1p", sr.load_calibration(FITTED)))
    head = "".join(f"  {f'{m}, {c.name}':>22}" for m, c in cases)
    lines = [f"{'one all-reduce of ResNet-50':27}  {'published':>9}{head}"]
    for strategy, seconds in PUBLISHED.items():
        cells = []
        for machine, calibration in cases:
            predicted = predict(strategy, machine, calibration)
            cells.append(f"  {predicted * 1e3:9.2f} ms ({predicted / seconds - 1:+6.1%}) ")
        lines.append((f"{strategy:27}  {seconds * 1e3:6.1f} ms" + "".join(cells)).rstrip())
    return "\n".join(lines)


def fit_report() -> str:
    """The two constants, their errors, and what each point alone would have given."""
    found = fit()
    lines = [
        (
            f"dispatch per transfer  {found.dispatch * 1e6:6.1f} us    +- "
            f"{found.dispatch_error * 1e6:.1f}"
        ),
        f"QPI per lane           {found.qpi / 1e9:6.2f} GB/s  +- {found.qpi_error / 1e9:.2f}",
        "",
        "each point alone           dispatch (QPI as fitted)   QPI (dispatch as fitted)",
    ]
    for point in FITTED_TO:
        dispatch, qpi = alone(point, found)
        one = f"{dispatch * 1e6:.1f} us" if dispatch else "says nothing"
        two = f"{qpi / 1e9:.2f} GB/s" if qpi else "says nothing"
        lines.append(
            f"{point:27}{one:>20}{two:>27}   residual {math.expm1(found.residuals[point]):+.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the comparison, or the fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fit", action="store_true", help="fit the two constants instead (a minute or two)"
    )
    print(fit_report() if parser.parse_args().fit else report())


if __name__ == "__main__":
    main()
