"""Writes a table of whole commands, beside peers: seconds, CPU seconds and peak memory.
`make bench-table`

    python benchmarks/table.py [WORD ...]

With words, only cases that have one of them. A command is run twice and the second counts, so that
machine code is kept; it is ended after `LIMIT` CPU seconds. SimGrid is measured in the same run
where `c++` finds its headers and library (Debian: libsimgrid-dev; elsewhere CPLUS_INCLUDE_PATH,
LIBRARY_PATH and LD_LIBRARY_PATH say where they are). It simulates the same messages on the same
links. ASTRA-sim is not run: it takes traces of its own. Its figures are those of its analytical
backend, measured once on a machine of two cores.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

LIMIT = 600
"""CPU seconds that a command may take; a peer gets a quarter of them."""

_TWICE = 60
"""What took fewer CPU seconds is run again, so that machine code is there."""

_BERT = 'topology = "dgx-a100x4"\nworkload = "bert-large"\nstrategies = ["all"]\n'
"""A scenario: BERT-large on four DGX A100."""

_OWN = """topology = "{}"
workload = "gpt2-xl"
[step]
batch = 4
rate = "150 TFLOP/s"
update = "8 ms"
"""
"""A scenario of one's own, on 32 GPUs and on 512: what a practitioner asks first."""


_FIRST = " (first)"
"""Behind a command: as after an installation, without any machine code."""


class Case(NamedTuple):
    """A command, the same for SimGrid, and what ASTRA-sim took."""

    command: str
    simgrid: str = ""
    astra_sim: str = ""


def _bench(case: str, simgrid: str = "", astra_sim: str = "") -> Case:
    return Case(f"bench {case} -b 64M --runtime ideal", simgrid, astra_sim)


CASES = (
    _bench("switch:1024 --algo ring", "ring 1024", "9-14 s, 354 MB"),
    _bench("switch:1024 --algo ring --no-fold", "ring 1024", "9-14 s, 354 MB"),
    _bench("switch:1024 --algo halving_doubling --no-fold", "halving_doubling 1024",
           "1.7 s, 354 MB"),
    _bench("switch:4096 --algo halving_doubling --no-fold", "halving_doubling 4096",
           "24 s, 5500 MB"),
    _bench("switch:8 --algo ring", "ring 8", "0.02 s, 15 MB"),
    _bench("switch:8 --algo direct", "direct 8", "0.02 s, 15 MB"),
    _bench("switch:1024 --algo direct --no-fold", "direct 1024", "43-67 s, 900 MB"),
    _bench("switch:4096 --algo ring", "ring 4096", "over 105 s, 5500 MB"),
    _bench("switch:4096 --algo ring --no-fold", "ring 4096", "over 105 s, 5500 MB"),
    _bench("fat_tree:1024,oversubscription=2 --algo direct --no-fold"),
    _bench("torus:16x16 --algo direct --no-fold"),
    _bench("switch:131072 --algo ring"),
    _bench("switch:131072 --algo double_tree"),
    _bench("fat_tree:131072,shuffle=1,radix=128 --algo halving_doubling"),
    Case("run dgx1v-resnet50"),
    Case("step step-dgx1p-resnet50"),
    Case("run BERT-large"),
    Case("bench dgx-h100x128,fabric=rail_optimised,nic=ib_ndr --algo all -b 1M -e 1G -f 32"),
    Case("bench dgx-h100x16384 --algo nccl"),
    Case("bench dgx-h100x32 --algo nccl+packs=4096 -b 1G"),
    Case("trace dgx-h100x64 --algo nccl -o TRACE"),
    Case("topo trees full:64"),
    Case("report OWN-32 -o PAGE"),
    Case("report OWN-512 -o PAGE"),
    Case("report dgx1v-resnet50 -o PAGE"),
    Case("tune OWN-32 --target pytorch --quick"),
    *(Case(f"tune OWN-32 --target {name}") for name in ("pytorch", "nccl", "horovod", "deepspeed")),
    Case("export nccl OWN-32"),
    Case("run dgx1v-resnet50 (first)"),
)  # fmt: skip


