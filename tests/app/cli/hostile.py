"""Command lines, files and databases that nobody means well by, drawn from a seed.

A case is a command line that works, with the files that it names, and one to three things wrong
with it: a word of another kind, a file with a piece cut out or doubled, a database with a value
that no sweep wrote.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from simreduce import files
from simreduce.app.cli.run import run
from simreduce.study.sweep import Figures
from simreduce.study.sweep.question import read_question
from simreduce.study.sweep.store import CellAnswer, Planned, Store
from tests.topology.importers.files import GRAPHS, NCCL_TESTS, P2P_TEST, TOPO_M, XML
from tests.training.executions.traces import kernel

WORDS = (
    "", " ", "-", "--", ".", "..", "/", "nan", "inf", "-inf", "NaN", "-1", "0", "-0", "1e309",
    "1e-300", "99999999999", "9" * 400, "-9223372036854775809", "0x10", "1_000", "\u0661", "1.5",
    "x" * 50_000, "a" * 300 + ".toml", "\x1b[2J\x1b[31m", "\u202egnp.exe", "\udcff", "a\nb", "a\rb",
    "\t", "%s", "{}", "${HOME}", "[", "]", "[[", "{", "'", '"', ";", "|", ",", ",,", "1,", "=",
    "a=b", "a=", "=b", ":", "::", "1-2", "1..9", "9..1", "1..1e30", "*", "1*0", "x4", "dgx1vx0",
    "torus:1x1x1x1x1x1x1x1", "full:0", "ring:1", "switch:4,latency=-1us", "switch:4,bandwidth=0B/s",
    "ring+chunk=nan", "nccl+ddp=inf", "direct:0:ring", "xring#0", "all", "none", "true",
    "/dev/null", "/dev/zero", "/dev/full", "pipe", "missing/file", "1e9 s", "-1 s", "1 parsec",
    "1e400 GB/s", "18446744073709551616", "DROP TABLE rows", "1) OR (1", "seconds; --", "x'00'",
)  # fmt: skip
"""Words that may stand anywhere in a command line or a file. `pipe` is one that nobody writes."""
OPTIONS = (
    "--json", "--wide", "--collective", "--algo", "-b", "-e", "-f", "-g", "--gpus", "--runtime",
    "--calibration", "--jitter", "--seed", "--tolerance", "--slow", "--fault", "--nccl", "--limit",
    "--where", "--sort", "--group", "--pivot", "--columns", "--sweep", "--by", "--csv", "-o",
    "--no-such-option", "-r", "-d",
)  # fmt: skip
SCENARIO = (
    'topology = "full:2"\nworkload = "bytes:64K"\nstrategies = ["ring", "nccl"]\n'
    "[link_factors]\ngpu0 = 0.5\n"
)
OF_RECORD = SCENARIO.replace("bytes:64K", "d.json").replace("full:2", "full:8")
STEP = (
    'topology = "switch:4"\nworkload = "alexnet"\nstrategies = ["nccl+ddp"]\n'
    '[step]\nbatch = 32\nrate = "5 TFLOP/s"\nmethod = "ddp"\n'
)
PROFILED = STEP.replace('rate = "5 TFLOP/s"', 'profile = "{profile}"')
REPLICAS = (
    'topology = "p3-16xlargex3"\n[replicas]\nworkers = ["n0.gpu0", "n1.gpu0"]\nservers = 1\n'
    'size = "1 MB"\ncompute = "10 ms"\nupdates = 5\n'
)
CAPACITY = (
    'workload = "alexnet"\n[target]\nsamples = 1e6\n[prices.machines.dgx1v]\nprice = "8760 USD"\n'
    'lifetime = "1 years"\n[step]\nbatch = 32\nrate = "5 TFLOP/s"\n[[options]]\n'
    'machine = "dgx1v"\nnodes = [1]\n[sensitivity]\npatience = "1 s"\n'
)
MACHINE = 'extends = "dgx1v"\n[links.qpi]\nbandwidth = "25 GB/s"\nlatency = "1 us"\n'
SWEEP = 'question = "switch:4"\n[over]\nsize = ["1K", "4K"]\nstrategy = ["ring", "direct"]\n'
GRADIENTS = "name,shape,dtype\na,1000,float\nb,7x7x3,float16\n"
DDP = json.dumps({"world_size": 8, "bucket_sizes": "4194304, 25165824", "rank": 1})
LOG = "".join(
    f"h:{rank}:{rank} [{rank}] NCCL INFO {name}: opCount {i:x} sendbuff 0x1 recvbuff 0x2 count 512 "
    f"datatype 7 op 0 root 0 comm 0xa [nranks=2] stream 0x5\n"
    for i, name in enumerate(("AllReduce", "AllGather"))
    for rank in range(2)
)
SUM = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Group size": 2, "dtype": "Float",
    "Process Group Ranks": "[0, 1]",
}  # fmt: skip
TRACE = json.dumps(
    {
        "distributedInfo": {
            "rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
        },
        "traceEvents": [
            *kernel("gemm", 7, 100, 50, 10, 1),
            *kernel("ncclDevKernel_AllReduce_Sum", 20, 152, 90, 12, 2, **SUM),
        ],
    }
)  # fmt: skip
CONF = "NCCL_ALGO=Ring\nNCCL_MIN_NCHANNELS=4\n"
TUNER = "allreduce,0,1048576,tree,ll,2,1,8,-1,-1\n"


class Base(NamedTuple):
    """A command line that works, and the files that it names."""

    words: tuple[str, ...]
    files: Mapping[str, str] = {}


def _base(line: str, **files: str) -> Base:
    return Base(tuple(line.split()), {name.replace("_", "."): text for name, text in files.items()})


BASES = (
    _base("bench full:2 -b 4K --algo ring"),
    _base("bench switch:4 --algo ring,direct -b 1K -e 4K -f 2 --collective all_reduce"),
    _base("bench m.toml -b 4K --algo ring", m_toml=MACHINE),
    _base("bench full:2 -b 4K --slow gpu1=2 --fault gpu0@1us=50% --jitter 0.1 --seed 1"),
    _base("bench full:2 -b 4K --calibration c.toml", c_toml="{calibration}"),
    _base("bench full:2 -b 4K -J j.json --tolerance 0.1%"),
    _base("explain full:2 --algo ring -b 4K"),
    _base("trace full:2 -b 4K -o t.json"),
    _base("verify --algo ring,direct -g 4"),
    _base("run s.toml --workers 1", s_toml=SCENARIO),
    _base("run s.toml --workers 1 --json", s_toml=SCENARIO.replace("bytes:64K", "g.csv"),
          g_csv=GRADIENTS),
    _base("step s.toml --workers 1", s_toml=STEP),
    _base("step s.toml --workers 1", s_toml=REPLICAS),
    _base("capacity q.toml --workers 1", q_toml=CAPACITY),
    _base("sweep switch:4 --over size=1K,4K --over strategy=ring,direct --workers 1 --db w.db"),
    _base("sweep s.toml --workers 1 --db w.db", s_toml=SWEEP),
    _base("topo show m.toml", m_toml=MACHINE),
    _base("topo check m.toml", m_toml=MACHINE),
    _base("topo check m.xml", m_xml=XML),
    _base("topo import t.txt --gpu V100", t_txt=TOPO_M),
    _base("topo check g.xml", g_xml=GRAPHS),
    _base("nccl dgx1v -b 1M"),
    _base("nccl dgx1v -b 1M --conf n.conf --tuner t.csv", n_conf=CONF, t_csv=TUNER),
    _base("replay l.log --topology full:2 --algo ring", l_log=LOG),
    _base("replay t.json --topology full:2 --algo ring", t_json=TRACE),
    _base("replay t.json.gz --topology full:2 --algo ring", t_json_gz=TRACE),
    _base("replay d.json --topology dgx1v", d_json=DDP),
    _base("step t.json --topology full:2 --workers 1", t_json=TRACE),
    _base("tune d.json --topology full:8 --workers 1", d_json=DDP),
    _base("run s.toml --workers 1", s_toml=OF_RECORD, d_json=DDP),
    _base("table d.db"), _base("table d.db --where seconds>0 --sort -seconds --limit 3"),
    _base("table d.db --pivot size,strategy,seconds"), _base("table d.db --group strategy --json"),
    _base("table d.db --csv -"), _base("compare d.db d.db"), _base("report d.db -o r.html"),
    _base("report r.json -o r.html", r_json="{result}"),
    _base("export nccl s.toml --algo nccl", s_toml=SCENARIO),
    _base("schema run"),
    _base("topo import l.txt", l_txt=NCCL_TESTS), _base("topo import p.txt", p_txt=P2P_TEST),
)  # fmt: skip


class Case(NamedTuple):
    """A command line, and the folder of its files."""

    words: tuple[str, ...]
    folder: Path


@functools.cache
def _database() -> bytes:
    """A database with a sweep of four cells, three of them done."""
    question = read_question("switch:4")
    places = [
        Planned(keys, question.cell(keys))
        for keys in ({"size": n, "strategy": s} for n in (1024, 4096) for s in ("ring", "direct"))
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/d.db"
        with Store(path, write=True) as store:
            store.begin("some", {}, places)
            for i, place in enumerate(places[:3], 1):
                row = Figures(state="done", seconds=i * 1e-3, busbw=1e9 / i, chosen="ring", ranks=4)
                store.put([CellAnswer(place.cell, row, 0.5, 1 << 30)])
        return Path(path).read_bytes()


@functools.cache
def _filled(text: str) -> str:
    """A text whose file is too long to stand here."""
    if text == "{calibration}":
        return (Path(files.__file__).parent / "calibrations/dgx1p-tf2018.toml").read_text("utf-8")
    if text == "{result}":
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            Path(folder, "s.toml").write_text(SCENARIO)
            with contextlib.suppress(SystemExit):
                run.main([f"{folder}/s.toml", "--json", "--workers", "1"])
        return out.getvalue()
    return text


def cases(seed: str, count: int, folder: Path, first: int = 0) -> Iterator[Case]:
    """So many cases from the `first` one on, each in a folder of its own."""
    for number in range(first, first + count):
        draw = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
        place = folder / f"case{number}"
        place.mkdir()
        yield Case(_damaged(draw, draw.choice(BASES), place), place)


def put_files(base: Base, place: Path, damage: Callable[[str], str] = str) -> None:
    """Write the files of a command line, with a pipe and a database beside them."""
    os.mkfifo(place / "pipe")
    for name, text in base.files.items():
        content = damage(_filled(text)).encode("utf-8", "surrogateescape")
        (place / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    if any(word.endswith("d.db") for word in base.words):
        (place / "d.db").write_bytes(_database())


def _damaged(draw: random.Random, base: Base, place: Path) -> tuple[str, ...]:
    """Write the files of a case, and return its words."""
    kinds = (
        ["words"] * 2 + ["files"] * 4 * bool(base.files) + ["database"] * 4 * ("d.db" in base.words)
    )
    kind = draw.choice(kinds)
    put_files(base, place, (lambda text: _text(draw, text)) if kind == "files" else str)
    if kind == "database":
        _damage_database(draw, place / "d.db")
    elif kind == "files" and draw.random() < 0.2:  # bytes that are no text, or that end early
        path = place / draw.choice([*base.files])
        content = bytearray(path.read_bytes())
        for _ in range(draw.randint(1, 4)):
            if content:
                content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.randint(0, len(content))] if draw.random() < 0.5
                         else content)  # fmt: skip
    return _words(draw, base.words) if kind == "words" else base.words


def _words(draw: random.Random, words: tuple[str, ...]) -> tuple[str, ...]:
    """Words of which one to three are others, gone, doubled, or joined to something."""
    found = list(words)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(1, len(found)) if len(found) > 1 else 0
        odd = draw.choice(WORDS)
        action = draw.randrange(6)
        if action == 0 and len(found) > 1:
            del found[at]
        elif action == 1:
            found.insert(at, found[at])
        elif action == 2:
            found[at:at] = [draw.choice(OPTIONS), odd]
        elif action == 3:
            found[at] += odd
        else:
            found[at] = odd
    # Here are no processes to start by the thousand, and no NUL gets into a command line.
    return tuple(word.replace("\0", "") for word in found)


def _text(draw: random.Random, text: str) -> str:
    """A text with words replaced, and pieces cut out, doubled or moved."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randint(0, len(text))
        length = draw.choice([0, 1, 5, 40])
        piece, odd = text[at : at + length], draw.choice(WORDS)
        action = draw.randrange(4)
        if action == 0:  # a value in the place of another
            places = [i for i, c in enumerate(text) if c in "=:,"] or [0]
            begin = draw.choice(places) + 1
            end = min((i for c in "\n,}" if (i := text.find(c, begin)) >= 0), default=len(text))
            text = text[:begin] + odd + text[end:]
        else:
            text = text[:at] + ("", odd, piece * 3)[action - 1] + text[at + length :]
    return text


