"""Measure a user's own training step on one GPU, or on the CPU.

    python -m simreduce_validate.stepping PACKAGE.MODULE:FUNCTION --batch 16 --out measured

FUNCTION takes the batch and the device and returns a model with a function of its loss:

    def gpt2(batch, device):
        model = GPT2LMHeadModel(GPT2Config()).to(device)
        words = torch.randint(50257, (batch, 1024), device=device)
        return model, lambda: model(input_ids=words, labels=words).loss

The folder then holds the model by layers with the measured time of each, which a scenario takes:

    workload = "measured/model.toml"
    [step]
    batch = 16
    profile = "measured/profile.csv"
    update = "1.02 ms"                   # as printed

`passes.csv` has the step's passes and peak memory in a row, as `simreduce accuracy gpu FILE` reads
them beside predictions if NAME is a model that simreduce knows. Layers are modules with parameters,
in the order in which the forward pass reaches them; a parameter that several share belongs to the
first, and one of a module that another reads without a call to the nearest around it. The time of a
layer ends when its last gradient is ready. A GPU's events give times without waits; the few hooks
take microseconds of the host.
"""

from __future__ import annotations

import csv
import importlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import click
import torch
from torch import nn

from simreduce.errors import InputError, quote
from simreduce.files import write_folder
from simreduce.training.eager import AMP, BF16, COMPILED, EAGER, PRECISIONS, TF32
from simreduce.units import format_size
from simreduce.workload import Gradient, Layer, Model
from simreduce_validate.model import model_text

Loss = Callable[[], torch.Tensor]
COLUMNS = (
    "gpu", "workload", "batch", "kernels", "precision", "forward_ms", "backward_ms", "update_ms",
    "step_ms", "peak_mb",
)  # fmt: skip
_WARM = 3
"""Steps before the first that counts."""


class LayerTime(NamedTuple):
    """A layer's gradients, and its seconds forward and backward."""

    layer: Layer
    forward: float
    backward: float


@dataclass
class Measured:
    """Seconds of a step's passes and update; bytes of memory, 0 on a CPU.

    They are what PyTorch allocated and reserved at most, and what the driver says is in use.
    """

    forward: float
    backward: float
    update: float
    layers: list[LayerTime] = field(default_factory=list)
    allocated: int = 0
    reserved: int = 0
    used: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.forward + self.backward + self.update


