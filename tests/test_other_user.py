"""What another user leaves where ours works is neither run nor followed, and stops nothing."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from simreduce.computing import own_files, workers
from simreduce.computing.compiler import build
from simreduce.errors import InputError
from simreduce.files import check_place, write_file
from simreduce.study.sweep.locking import locked
from simreduce.study.sweep.store import Store
from tests.other_user import OTHER, as_other, meanwhile, needs_root, shared_folder

pytestmark = needs_root

STEM, TYPES = "first_of", "of one array"


def first_of(values):
    return values[0]


@pytest.fixture
def shared():
    with shared_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """A file of machine code, as this user makes it."""
    import numpy as np

    folder = tmp_path_factory.mktemp("code")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMREDUCE_CACHE_DIR", str(folder))
        own_files.load(
            STEM, TYPES, lambda name: build(first_of, (np.zeros(1, int),), name, bare=False)
        )
    (found,) = folder.glob(f"{STEM}-*")
    return found


@pytest.fixture
def load(monkeypatch):
    """Load the function; "built" instead of it if no file is taken."""
    monkeypatch.setattr(own_files, "_make", lambda *_: "built")

    def _load():
        found = own_files.load(STEM, TYPES, lambda _: b"")
        return "built" if found == "built" else "loaded"

    return _load


def plant(code: Path, content: bytes, folder: Path) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / code.name).write_bytes(content)
    return folder / code.name


@pytest.fixture(params=["SIMREDUCE_CACHE_DIR", "XDG_CACHE_HOME"])
def cache(request, monkeypatch, shared, tmp_path):
    """The folder of machine code that one of the variables names, in a folder that all share."""
    for name in ("SIMREDUCE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(request.param, str(shared / "cache"))
    # Beside the package there is nothing yet.
    monkeypatch.setattr(own_files, "__file__", str(tmp_path / "kept.py"))
    own_files._processor()  # depends on where the package is, and is found once
    return shared / "cache" / ("simreduce/code" if request.param == "XDG_CACHE_HOME" else "")


def test_our_own_code_is_loaded(cache, code, load):
    plant(code, code.read_bytes(), cache)
    assert load() == "loaded"


def test_a_folder_of_another_user_is_not_looked_into(cache, code, load):
    """Neither with that user's files, nor with one of ours that it holds."""
    content = code.read_bytes()
    as_other(lambda: plant(code, content, cache))
    assert load() == "built"
    os.chown(cache / code.name, 0, 0)
    assert load() == "built"


def test_a_file_of_another_user_is_not_loaded(cache, code, load):
    """In a folder that all share, like /tmp; a file of ours there is."""
    content = code.read_bytes()
    cache.mkdir(parents=True)
    cache.chmod(0o1777)
    as_other(lambda: plant(code, content, cache))
    assert load() == "built"
    (cache / code.name).unlink()
    plant(code, content, cache)
    assert load() == "loaded"


def test_a_folder_where_others_may_replace_files_is_not_looked_into(cache, code, load, monkeypatch):
    """And who compiles again for that reason hears it."""
    said = []
    monkeypatch.setattr(workers, "listeners", [said.append])
    plant(code, code.read_bytes(), cache)
    beside = Path(own_files.__file__).parent / "__pycache__"
    beside.mkdir()
    for folder in (cache, beside):
        folder.chmod(0o777)

    assert load() == "built"
    assert [f"{cache} others may write there" in text for text in said] == [True]
    cache.chmod(0o755)
    assert load() == "loaded"