def _damage_database(draw: random.Random, path: Path) -> None:
    """A value of another kind somewhere, or bytes that nobody wrote."""
    if draw.random() < 0.3:
        content = bytearray(path.read_bytes())
        for _ in range(draw.choice([1, 20, 400])):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.choice([len(content), draw.randint(0, len(content))])])
        return
    values = (
        "NULL", "-1", "-1e-9", "9e999", "-9e999", "x'00ff'", "''", "'no'", "1e300", "1 << 62",
        "'[]'", "'{}'", "'[1]'", "'\x1b[31m'", "cast(x'ff' AS TEXT)", "zeroblob(100000)", "'done'",
        "'killed'", "'[\"size\"]'", "'[\"seconds\"]'", "0",
    )  # fmt: skip
    db = sqlite3.connect(path)
    try:
        table = draw.choice(["rows", "cells", "sweeps"])
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        for _ in range(draw.randint(1, 3)):
            name = draw.choice(columns)
            try:
                if draw.random() < 0.1:
                    db.execute(f"{draw.choice(['DELETE FROM', 'DROP TABLE'])} {table}")
                else:
                    db.execute(f'UPDATE {table} SET "{name}" = {draw.choice(values)}')  # noqa: S608
            except sqlite3.Error:
                continue
        db.commit()
    finally:
        db.close()


