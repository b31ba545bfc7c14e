"""The page as it is served: who may ask, what a client may do to it, and how it ends."""

from __future__ import annotations

import json
import random
import shlex
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import quote

import pytest

from simreduce.app.cli.report import serve
from simreduce.app.serve import IDLE
from tests.app.serve.servers import Served, is_alive, wait_until
from tests.thorough import slow


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def _body(answer: bytes) -> bytes:
    """The body, out of its chunks."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest
    found = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found, rest = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


def _messages(answer: bytes) -> list[dict]:
    return [json.loads(line) for line in _body(answer).splitlines()]


def _long(server) -> bytes:
    """A request whose answer takes long."""
    target = f"/{server.token}/answer?machine=dgx-a100x8&algo=all"
    return f"GET {target} HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode()


def test_an_answer_has_the_machine_the_ranking_and_what_stands_behind(server):
    """In this order; a view with faults has these alone, and the page and its files are there."""
    found = _messages(server.get("answer?machine=dgx1v&size=1MiB&algo=nccl,ring"))
    kinds = [next(iter(each)) for each in found]

    assert kinds[0] == "machine"
    assert kinds[-1] == "page"
    page = found[-1]["page"]
    assert set(page["strategies"]) == {"nccl", "nccl+bucket=0", "ring"}
    charts = [chart for part in page["parts"] for chart in part["charts"].values()]
    rows = [chart["y"]["names"] for chart in charts if "groups" not in chart]
    assert any("groups" in chart for chart in charts)  # of a timeline
    assert {len(names) for names in rows} > {0, 1}  # of curves and of a bar in parts
    assert 'data-name="gpu0&lt;&gt;gpu3"' in found[0]["machine"]["svg"]
    assert "gpu0<>gpu3" in found[0]["machine"]["wires"]
    [faults] = _messages(server.get("answer?machine=dgx1&algo=ringg"))
    assert faults == {"faults": ["machine: no machine 'dgx1' (did you mean 'dgx1v'?)" + _WAYS]}
    html = server.get("")
    assert _status(html) == 200
    names = {name for name in _FILES if f'"{name}"'.encode() in html}
    assert names == set(_FILES)
    assert all(_status(server.get(name)) == 200 for name in _FILES)
    assert b"unsafe" not in html
    assert b"<script>" not in html


_WAYS = "; `simreduce topo list` names them; or several, dgx-a100x4, or a shape, switch:8"
_FILES = ("echarts.min.js", "charts.js", "serve.js", "page.css", "serve.css")


def test_only_the_page_itself_may_ask(server):
    """Another Host (a name that was bound to this address), another Origin or site, another method,
    a wrong token: each is refused, and nothing is computed. All have the headers that bind a
    browser.
    """
    answer = "answer?machine=dgx1v&size=1MiB&algo=nccl"
    mine = f"Host: {server.host}"
    refused = {
        421: [("Host: evil.example",), (f"Host: evil.example:{server.port}",), ("Host:",),
              (f"Host: 127.0.0.1:{server.port + 1}",), (mine, "Host: evil.example")],
        403: [("Origin: http://evil.example",), ("Origin: null",), ("Sec-Fetch-Site: cross-site",),
              (f"Origin: https://{server.host}",), ("Sec-Fetch-Site: same-site",)],
    }  # fmt: skip
    for status, cases in refused.items():
        for headers in cases:
            found = server.get(answer, *headers)
            assert _status(found) in (status, 400), headers
            assert b"machine" not in _body(found)
    for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        assert _status(server.get(answer, method=method)) == 405
    for path in (answer, "", "x/answer", server.token[:-1] + "/", server.token, "%00/", "static/"):
        assert _status(server.get(path, token=False)) == 404
    for name in (
        "../serve/app.py",
        "%2e%2e/app.py",
        "..%2f..%2fsetup.py",
        "page.html",
        "/etc/passwd",
        "answer/",
    ):
        found = server.get(name)
        assert _status(found) == 404
        assert b"import" not in found
    fine = server.get(answer, f"Origin: http://{server.host}", "Sec-Fetch-Site: same-origin")
    assert _status(fine) == 200
    for found in (fine, server.get("nothing"), server.get(answer, "Origin: null")):
        head = found.lower()
        assert b"content-security-policy: default-src 'none'; script-src 'self'" in head
        assert b"x-content-type-options: nosniff" in head
        assert b"referrer-policy: no-referrer" in head
        assert b"access-control" not in head
    assert server.log.read_text() == ""


@pytest.mark.parametrize("parts", [1, 7])
def test_headers_may_have_sixteen_kib(server, parts):
    """However many pieces they come in. More are refused with the reason, also without an end."""
    head = f"GET /{server.token}/serve.css HTTP/1.1\r\n"
    lines = f"Host: {server.host}\r\nConnection: close\r\nX: "

    def ask(nbytes: int, end: str = "\r\n\r\n") -> bytes:
        fields = lines + "x" * (nbytes - len(lines) - 2)
        request = (head + fields + end).encode()
        step = -(-len(request) // parts)
        found = b""
        with server.connect(20) as client:
            for first in range(0, len(request), step):
                client.sendall(request[first : first + step])
                time.sleep(0.01 * (parts > 1))
            while part := client.recv(65536):
                found += part
        return found

    assert _status(ask(16 << 10)) == 200
    for found in (ask((16 << 10) + 1), ask(60 << 10), ask(90 << 10, end="")):
        assert _status(found) == 431
        assert _body(found) == b"The headers are longer than 16 KiB."
        assert b"content-security-policy" in found
    assert _status(server.send(b"\x00\xff no HTTP\r\n\r\n")) == 400


def test_a_connection_that_is_refused_for_load_is_told_when_to_come_again(server):
    """The oldest of many that have sent no whole request."""
    first, *others = [server.connect(20) for _ in range(IDLE + 3)]
    with first:
        found = first.recv(4096)
    for each in others:
        each.close()

    assert _status(found) == 503
    assert b"\r\nretry-after: " in found
    assert _status(server.get("")) == 200


@pytest.mark.slow
def test_titles_and_views_are_text(served, tmp_path):
    """Machines and jobs of the command line whose titles are HTML, and a view that is, are text."""
    mine = tmp_path / "m<b>.toml"
    mine.write_text('extends = "dgx1v"\ntitle = "</title><script>alert(1)</script>"\n')
    jobs = tmp_path / "two<b>.toml"
    jobs.write_text(
        'topology = "dgx1vx2"\ntitle = "<script>alert(1)</script>"\n[[job]]\nname = "<b>"\n'
        'nodes = 1\nworkload = "bytes:1K"\n'
    )
    server = served(str(mine), str(jobs))
    found = _messages(server.get(f"answer?machine={quote('m<b>')}&size=1KiB&algo=nccl,ring"))
    found += _messages(server.get(f"answer?jobs={quote('two<b>')}"))
    shown = "".join(m["machine"]["svg"] for m in found if "machine" in m)
    shown += "".join(p["html"] for m in found if "page" in m for p in m["page"]["parts"])

    assert "alert(1)" in found[0]["machine"]["words"]  # which the page shows as text
    assert "<script" not in shown
    assert "<b>" not in shown
    html = server.get("", "Accept: text/html")
    assert b"<b>" not in html
    assert b'value="m&lt;b&gt;"' in html
    assert b"<option>two&lt;b&gt;</option>" in html
    assert "jobs beside each other" in found[-1]["page"]["title"]
    hostile = quote("<script>alert(1)</script>")
    assert b"<script" not in server.get(f"answer?machine={hostile}").replace(b"'<script>", b"")


@pytest.mark.slow
def test_connections_without_a_token_keep_nobody_away(served):
    """Requests that never end, however many: the page is there at once."""
    server = served()
    half = [server.connect() for _ in range(300)]
    for client in half:
        with suppress(ConnectionError):
            client.sendall(b"GET /none/ HTTP/1.1\r\nHost:")
    begun = time.monotonic()
    assert _status(server.get("")) == 200
    assert time.monotonic() - begun < 3
    for client in half:
        client.close()


_MESH = "machine=dgx-h100x2&model=llama-3-8b&mesh=tp=8,pp=2&global_batch=64"


@pytest.mark.parametrize(
    ("line", "view"),
    [
        (serve.examples[0], "machine=dgx-h100x8,fabric=rail_optimised"),
        (serve.examples[1], "machine=dgx-a100x4&size=16MiB"),
        *slow([(f"simreduce serve {shlex.quote(_MESH)}", _MESH)]),
    ],
)
def test_the_examples_open_at_their_views(line, view, tmp_path):
    """What --help shows works when it is pasted, and stops at Ctrl-C with status 0."""
    server = Served(*shlex.split(line)[2:], log=tmp_path / "log")
    try:
        assert server.url.endswith(f"/?{view}")
        assert f'data-first="{view.replace("&", "&amp;")}"'.encode() in server.get("")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
    finally:
        server.end()


@pytest.mark.thorough
def test_who_leaves_ends_the_work(served):
    """The process of a long answer stops, and the next question is answered; a slow client that
    never finishes its request is cut; a further question than may wait is told so.
    """
    server = served("--workers", "1", "--seconds", "60")
    client = server.connect()
    client.sendall(_long(server))
    assert client.recv(100)
    [worker] = server.children()
    client.close()
    begun = time.monotonic()
    found = _messages(server.get("answer?machine=dgx1v&size=1KiB&algo=nccl"))
    assert "page" in found[-1]
    assert time.monotonic() - begun < 20
    assert wait_until(lambda: len(server.children()) == 1)
    assert worker

    clients = [server.connect() for _ in range(12)]
    for each in clients:
        each.sendall(_long(server))
    answers = []
    for each in clients:
        each.settimeout(3)
        with suppress(TimeoutError):
            answers.append(each.recv(1000))
    assert any(b" 503 " in each and b"retry-after: " in each for each in answers)
    for each in clients:
        each.close()
    assert "page" in _messages(server.get("answer?machine=dgx1v&size=1KiB&algo=nccl"))[-1]


@pytest.mark.thorough
def test_an_answer_that_takes_too_long_or_too_much_is_ended(served):
    """With words that say which limit it was; the next one is answered."""
    late = served("--seconds", "1", "--workers", "1")
    slow = "answer?machine=dgx-a100x8&algo=all&model=resnet50"
    assert "longer than 1 s" in _messages(late.get(slow))[-1]["faults"][0]
    large = served("--megabytes", "64", "--workers", "1")
    much = "answer?machine=dgx-a100x64&algo=direct&size=1GiB"
    [fault] = _messages(large.get(much))[-1]["faults"]
    assert "64 MB" in fault


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_no_process(served):
    """Killed while it computes; and one that ends by itself, or by SIGTERM, leaves none either."""
    server = served()
    client = server.connect()
    client.sendall(_long(server))
    client.recv(100)
    children = server.children()
    assert children
    server.process.kill()
    server.process.wait()
    assert wait_until(lambda: not any(map(is_alive, children)))
    client.close()

    idle = served("--idle", "0.02")
    children = idle.children()
    assert idle.process.wait(30) == 0
    assert wait_until(lambda: not any(map(is_alive, children)))

    stopped = served()
    children = stopped.children()
    stopped.process.send_signal(signal.SIGINT)
    assert stopped.process.wait(30) == 0
    assert not any(map(is_alive, children))


def _hostile(draw: random.Random, server) -> bytes:
    """A request that no browser tab of ours makes."""
    host, token = server.host, server.token
    view = draw.choice([
        "machine=" + "../" * 200 + "etc/passwd", "machine=switch:99999999", "size=9999999999GiB",
        "algo=" + "nccl," * 700, "a=1&" * 2000, "machine=torus:9x9x9x9x9x9", "link=" * 3,
        "machine=dgx1v&algo=" + "(" * 3000, "%00%ff%fe", "machine=" + quote("<script>" * 90),
        "machine=dgx1v&link=" + quote("gpu0<>gpu3=nan"), "size=1e999", "packing=packs=1e9",
        "NCCL_ALGO=" + "Ring;" * 500, "NCCL_MIN_NCHANNELS=-1", "machine=dgx1vx9999999999999999999",
        "&".join(f"link=gpu{i}%3C%3Egpu{i + 1}=0.5" for i in range(100)), "version=../../x",
    ])  # fmt: skip
    good = f"GET /{token}/answer?{view} HTTP/1.1\r\nHost: {host}\r\n"
    post = f"POST /{token}/answer HTTP/1.1\r\nHost: {host}\r\n"
    return draw.choice([
        (good + "\r\n").encode(),
        (good + "\r\n").encode()[: draw.randrange(1, len(good))],
        f"GET /{'x' * draw.randrange(1, 20000)} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(),
        f"GET /{token[:-1]}x/answer?{view} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(),
        f"GET /{token}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode(),
        f"GET /{token}/{'../' * 50}etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(),
        f"{post}Content-Length: 999999999\r\n\r\n".encode() + draw.randbytes(2000),
        f"{post}Transfer-Encoding: chunked\r\n\r\nffffffff\r\n".encode(),
        (good + "".join(f"X-{i}: {'y' * 100}\r\n" for i in range(300)) + "\r\n").encode(),
        draw.randbytes(draw.randrange(1, 3000)),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        (good + "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n").encode(),
        (good + "\r\n").encode() * 20,
    ])  # fmt: skip


@pytest.mark.thorough
def test_a_thousand_hostile_requests(served):
    """Many at once, some cut off in the middle, some that say nothing: the server runs on, answers,
    holds no more files or memory than before, and logs no secret.
    """
    server = served("--seconds", "5", "--megabytes", "512")
    fine = "answer?machine=dgx1v&size=1KiB&algo=nccl"
    for _ in range(3):
        assert "page" in _messages(server.get(fine))[-1]
    files, memory = server.open_files(), server.memory()
    draws = random.Random(0)  # noqa: S311 - nothing is secret here
    requests = [_hostile(draws, server) for _ in range(1000)]
    gate = threading.Semaphore(100)

    def attack(number: int) -> int:
        with gate, suppress(OSError), server.connect(20) as client:
            client.sendall(requests[number])
            if number % 3 == 0:
                return -1  # leaves at once
            return _status(client.recv(4096))
        return 0

    with ThreadPoolExecutor(100) as threads:
        statuses = list(threads.map(attack, range(1000)))

    assert server.process.poll() is None
    assert {200, 404, 400} <= set(statuses)
    assert 500 not in statuses
    assert wait_until(lambda: "page" in _last(server, fine), 60)
    assert wait_until(lambda: server.open_files() <= files + 8, 60)
    assert len(server.children()) <= 2
    assert server.memory() < memory + (600 << 20)
    assert server.token not in server.log.read_text()


def _last(server, target: str) -> dict:
    found = _messages(server.get(target))
    return found[-1] if found else {}
