"""Libraries that serve models, and their all-reduces of tensor parallel ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from simreduce import dtypes, units
from simreduce.export.choice import Choice, holding, not_gradients
from simreduce.export.framework import Framework

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Kernel:
    """An all-reduce that a library has: what switches it on.

    It runs on so many GPUs as `most` has for their compute capability, or else for 0, up to so many
    bytes, and on any number where that is empty; between the two sizes of `left_out`, by GPUs, the
    library runs another. Versions `before` some pull run it from other sizes on, by GPUs. `types`
    are those of its elements; empty for all. Some are not `on_amd`'s GPUs.
    """

    switch: str
    most: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    left_out: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    before: tuple[str, Mapping[int, int]] = ("", {})
    types: tuple[str, ...] = ()
    on_amd: bool = True

    def sizes(self, gpus: int) -> str:
        """From and up to which sizes the library runs it, by version; "" of all sizes."""
        if gpus not in self.left_out:
            return ""
        low, high = map(units.exact_size, self.left_out[gpus])
        when, least = self.before
        older = f" ({when}: from {units.exact_size(least[gpus])} on)" if gpus in least else ""
        return f"up to {low} and from {high} on{older}"


@dataclass(frozen=True)
class Server:
    """A library with its all-reduces by strategy, NCCL's first.

    `write` makes its files of a strategy and the first comments. `on_amd` says whether it runs on
    AMD's GPUs.
    """

    title: str
    kernels: Mapping[str, Kernel]
    write: Callable[[str, Sequence[str]], Mapping[str, str]]
    on_amd: bool = False

    def refusals(self, choice: Choice) -> list[str]:
        """Why it has no setting for a choice."""
        strategy, found = choice.resolved, not_gradients(choice, "a tensor parallel layer")
        names = {r.algorithm for r in strategy.ranges}
        if len(names) > 1 or not names <= {*self.kernels}:
            known = ", ".join(self.kernels)
            return [*found, f"{self.title} has {known}, one of them for all sizes"]
        found += holding(
            {
                f"{self.title} packs nothing": strategy.packing != "none",
                f"{self.title} runs on NVIDIA's GPUs": (
                    choice.facts.library != "nccl" and not self.on_amd
                ),
            }
        )
        return [*found, *self.limits(names.pop(), choice)]

    def limits(self, name: str, choice: Choice) -> list[str]:
        """Why a kernel does not run so many GPUs, so many bytes or such elements."""
        kernel, gpus, has = self.kernels[name], choice.setup.layout.n, f"{self.title} has {name}"
        types = {dtypes.NAMES[g.dtype] for g in choice.workload.gradients}
        found = holding(
            {
                f"{has} for {' and '.join(kernel.types)} only": (
                    kernel.types and not types <= {*kernel.types}
                ),
                f"{has} on NVIDIA's GPUs only": choice.facts.library != "nccl"
                and not kernel.on_amd,
            }
        )
        if not kernel.most:
            return found
        most = kernel.most.get(choice.setup.capability, kernel.most[0])
        if gpus not in most:
            some = _spans(most) or "none of this generation"
            return [*found, f"{has} for so many GPUs: {some}"]
        size, large = units.exact_size, largest(choice)
        low, high = kernel.left_out.get(gpus, (0, 0))
        sizes = (gradient.nbytes for gradient in choice.workload.gradients)
        between = next((nbytes for nbytes in sizes if low < nbytes < high), 0)
        words = f"{has} on {gpus} GPUs {kernel.sizes(gpus)}"
        return found + holding(
            {
                f"{has} up to {size(most[gpus])} on {gpus} GPUs, and a tensor has {size(large)}": (
                    large > most[gpus]
                ),
                f"{words}; a tensor has {size(between)}": between,
            }
        )

    def files(self, choice: Choice) -> Mapping[str, str]:
        """The files of a choice by name."""
        name = choice.resolved.ranges[0].algorithm
        sizes, gpus = self.kernels[name].sizes(choice.setup.layout.n), choice.setup.layout.n
        which = f"{self.title} runs it on {gpus} GPUs for tensors {sizes}."
        return self.write(name, [choice.title, *[which] * bool(sizes)])

    def framework(self, name: str, default: Callable[[Choice], str]) -> Framework:
        """The library as commands know it, with the strategy that it takes by itself."""
        return Framework(
            name,
            self.title,
            self.files,
            self.refusals,
            lambda _: [*self.kernels][::-1],
            default=default,
            switches={name: kernel.switch for name, kernel in self.kernels.items()},
            trains=False,
            by_plans=True,
        )


def largest(choice: Choice) -> int:
    """Bytes of the largest tensor."""
    return max(gradient.nbytes for gradient in choice.workload.gradients)


def _spans(numbers: Iterable[int]) -> str:
    """`4, 8 to 72`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low} to {high}" if low < high else f"{low}" for low, high in spans)