class _Clock:
    """Marks moments on the device: on a GPU, when its stream gets there."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")

    def now(self) -> Any:
        """A mark."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Seconds between two marks, once the device has reached them."""
        return float(begin.elapsed_time(end) * 1e-3 if self.cuda else end - begin)

    def wait(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()


def load_function(text: str) -> Callable[[int, str], tuple[nn.Module, Loss]]:
    """The function PACKAGE.MODULE:FUNCTION. InputError if there is none."""
    module, _, name = text.partition(":")
    sys.path.insert(0, "")  # modules beside the user, as Python's own -m has them
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        words = "write PACKAGE.MODULE:FUNCTION of a module that Python finds here"
        raise InputError(f"{quote(text)}: {error}; {words}") from None
    if not callable(found):
        raise InputError(f"{quote(text)} is no function")
    return found  # type: ignore[no-any-return]


def _use(device: str) -> None:
    """Make it the current device, on which events record. InputError if it is not there."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).partition("\n")[0]
        raise InputError(f"device {quote(device)} cannot be used: {first}") from None
    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device).index or 0)


@contextmanager
def _told(device: str) -> Iterator[None]:
    """Tell in one line that memory does not do: InputError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise InputError(
            f"{device} has too little memory for this; give a smaller --batch"
        ) from None


def build(text: str, batch: int, device: str) -> tuple[nn.Module, Loss]:
    """What the function at `text` returns. InputError if that is no model with its loss."""
    match load_function(text)(batch, device):
        case (nn.Module() as model, loss) if callable(loss):
            return model, loss
        case found:
            words = "must return a model (torch.nn.Module) and a function of its loss"
            raise InputError(f"{text}: {words}, got {quote(type(found).__name__)}")


def measure(
    model: nn.Module, loss: Loss, device: str, precision: str = AMP, steps: int = 10
) -> Measured:
    """Measure a step of AdamW.

    The last of some more steps, which have hooks, gives the times of layers. These run eagerly also
    where the model is compiled, in whose kernels layers have no end.
    """
    clock, kind = _Clock(device), device.partition(":")[0]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if precision == BF16:
        model.to(torch.bfloat16)
    wide = "high" if precision == TF32 else "highest"
    torch.set_float32_matmul_precision(wide)
    torch.backends.cudnn.allow_tf32 = precision == TF32
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=clock.cuda or None)
    if clock.cuda:
        torch.cuda.reset_peak_memory_stats(device)

    def step() -> tuple[Any, ...]:
        marks = [clock.now()]
        with torch.autocast(kind, torch.bfloat16, enabled=precision == AMP):
            found = loss()
        marks.append(clock.now())
        found.backward()
        marks.append(clock.now())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return (*marks, clock.now())

    marks = [step() for _ in range(_WARM + steps)][_WARM:]
    clock.wait()
    passes = ([clock.between(*pair) for pair in pairwise(each)] for each in marks)
    measured = Measured(*map(median, zip(*passes, strict=True)))
    if clock.cuda:
        free, total = torch.cuda.mem_get_info(device)
        measured.allocated = torch.cuda.max_memory_allocated(device)
        measured.reserved, measured.used = torch.cuda.max_memory_reserved(device), total - free
    with torch.compiler.set_stance("force_eager"), _watched(model, clock) as watched:
        for _ in range(_WARM):
            watched.forget()
            begin, turn, end, _ = step()
        clock.wait()
    measured.layers = watched.layers(begin, turn, end, measured)
    found = sum(g.elements for each in measured.layers for g in each.layer.gradients)
    if found != trained:
        raise InputError(f"its layers have {found} elements of gradients, the model {trained}")
    return measured


class _Watched:
    """When the forward pass reaches each module, and when each parameter's gradient is ready."""

    def __init__(self, clock: _Clock) -> None:
        self.clock = clock
        self.reached: dict[str, Any] = {}
        self.ready: dict[str, Any] = {}
        self.parameters: dict[str, list[tuple[str, nn.Parameter]]] = {}

    def forget(self) -> None:
        """Forget the marks of a step."""
        self.reached, self.ready = {}, {}

    def reach(self, name: str, *_: Any) -> None:
        """Note that the forward pass is at a module."""
        if name not in self.reached:
            self.reached[name] = self.clock.now()

    def made(self, name: str, _: Any) -> None:
        """Note that a gradient is ready."""
        self.ready[name] = self.clock.now()

    def layers(self, begin: Any, turn: Any, end: Any, measured: Measured) -> list[LayerTime]:
        """Times of layers in the order of the forward pass, which add up to those measured."""
        self._adopt()
        names = [*self.reached]
        starts = [self.clock.between(begin, self.reached[name]) for name in names]
        starts[:1] = [0.0]
        forward = [b - a for a, b in pairwise([*starts, self.clock.between(begin, turn)])]
        at = 0.0
        backward = []
        for name in reversed(names):
            marks = [self.ready[n] for n, _ in self.parameters[name] if n in self.ready]
            ready = max((self.clock.between(turn, mark) for mark in marks), default=at)
            backward.append(max(ready - at, 0.0))
            at = max(at, ready)
        backward.reverse()
        backward[0] += max(self.clock.between(turn, end) - at, 0.0)
        return [
            LayerTime(
                Layer(
                    name,
                    tuple(
                        Gradient(n, p.numel(), _CODES[p.dtype]) for n, p in self.parameters[name]
                    ),
                    counted=False,
                ),
                ahead * measured.forward / (sum(forward) or 1.0),
                back * measured.backward / (sum(backward) or 1.0),
            )
            for name, ahead, back in zip(names, forward, backward, strict=True)
        ]

    def _adopt(self) -> None:
        """Give parameters of modules that no call reached to the nearest around, or the last.

        So it is with the `out_proj` of `nn.MultiheadAttention`, which reads it.
        """
        if not self.reached:
            raise InputError("the function of the loss calls no module with parameters")
        last = "model" if "model" in self.reached else next(reversed(self.reached))
        for name in [name for name in self.parameters if name not in self.reached]:
            around = name
            while around and around not in self.reached:
                around = around.rpartition(".")[0]
            self.parameters[around or last] += self.parameters[name]