def test_a_umask_that_lets_the_group_write_does_not_stop_keeping(shared, monkeypatch, tmp_path):
    """Nor a folder that an earlier release made with it, in which another of the group then lays
    a folder and a file: new code is kept where only its user writes, and loaded from there.
    """
    said = []
    monkeypatch.setattr(workers, "listeners", [said.append])
    monkeypatch.delenv("SIMREDUCE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    own_files._processor()
    monkeypatch.setattr(own_files, "__file__", str(tmp_path / "kept.py"))
    before = os.umask(0o002)
    try:
        (shared / "cache/simreduce").mkdir(parents=True)
        for folder in (tmp_path / "__pycache__", shared / "cache/simreduce"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o775)
            os.chown(folder, 0, OTHER)
        as_other(lambda: plant(Path("first_of-planted.so"), b"theirs", shared / "cache/simreduce"))
        with own_files._writable() as folder:
            assert folder is not None
            (folder / "made").touch()
    finally:
        os.umask(before)
    assert said == []
    private = shared / "cache/simreduce/code"
    assert (private / "made").exists()
    assert private.stat().st_mode & 0o022 == 0
    assert not any("planted" in name for name in own_files._names.__wrapped__())

    # The group may take the folder away, but what it puts there is not used.
    def replace():
        private.rename(private.with_name("away"))
        private.mkdir()

    as_other(replace)
    with own_files._writable() as folder:
        assert folder is None
    assert ["belongs to another user" in text for text in said] == [True]


def test_a_link_to_code_of_another_user_is_not_loaded(cache, code, load, shared):
    content = code.read_bytes()
    as_other(lambda: plant(code, content, shared / "theirs"))
    cache.mkdir(parents=True)
    (cache / code.name).symlink_to(shared / "theirs" / code.name)
    assert load() == "built"


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_no_file_is_not_waited_for(cache, code, load, kind):
    cache.mkdir(parents=True)
    cache.chmod(0o1777)
    make = {"fifo": os.mkfifo, "folder": os.mkdir}[kind]
    as_other(lambda: [make(cache / name) for name in (code.name, "lock")])
    assert load() == "built"


@pytest.fixture
def precious(tmp_path):
    """A file of ours that a link of another user leads to."""
    path = tmp_path / "precious"
    path.write_text("twenty-four bytes of ours")
    yield path
    assert path.read_text() == "twenty-four bytes of ours"


def test_a_lock_that_is_a_link_changes_no_file(cache, load, precious):
    """Whoever made the link: the system itself stops some."""
    cache.mkdir(parents=True)
    cache.chmod(0o1777)
    as_other(lambda: (cache / "lock").symlink_to(precious))
    assert load() == "built"
    os.lchown(cache / "lock", 0, 0)
    assert load() == "built"


def test_a_lock_that_another_user_holds_is_waited_for_aloud_and_not_for_ever(
    shared, load, monkeypatch
):
    """A file that others may read may be locked by them, so they may not read it any more."""
    said = []
    monkeypatch.setattr(workers, "listeners", [said.append])
    monkeypatch.setattr(own_files, "_PATIENCE", (0.1, 0.3))
    monkeypatch.setenv("SIMREDUCE_CACHE_DIR", str(shared / "cache"))
    (shared / "cache").mkdir()
    lock = shared / "cache/lock"
    lock.touch(0o644)
    with meanwhile(lambda: fcntl.lockf(os.open(lock, os.O_RDONLY), fcntl.LOCK_SH)):
        assert load() == "built"
    assert [text.split(" for ")[0] for text in said] == ["waiting", "no longer waiting"]
    with pytest.raises(AssertionError, match="could not"):
        as_other(lambda: os.open(lock, os.O_RDONLY))


def test_the_lock_of_a_database_that_is_a_link_changes_no_file(shared, precious):
    shared.chmod(0o777)
    as_other(lambda: (shared / "x.db.lock").symlink_to(precious))
    with (
        pytest.raises(InputError, match=r"x\.db\.lock is a link, not a file; remove it"),
        locked(str(shared / "x.db")),
    ):
        pass


def test_a_database_that_is_a_link_of_another_user_is_not_made(shared, tmp_path):
    """Where the link leads, a file of ours would appear; links of ours are followed."""
    shared.chmod(0o777)
    as_other(lambda: (shared / "x.db").symlink_to(tmp_path / "new"))
    with pytest.raises(InputError, match=r"x\.db: .*another user .* made this link"):
        Store(str(shared / "x.db"), write=True)
    assert not (tmp_path / "new").exists()
    os.lchown(shared / "x.db", 0, 0)
    with Store(str(shared / "x.db"), write=True):
        assert (tmp_path / "new").exists()


def test_a_file_of_ours_with_the_name_of_a_lock_is_kept(tmp_path):
    path = tmp_path / "x.db.lock"
    path.write_text("of something else")
    with (
        pytest.raises(InputError, match=r"x\.db\.lock is no lock of a sweep; remove it"),
        locked(str(tmp_path / "x.db")),
    ):
        pass
    assert path.read_text() == "of something else"
    path.write_text("4711")
    with locked(str(tmp_path / "x.db")):
        assert path.read_text() == str(os.getpid())


def test_a_link_of_another_user_is_not_written_through(shared, precious):
    """Not even where the link leads to a link."""
    as_other(lambda: (shared / "out.json").symlink_to(precious))
    (shared / "mine.json").symlink_to("out.json")
    for name in ("out.json", "mine.json"):
        with pytest.raises(InputError, match=r"another user .* made this link"):
            check_place(str(shared / name))
        with pytest.raises(InputError, match=r"another user .* made this link"):
            write_file(str(shared / name), ["new"])


def test_a_link_of_another_user_is_not_written_through_by_another_name_of_its_folder(
    shared, precious, monkeypatch
):
    """Below /proc there are more names for every file."""
    as_other(lambda: (shared / "out.json").symlink_to(precious))
    monkeypatch.chdir(shared)
    for name in ("/proc/self/cwd/out.json", f"/proc/self/root{shared}/out.json"):
        with pytest.raises(InputError, match=r"another user .* made this link"):
            write_file(name, ["new"])


@pytest.mark.parametrize("name", ["way/precious", "mine/precious", "way/../way/./precious"])
def test_a_folder_that_is_a_link_of_another_user_leads_nowhere(shared, precious, name):
    """Not by way of a link of ours either; in a folder of that user, who names it means it."""
    as_other(lambda: (shared / "way").symlink_to(precious.parent))
    (shared / "mine").symlink_to("way")
    for path in (shared / name, Path("/proc/self/root") / str(shared / name)[1:]):
        for write in (check_place, lambda path: write_file(path, ["new"])):
            with pytest.raises(InputError, match=r"another user \(\d+\) made the link .*way"):
                write(str(path))

    def theirs():
        (shared / "theirs").mkdir()
        (shared / "theirs/way").symlink_to(shared / "runs")

    (shared / "runs").mkdir()
    as_other(theirs)
    write_file(str(shared / "theirs/way/one"), ["new"])
    assert (shared / "runs/one").read_text() == "new"


def test_a_link_in_a_folder_where_not_everybody_may_make_one_is_followed(shared, tmp_path):
    """As `/home/somebody` is one that an administrator made."""
    (tmp_path / "runs").mkdir()
    link = shared / "home"
    as_other(lambda: link.symlink_to(tmp_path / "runs"))
    shared.chmod(0o755)
    write_file(str(link / "one"), ["new"])

    assert (tmp_path / "runs/one").read_text() == "new"


def test_a_link_of_ours_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "latest").symlink_to("runs/../runs/one")
    (tmp_path / "again").symlink_to(tmp_path / "latest")
    for text in ("old", "new"):
        check_place(str(tmp_path / "again"))
        write_file(str(tmp_path / "again"), [text])
        assert (tmp_path / "runs/one").read_text() == text
    assert (tmp_path / "again").is_symlink()
    assert (tmp_path / "latest").is_symlink()
    (tmp_path / "again").unlink()
    (tmp_path / "again").symlink_to("again")
    with pytest.raises(InputError, match="cannot be written"):
        write_file(str(tmp_path / "again"), ["new"])