class Used(NamedTuple):
    """What a command took: seconds, those of the processor, more if it was ended, and the most
    memory.
    """

    status: int
    whole: float
    seconds: float
    megabytes: float
    output: str

    @property
    def ended(self) -> bool:
        """Whether it had to be ended."""
        return self.status < 0

    def __str__(self) -> str:
        cpu = f"{'over ' * self.ended}{self.seconds:.2f} s CPU"
        return f"{self.whole:.1f} s, {cpu}, {self.megabytes:.0f} MB"


def measure(command: list[str], limit: int, cache: str = "") -> Used:
    """Run the command, and end it after so many seconds of the processor. `cache` is the folder of
    its machine code.
    """
    own = {**os.environ, "SIMREDUCE_CACHE_DIR": cache} if cache else None
    restrict = partial(resource.setrlimit, resource.RLIMIT_CPU, (limit, limit))
    with tempfile.TemporaryFile() as output:
        begun = time.monotonic()
        process = subprocess.Popen(  # noqa: S603
            command,
            env=own,
            stdout=output,
            stderr=subprocess.DEVNULL,
            preexec_fn=restrict,  # noqa: PLW1509
        )
        _, status, used = os.wait4(process.pid, 0)
        whole = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    seconds, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return Used(process.returncode, whole, seconds, megabytes, text)


def simgrid(folder: Path) -> Path | None:
    """The peer's program, compiled in this folder; None where SimGrid is not installed."""
    compiler = shutil.which("c++") or shutil.which("g++")
    program, source = folder / "simgrid", Path(__file__).with_name("peers") / "simgrid.cpp"
    command = [str(compiler), "-O2", "-std=c++17", "-o", str(program), str(source), "-lsimgrid"]
    path = f"-Wl,-rpath-link,{os.environ.get('LD_LIBRARY_PATH', '')}"
    if compiler is None or subprocess.run([*command, path], capture_output=True).returncode:  # noqa: S603, PLW1510
        return None
    return program


def row(case: Case, peer: Path | None, folder: Path) -> str:
    """The case as a row of the table."""
    scenarios = {
        "BERT-large": _BERT,
        "OWN-32": _OWN.format("dgx-a100x4"),
        "OWN-512": _OWN.format("dgx-a100x64"),
    }
    words = {"TRACE": str(folder / "trace.json"), "PAGE": str(folder / "page.html")}
    for name, text in scenarios.items():
        words[name] = str(folder / f"{name}.toml")
        Path(words[name]).write_text(text)
    line, first, _ = case.command.partition(_FIRST)
    command = [words.get(word, word) for word in line.split()]
    command = [sys.executable, "-m", "simreduce", *command]
    with tempfile.TemporaryDirectory() as empty:
        used = measure(command, LIMIT, empty if first else "")
    if not first and not used.ended and used.seconds < _TWICE:
        used = measure(command, LIMIT)
    beside = "-"
    if peer is not None and case.simgrid:
        beside = str(measure([str(peer), *case.simgrid.split(), str(64 * 2**20)], LIMIT // 4))
    failed = "" if used.status <= 0 else f" (status {used.status})"
    return f"| `{case.command}` | {used}{failed} | {beside} | {case.astra_sim or '-'} |"


def main() -> None:
    chosen = [c for c in CASES if not sys.argv[1:] or any(w in c.command for w in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peer = simgrid(folder)
        print("Seconds, CPU seconds of all workers, and peak memory of the largest process.")
        print(f"SimGrid: {'measured in this run' if peer else 'not installed'}.")
        print("ASTRA-sim: measured once, elsewhere.\n")
        print("| case | simreduce | SimGrid | ASTRA-sim |\n|---|---|---|---|", flush=True)
        for case in chosen:
            print(row(case, peer, folder), flush=True)


if __name__ == "__main__":
    main()