def refused() -> tuple[Base, ...]:
    """Command lines that look much like good ones and must be refused, each with its files."""
    nan_log = NCCL_TESTS.replace("1234  108.77  108.77", "nan nan nan")
    trace = json.loads(TRACE)

    def traced(**changes: object) -> str:
        events = [{**event, **changes} if event["cat"] == "kernel" else event
                  for event in trace["traceEvents"]]  # fmt: skip
        return json.dumps({**trace, "traceEvents": events})

    def grouped(ranks: list[int]) -> str:
        config = [{"pg_name": "0", "ranks": ranks}]
        return json.dumps({**trace, "distributedInfo": {"world_size": 2, "rank": 0,
                                                        "pg_config": config}})  # fmt: skip

    traces = {
        "begins before time": traced(ts=-5.0), "takes less than no time": traced(dur=-1.0),
        "ends never": traced(dur=float("inf")), "begins at no time": traced(ts=float("nan")),
        "has a rank twice": grouped([0, 0]), "has a rank beyond": grouped([0, 7]),
        "has a rank below": grouped([0, -1]),
    }  # fmt: skip
    logs = [
        LOG.replace("op 0 root", "op 99 root"), LOG.replace("opCount 0", "opCount zz"),
        LOG.replace("root 0", "root 9"),
    ]  # fmt: skip
    replay, step = "replay {} --topology full:2 --algo ring", "step {} --topology full:2"
    return (
        *(_base(replay.format("t.json"), t_json=text) for text in traces.values()),
        *(_base(step.format("t.json"), t_json=text) for text in traces.values()),
        *(_base(replay.format("l.log"), l_log=text) for text in logs),
        *(_base(step.format("l.log"), l_log=text) for text in (LOG, *logs)),
        *(_base(each.format(name)) for each in (replay, step) for name in ("pipe", "/dev/zero")),
        _base(step.format("t.json"), t_json=traced(dur=1e17)),
        *(_base(f"serve --no-open {option}") for option in ("--idle nan", "--seconds nan",
                                                           "--idle inf", "--workers 65")),
        *(_base(f"{line} {word}") for line in ("compare d.db d.db --tolerance",
                                               "bench full:2 -b 4K --tolerance",
                                               "bench full:2 -b 4K --jitter")
          for word in ("nan", "inf", "-nan")),
        _base("run s.toml --workers 99999999999", s_toml=SCENARIO),
        Base(("bench", "full:2", "--collective", "")), Base(("nccl", "dgx1v", "--collective", "")),
        Base(("explain", "full:2", "--collective", "")),
        *(_base("capacity q.toml --workers 1", q_toml=CAPACITY.replace("1e6", number))
          for number in ("1e-300", "nan", "inf", "-1", "0")),
        *(_base("step s.toml --workers 1", s_toml=PROFILED.replace("{profile}", name))
          for name in ("/dev/zero", "pipe", "/dev/null")),
        *(_base("sweep s.toml --over nodes=1 --workers 1 --db w.db",
                s_toml=PROFILED.replace("{profile}", name)) for name in ("/dev/zero", "pipe")),
        *(_base(f"bench full:2 -b 4K --calibration {name}")
          for name in ("/dev/zero", "pipe", "/dev/null")),
        *(_base(f"{line} pipe") for line in ("topo show", "topo check", "run", "bench", "table",
                                             "report", "capacity", "topo import")),
        _base("topo import l.txt", l_txt=nan_log),
    )  # fmt: skip
