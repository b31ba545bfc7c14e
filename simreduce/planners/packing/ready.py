"""The order in which PyTorch's autograd completes gradients."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simreduce.workload import Gradient

_WEIGHT = re.compile(r"(.*)[./](?:weights?|kernel|gamma|scale)")
_BIAS = re.compile(r"(.*)[./](?:bias(?:es)?|beta)")
_CONVOLUTION = re.compile(
    r"(?:conv[^./]*(?:[./]\d+)*|(?:^|[./])features\.\d+|patch[^./]*(?:[./]\w*proj\w*)?)$",
    re.IGNORECASE,
)
"""Names of convolutions: what is deeper in a `features.7.block` may be linear."""


def ready_order(gradients: Sequence[Gradient]) -> list[int]:
    """Indices of gradients, first ready first: the last of the list first, but the weight of a
    convolution or of a norm before its bias, as DDP's log of PyTorch 2.13 shows.

    Names tell which those are (`conv1.weight`, `features.0.bias`, `bn/gamma`); a norm's two are
    equally large.
    """
    order = list(reversed(range(len(gradients))))
    for place in range(len(order) - 1):
        bias, weight = order[place], order[place + 1]
        if _is_weight_first(gradients[weight], gradients[bias]):
            order[place : place + 2] = [weight, bias]
    return order


def _is_weight_first(weight: Gradient, bias: Gradient) -> bool:
    whose, of = _WEIGHT.fullmatch(weight.name), _BIAS.fullmatch(bias.name)
    if not whose or not of or not re.match(rf"{re.escape(of[1])}(?:[./]|$)", whose[1]):
        return False
    return weight.elements == bias.elements or bool(_CONVOLUTION.search(whose[1]))
