"""Time what one GPU computes in a training step: `python -m simreduce_validate.computing FILE.csv`.

It needs PyTorch with CUDA and one GPU. Each row is a kernel or a part of a step, with its shape and
the median, the 10th and the 90th percentile of its times. A CUDA graph holds several calls, so that
the GPU does not wait for its host, and events time its replays; layers run as PyTorch launches
them. It takes three minutes. `simreduce accuracy compute FILE.csv` compares the rows with
predictions.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's documents name it

COLUMNS = ("gpu", "kind", "shape", "bits", "time_us", "low_us", "high_us")
_SHAPES = {  # rows of tokens, inner, columns
    # Llama 3 8B: queries, keys and values; projection; gate and up; down
    "8B": [(8192, 4096, 6144), (8192, 4096, 4096), (8192, 4096, 28672), (8192, 14336, 4096)],
    # its parts on 2, 4 and 8 ranks
    "8B/2": [(8192, 4096, 3072), (8192, 2048, 4096), (8192, 4096, 14336), (8192, 7168, 4096)],
    "8B/4": [(8192, 4096, 1536), (8192, 1024, 4096), (8192, 4096, 7168), (8192, 3584, 4096)],
    "8B/8": [(8192, 4096, 768), (8192, 512, 4096), (8192, 4096, 3584), (8192, 1792, 4096)],
    # GPT-3 175B and Llama 3 70B on 8 ranks
    "175B/8": [(2048, 12288, 4608), (2048, 1536, 12288), (2048, 12288, 6144), (2048, 6144, 12288)],
    "70B/8": [(8192, 8192, 1280), (8192, 1024, 8192), (8192, 8192, 7168), (8192, 3584, 8192)],
    # few tokens, and the logits
    "few": [(256, 4096, 4096), (1024, 4096, 4096), (1024, 4096, 14336), (2048, 1600, 6400)],
    "logits": [(4096, 4096, 128256), (8192, 1600, 50304)],
}


def _times(
    call: Callable[[int], Any], calls: int, turns: int = 15, *, graph: bool = True
) -> tuple[float, float, float]:
    """Seconds of a call: median, 10th and 90th percentile of turns of so many.

    A graph holds the calls of a turn, so that the GPU does not wait for its host.
    """
    for i in range(3):
        call(i)
    torch.cuda.synchronize()

    def plainly() -> None:
        for i in range(calls):
            call(i)

    turn = plainly
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=torch.cuda.current_stream()):
            plainly()
        turn = captured.replay
        turn()
    found = []
    for _ in range(turns):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        turn()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e-3 / calls)
    found.sort()
    return found[turns // 2], found[turns // 10], found[-1 - turns // 10]


def _on(function: Callable[..., Any], *given: Any, **others: Any) -> Callable[[int], Any]:
    """The call of a function with what it is given."""
    return lambda _: function(*given, **others)


def _row(kind: str, shape: tuple[int, ...], bits: int, times: tuple[float, ...]) -> list[object]:
    gpu = torch.cuda.get_device_name()
    row = [gpu, kind, "x".join(map(str, shape)), bits, *(f"{t * 1e6:.5g}" for t in times)]
    print(*row, flush=True)
    return row


def _data(*shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def _product(pairs: Sequence[tuple[Any, Any]], turn: int) -> None:
    a, b = pairs[turn % len(pairs)]
    torch.mm(a, b.T)


def products() -> Iterator[list[object]]:
    """Products forward and backward: of rows by weights, of gradients by weights, and both."""
    for group in _SHAPES.values():
        for rows, inner, columns in group:
            kinds = (rows, inner, columns), (rows, columns, inner), (inner, rows, columns)
            for m, k, n in dict.fromkeys(kinds):
                pairs = [(_data(m, k), _data(n, k)) for _ in range(2)]
                times = _times(partial(_product, pairs), 10)
                yield _row("product", (m, n, k), 16, times)
                del pairs
    a, b = _data(8192, 4096), _data(28672, 4096)
    end, found = time.perf_counter() + 20.0, (0.0, 0.0, 0.0)
    while time.perf_counter() < end:
        found = _times(lambda _: torch.mm(a, b.T), 50)
    yield _row("product_sustained", (8192, 28672, 4096), 16, found)
    unit = torch.ones((), device="cuda")
    for name in ("8B", "8B/8", "70B/8"):
        for m, k, n in _SHAPES[name]:
            a, b = (x.to(torch.float8_e4m3fn) for x in (_data(m, k), _data(n, k)))
            scaled = partial(torch._scaled_mm, out_dtype=torch.bfloat16)  # noqa: SLF001
            call = _on(scaled, a, b.T, unit, unit, use_fast_accum=True)
            yield _row("product", (m, n, k), 8, _times(call, 10))


def attention() -> Iterator[list[object]]:
    """Fused attention of heads together: sequences, tokens, heads, width of a head."""
    for batch, tokens, heads, width in (
        (1, 8192, 32, 128), (2, 4096, 32, 128), (4, 2048, 16, 128), (1, 8192, 4, 128),
        (4, 2048, 12, 64), (8, 1024, 25, 64), (1, 32768, 4, 128),
    ):  # fmt: skip
        shape = batch, heads, tokens, width
        q, k, v = (_data(*shape).requires_grad_() for _ in range(3))
        for causal in (True, False):
            run = _on(F.scaled_dot_product_attention, q, k, v, is_causal=causal)
            name = "attention_causal" if causal else "attention"
            with torch.no_grad():
                yield _row(f"{name}_forward", (batch, tokens, heads, width), 16, _times(run, 5))
            out, grad = run(0), _data(*shape)
            back = _on(torch.autograd.grad, out, (q, k, v), grad, retain_graph=True)
            yield _row(f"{name}_backward", (batch, tokens, heads, width), 16, _times(back, 5))


def moves() -> Iterator[list[object]]:
    """Kernels that are no product: elements; bytes of an element are the predictor's."""
    for rows, width in ((8192, 4096), (8192, 14336), (2048, 12288), (1024, 1600), (256, 4096)):
        x, y, z = (_data(rows, width) for _ in range(3))
        weight, bias = _data(width), _data(width)
        scaled = weight.shape
        for name, call in {
            "residual": _on(torch.add, x, y),
            "layer_norm": _on(F.layer_norm, x, scaled, weight, bias),
            "rms_norm": _on(F.rms_norm, x, scaled, weight),
            "gelu": _on(F.gelu, x, approximate="tanh"),
            "silu": _on(F.silu, x),
            "times": _on(torch.mul, x, y),
            "dropout": _on(F.dropout, x, 0.1),
            "softmax": _on(F.softmax, x, -1),
            "copy": _on(z.copy_, x),
        }.items():
            yield _row(name, (rows, width), 16, _times(call, 10))
        x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, bias))
        for name, out, of in (
            ("layer_norm", F.layer_norm(x, scaled, weight, bias), (x, weight, bias)),
            ("rms_norm", F.rms_norm(x, scaled, weight), (x, weight)),
            ("gelu", F.gelu(x, approximate="tanh"), (x,)),
        ):
            back = _on(torch.autograd.grad, out, of, y, retain_graph=True)
            yield _row(f"{name}_backward", (rows, width), 16, _times(back, 10))
    yield _loss(4096, 128256)
    state = [torch.randn(1 << 28, device="cuda").requires_grad_()]
    state[0].grad = torch.randn_like(state[0])
    adam = torch.optim.AdamW(state, fused=True)
    yield _row("adamw", (1 << 28,), 32, _times(lambda _: adam.step(), 3, graph=False))


