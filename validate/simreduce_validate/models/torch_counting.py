"""FLOPs of a module's own work in each pass, by PyTorch's formulas.

PyTorch's `FlopCounterMode` finds the module of a backward operation by hooks on tensors, and
counts one several times where a module has several inputs or changes one in place. Here autograd
says it: a node has a number that grows while the forward pass makes nodes, so the number gives the
module that ran then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

_CONVOLUTION = torch.ops.aten.convolution
_BACKWARD = torch.ops.aten.convolution_backward


class Counted:
    """Follows a module that is called and derived inside `with counted.mode`. `called` has the
    names of modules in order of their first call, `forward` and `backward` their own FLOPs.
    """

    def __init__(self, module: Any) -> None:
        self.called: list[str] = []
        self.forward: Counter[str] = Counter()
        self.backward: Counter[str] = Counter()
        formulas: Mapping[Any, Any] = flop_registry
        counts = {op: self._counting(op, formula) for op, formula in formulas.items()}
        self.mode = FlopCounterMode(display=False, custom_mapping=counts)
        self._stack: list[str] = []
        self._since: list[int] = []
        self._current: list[str] = []
        self._hooks = []
        for name, each in module.named_modules():
            self._hooks += [
                each.register_forward_pre_hook(self._entering(name)),
                each.register_forward_hook(self._left, always_call=True),
            ]

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            if name not in self.called:
                self.called.append(name)
            self._stack.append(name)
            self._note()

        return enter

    def _left(self, *_: Any) -> None:
        self._stack.pop()
        self._note()

    def _note(self) -> None:
        """From the next node on, nodes belong to the module that runs now."""
        self._since.append(torch.autograd._get_sequence_nr())  # noqa: SLF001 - as torch.fx does
        self._current.append(self._stack[-1] if self._stack else "")

    def _counting(self, op: Any, formula: Callable[..., int]) -> Callable[..., int]:
        """The formula of an operation, which also adds to the module that it is for."""

        def count(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
            if op == _BACKWARD:
                flops = _convolution_backward(*args)
            else:
                flops = formula(*args, out_val=out_val, **kwargs)
            node = torch._C._current_autograd_node()  # noqa: SLF001 - None in the forward pass
            if node is None:
                self.forward[self._stack[-1] if self._stack else ""] += flops
            else:
                self.backward[self._stack[-1] if self._stack else self._owner(node)] += flops
            return flops

        count._get_raw = True  # type: ignore[attr-defined]  # noqa: SLF001 - tensors, not shapes
        return count

    def _owner(self, node: Any) -> str:
        place = bisect_right(self._since, node._sequence_nr()) - 1  # noqa: SLF001
        return self._current[place] if place >= 0 else ""


def _convolution_backward(gradient: Any, inputs: Any, weight: Any, _: Any, *more: Any) -> int:
    """As much for each of the two derivatives as the forward pass takes. PyTorch's own formula
    takes as many times that for the weight's as there are groups.
    """
    *settings, wanted = more
    once = flop_registry[_CONVOLUTION](inputs, weight, None, *settings, out_val=gradient)
    return int(once) * sum(map(bool, wanted[:2]))