_CODES = {torch.float32: 0, torch.float16: 1, torch.float64: 2, torch.bfloat16: 3}
"""Codes of dtypes (`simreduce.dtypes`)."""


@contextmanager
def _watched(model: nn.Module, clock: _Clock) -> Iterator[_Watched]:
    found, seen, hooks = _Watched(clock), set[int](), []
    for name, module in model.named_modules():
        own = [(f"{name}.{n}" if name else n, p) for n, p in module.named_parameters(recurse=False)]
        mine = [(n, p) for n, p in own if p.requires_grad and id(p) not in seen]
        seen |= {id(p) for _, p in mine}
        if not own:
            continue
        found.parameters[name or "model"] = mine
        reach = partial(found.reach, name or "model")
        hooks.append(module.register_forward_pre_hook(reach))
        made = ((p, partial(found.made, n)) for n, p in mine)
        hooks += [p.register_post_accumulate_grad_hook(each) for p, each in made]
    yield found
    for hook in hooks:
        hook.remove()


def _csv(head: tuple[str, ...], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[*head], *rows])
    return text.getvalue()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("function", metavar="PACKAGE.MODULE:FUNCTION")
@click.option("--batch", type=click.IntRange(1), required=True, help="Give FUNCTION this batch.")
@click.option("--out", required=True, metavar="FOLDER", help="Write the files to this folder.")
@click.option("--name", default="", metavar="NAME", help="Call the model so; default its function.")
@click.option(
    "--precision", type=click.Choice(PRECISIONS), default=AMP, show_default=True,
    help="Compute by autocast (amp), in bfloat16, or in float32 with TF32 or without.",
)  # fmt: skip
@click.option("--compiled", is_flag=True, help="Run the model by torch.compile.")
@click.option("--device", default="", help="Use this device; default the GPU if there is one.")
@click.option(
    "--steps", type=click.IntRange(1), default=10, show_default=True, help="Time so many steps."
)
def main(
    function: str, batch: int, out: str, name: str, precision: str, compiled: bool, device: str,
    steps: int,
) -> None:  # fmt: skip
    """Time a training step: its passes, its layers, and the most memory that it takes."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = name or function.partition(":")[2]
    try:
        with _told(device):
            _use(device)
            model, loss = build(function, batch, device)
            if compiled:
                model.compile()
            measured = measure(model, loss, device, precision, steps)
        gpu = torch.cuda.get_device_name(device) if measured.used else device
        times = measured.forward, measured.backward, measured.update, measured.seconds
        row = [
            gpu, name, batch, COMPILED if compiled else EAGER, precision,
            *(f"{seconds * 1e3:.6g}" for seconds in times), f"{measured.allocated / 1e6:.1f}",
        ]  # fmt: skip
        layers = [
            [each.layer.name, f"{each.forward * 1e6:.6g} us", f"{each.backward * 1e6:.6g} us"]
            for each in measured.layers
        ]
        found = Model(name, tuple(each.layer for each in measured.layers))
        about = (
            f"measured on {gpu}, batch {batch}, {row[3]}, {precision}, PyTorch {torch.__version__}"
        )
        paths = write_folder(
            out,
            {
                "model.toml": model_text(found, [about]),
                "profile.csv": _csv(("layer", "forward", "backward"), layers),
                "passes.csv": _csv(COLUMNS, [row]),
            },
        )
    except InputError as error:
        raise click.UsageError("; ".join(error.problems)) from None
    for words, seconds in zip(("forward", "backward", "update", "step"), times, strict=True):
        click.echo(f"{words:9} {seconds * 1e3:.3f} ms")
    if measured.used:
        held = (measured.allocated, measured.reserved, measured.used)
        allocated, reserved, used = map(format_size, held)
        click.echo(f"memory    {allocated} allocated at most, {reserved} reserved, {used} in use")
    click.echo(f"wrote {', '.join(paths)}")


if __name__ == "__main__":
    main()