def _loss(rows: int, words: int) -> list[object]:
    logits, labels = _data(rows, words), torch.randint(0, words, (rows,), device="cuda")
    times = _times(lambda _: F.cross_entropy(logits.float(), labels), 3)
    return _row("loss", (rows, words), 16, times)


def launches() -> Iterator[list[object]]:
    """Empty kernels in a graph; and kernels that the host launches, of linear layers."""
    x = torch.zeros(1, device="cuda")
    many = 1000
    yield _row("kernel_in_graph", (1,), 16, _times(lambda _: x.add_(1), many))

    def host(call: Callable[[], Any], count: int) -> tuple[float, float, float]:
        found = []
        for _ in range(25):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            torch.cuda.synchronize()
            found.append((time.perf_counter() - begin) / count)
        found.sort()
        return found[12], found[2], found[22]

    small = _data(8, 64).requires_grad_()
    layer = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
    yield _row("linear_launched", (8, 64, 64), 16, host(lambda: layer(small), 300))


class _Layer(torch.nn.Module):  # type: ignore[misc]
    """A layer of Llama 3 8B."""

    def __init__(self, hidden: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        width = hidden // heads
        self.heads, self.groups, self.width = heads, groups, width
        self.first, self.second = torch.nn.RMSNorm(hidden), torch.nn.RMSNorm(hidden)
        linear = partial(torch.nn.Linear, bias=False)
        self.queries = linear(hidden, hidden + 2 * groups * width)
        self.project = linear(hidden, hidden)
        self.up, self.down = linear(hidden, 2 * inner), linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        mixed = self.queries(self.first(x)).view(batch, tokens, -1, self.width).transpose(1, 2)
        q, k, v = mixed.split((self.heads, self.groups, self.groups), 1)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, tokens, hidden))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def _both(model: Callable[..., Any], x: Any) -> None:
    """A forward and a backward pass."""
    found = model(x)
    found.backward(torch.ones_like(found))


def layers() -> Iterator[list[object]]:
    """Forward and backward passes of 4 layers, eager and compiled."""
    for hidden, heads, groups, inner, tokens in (
        (4096, 32, 8, 14336, 8192), (4096, 32, 8, 14336, 2048), (2048, 32, 8, 8192, 4096),
    ):  # fmt: skip
        shape = 4, tokens, hidden, heads, groups, inner
        parts = [_Layer(hidden, heads, groups, inner) for _ in range(4)]
        model = torch.nn.Sequential(*parts).to("cuda", torch.bfloat16)
        x = _data(1, tokens, hidden).requires_grad_()
        with torch.no_grad():
            yield _row("layers_forward", shape, 16, _times(_on(model, x), 3, graph=False))
        yield _row("layers", shape, 16, _times(_on(_both, model, x), 3, graph=False))
        compiled = _on(_both, torch.compile(model), x)
        yield _row("layers_compiled", shape, 16, _times(compiled, 3, graph=False))


def main(file: str) -> None:
    """Time everything, and write each row as it comes."""
    name, version = torch.cuda.get_device_name(), torch.__version__
    print(f"# {name}, CUDA {torch.version.cuda}, PyTorch {version}", flush=True)
    # Autograd works on the stream of the forward pass, and the first one cannot be captured.
    with (
        Path(file).open("w", newline="", encoding="utf-8") as out,
        torch.cuda.stream(torch.cuda.Stream()),
    ):
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(COLUMNS)
        for part in (launches, products, attention, moves, layers):
            try:
                rows.writerows(part())
            except RuntimeError as error:
                print(f"left out: {error}", flush=True)
            torch.cuda.empty_cache()
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:2])
