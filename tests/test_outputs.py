"""Users' files are replaced whole, or stay as they were."""

from __future__ import annotations

import errno
import gzip
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import threading

import pytest

from simreduce.errors import InputError
from simreduce.files import check_place, read_bytes, write_file, write_folder


def _child(code: str, *arguments: object, **options) -> subprocess.CompletedProcess:
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.json"
    path.write_text("old")
    return path


def test_pieces_become_a_file(tmp_path):
    path = tmp_path / "new.txt"
    write_file(str(path), iter(["ä", b"b", "c"]))

    assert "äbc" == path.read_text("utf-8")
    assert [path] == list(tmp_path.iterdir())


def test_a_compressed_file_depends_on_its_content_only(tmp_path):
    first, second = tmp_path / "a.gz", tmp_path / "b.gz"
    for path in (first, second):
        write_file(str(path), ["text"])

    assert b"text" == gzip.decompress(first.read_bytes())
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_permissions_stay(old, mode):
    old.chmod(mode)
    write_file(str(old), ["new"])

    assert ("new", mode) == (old.read_text(), stat.S_IMODE(old.stat().st_mode))


def test_a_new_file_has_the_permissions_of_new_files(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(str(tmp_path / "new"), ["new"])
    finally:
        os.umask(before)

    assert 0o640 == stat.S_IMODE((tmp_path / "new").stat().st_mode)


def test_a_link_stays_and_its_target_is_replaced(old, tmp_path):
    (tmp_path / "folder").mkdir()
    link, dangling = tmp_path / "folder" / "link", tmp_path / "dangling"
    link.symlink_to(old)
    dangling.symlink_to(tmp_path / "folder" / "new")
    for path in (link, dangling):
        check_place(str(path))
        write_file(str(path), ["new"])

    assert link.is_symlink()
    assert dangling.is_symlink()
    assert ["new", "new"] == [old.read_text(), (tmp_path / "folder" / "new").read_text()]


def test_devices_and_pipes_are_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    for path in ("/dev/null", str(pipe)):
        check_place(path)
        write_file(path, ["new"])
    reader.join()

    assert ["new"] == read
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(InputError, match="/dev/full: cannot be written: No space left on device"):
        write_file("/dev/full", ["new"])


def test_stdout_by_its_device_is_the_stream_and_not_the_file_behind_it(tmp_path):
    path = tmp_path / "out"
    with path.open("w") as out:
        code = "from simreduce.files import write_file; write_file('/dev/stdout', ['new'])"
        before = os.fstat(out.fileno()).st_ino
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)

    assert (before, "new") == (path.stat().st_ino, path.read_text())


def test_a_full_disk_leaves_the_old_file(old):
    """A limit on the size of files stands in for the disk."""
    done = _child(
        """
        import sys
        from simreduce.files import write_file
        write_file(sys.argv[1], ("x" * 1000 for _ in range(1000)))
        """,
        old,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )

    assert f"{old}: cannot be written: File too large" in done.stderr
    assert "old" == old.read_text()
    assert [old] == list(old.parent.iterdir())


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_writer_that_is_stopped_leaves_the_old_file(old, blow):
    done = _child(
        """
        import os, sys
        from simreduce.files import write_file

        def pieces():
            yield "x" * 1_000_000
            os.kill(os.getpid(), int(sys.argv[2]))
            yield "x"

        write_file(sys.argv[1], pieces())
        """,
        old,
        int(blow),
    )

    assert 0 != done.returncode
    assert "old" == old.read_text()
    assert (blow == signal.SIGINT) == ([old] == list(old.parent.iterdir()))


def test_a_reader_never_finds_a_part_and_two_writers_do_not_mix(tmp_path):
    path, found = tmp_path / "file", set()
    path.write_text("a" * 100_000)
    writers = [
        threading.Thread(
            target=lambda c=c: [write_file(str(path), [c] * 100_000) for _ in range(9)]
        )
        for c in "ab"
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found.add(path.read_text())

    assert {"a" * 100_000, "b" * 100_000} >= found
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_written_whole_or_not_at_all(tmp_path, there, blow):
    """Stopped at its third file, it leaves none, or all as they were; its other files stay."""
    folder = tmp_path / "out"
    if there:
        folder.mkdir()
        for name in ("a", "b", "mine"):
            (folder / name).write_text("old")
    code = """
        import os, sys
        from simreduce import files
        write, count = files._write_pieces, []

        def stop(file, pieces, **options):
            count.append(write(file, pieces, **options))
            if len(count) == 3:
                os.kill(os.getpid(), int(sys.argv[2]))

        if int(sys.argv[2]):
            files._write_pieces = stop
        files.write_folder(sys.argv[1], {name: "new" for name in "abcd"})
        """

    def found() -> dict[str, str]:
        return {each.name: each.read_text() for each in folder.glob("[!.]*")}

    assert 0 != _child(code, folder, int(blow)).returncode
    old = {"a": "old", "b": "old", "mine": "old"}
    assert (old if there else {}) == found()
    assert folder.exists() == there
    if blow == signal.SIGINT:
        assert not [*tmp_path.rglob(".*")]
    assert 0 == _child(code, folder, 0).returncode
    assert {**(old if there else {}), **dict.fromkeys("abcd", "new")} == found()


def test_a_folder_that_cannot_be_written_is_left_as_it_was(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("old")

    with pytest.raises(InputError, match="b: cannot be written: it is a folder"):
        write_folder(str(tmp_path), {"a": "new", "b": "new"})
    assert "old" == (tmp_path / "a").read_text()
    with pytest.raises(InputError, match="No such file or directory"):
        write_folder(str(tmp_path / "none" / "x"), {"a": "new"})


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        (".", "it is a folder"),
        ("none/x", "there is no such folder"),
        ("old.json/x", "there is no such folder"),
        ("dangling", "there is no such folder"),
        ("x" * 300, "File name too long"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_a_place_that_cannot_be_written_is_found_before_the_work(old, monkeypatch, path, fault):
    monkeypatch.chdir(old.parent)
    (old.parent / "dangling").symlink_to("none/x")

    with pytest.raises(InputError, match=f"cannot be written: {fault}"):
        check_place(path)


def test_an_empty_name_is_no_place():
    with pytest.raises(InputError, match="the name of the file to write is empty"):
        check_place("")


def test_a_place_for_stdout_is_always_there():
    check_place("-")


def test_a_busy_file_is_one_line(old, monkeypatch):
    """A mounted file cannot be replaced; it stays as it was, and no temporary file is left."""
    before, files = old.read_bytes(), sorted(old.parent.iterdir())

    def refuse(*_names):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(InputError, match=r"^[^\n]*: cannot be written: Device or resource busy$"):
        write_file(str(old), ["new"])

    assert (before, files) == (old.read_bytes(), sorted(old.parent.iterdir()))


def test_a_file_may_have_as_many_bytes_as_are_allowed_and_no_more(tmp_path):
    path = tmp_path / "eight"
    path.write_bytes(b"12345678")

    assert b"12345678" == read_bytes(path, 8)
    with pytest.raises(OSError, match="or without an end"):
        read_bytes(path, 7)
