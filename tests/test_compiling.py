"""Machine code of loops: kept in files, loaded without numba."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest

from simreduce.computing import own_files, workers
from simreduce.computing.loops import Native
from simreduce.computing.own_files import code_size, digest_of
from simreduce.errors import InternalError


class Table(NamedTuple):
    first: np.ndarray
    second: np.ndarray


class Swapped:
    """A table of the same name."""

    class Table(NamedTuple):
        second: np.ndarray
        first: np.ndarray


def scaled_sum(values, factor, out):
    total = 0
    for i in range(len(values)):
        out[i] = twice(values[i]) * factor
        total += values[i] > 1
    return total


def twice(value):
    return 2 * value


def of_table(table, count):
    for i in range(count):
        table.first[i] = table.second[i]


def divided(a, b):
    return a // b


def by_rows(grid):
    total = 0
    for row in range(grid.shape[0]):
        total += grid[row, 1]
    return total


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for machine code."""
    monkeypatch.setenv("SIMREDUCE_CACHE_DIR", str(tmp_path))
    own_files._names.cache_clear()
    yield tmp_path
    own_files._names.cache_clear()


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.glob("scaled_sum-*"))


def check(function: Native) -> None:
    values, out = np.array([0.5, 1.5, 2.5]), np.zeros(3)

    assert function(values, 3.0, out) == 2
    assert out.tolist() == [3.0, 9.0, 15.0]


@pytest.mark.usefixtures("folder")
def test_it_takes_numbers_arrays_and_tables():
    """Arrays of two dimensions too; a bare function takes only addresses."""
    check(Native(scaled_sum, "sums", bare=False))
    first, second = np.zeros(3, dtype=np.int32), np.arange(3.0)
    Native(of_table, "tables", bare=True)(Table(first, second), 3)
    assert first.tolist() == [0, 1, 2]
    assert Native(by_rows, "rows", bare=False)(np.arange(6).reshape(2, 3)) == 5


@pytest.mark.usefixtures("folder")
def test_other_types_have_other_code():
    function = Native(scaled_sum, "sums", bare=False)
    check(function)
    out = np.zeros(2, dtype=np.int64)

    assert function(np.array([1, 2], dtype=np.int8), 5, out) == 1
    assert out.tolist() == [10, 20]


@pytest.mark.usefixtures("folder")
def test_what_it_cannot_do_is_an_internal_error():
    """Columns with gaps, and errors of the compiled code."""
    with pytest.raises(InternalError, match="gaps"):
        Native(scaled_sum, "sums", bare=False)(np.arange(6.0)[::2], 1.0, np.zeros(3))
    divide = Native(divided, "quotients", bare=False)
    assert divide(7, 2) == 3
    with pytest.raises(InternalError, match="divided"):
        divide(7, 0)


def test_the_same_tables_are_not_read_again():
    """Unless they are other tables: then their own addresses count."""
    function, known = Native(of_table, "tables", bare=True), {}
    for _ in range(2):
        first = np.zeros(2)
        table = Table(first, np.ones(2))
        function(table, 1, known=known)
        words = known[(0,)][1]
        function(table, 2, known=known)
        assert first.tolist() == [1.0, 1.0]
        assert known[(0,)][1] is words


def test_a_later_process_loads_what_was_kept(folder):
    """A change of a function that is called, or of a constant, is another file."""
    first = Native(scaled_sum, "sums", bare=False)
    assert not first.is_kept
    check(first)
    assert first.is_kept
    assert Native(scaled_sum, "sums", bare=False).is_kept
    assert [".so"] == files(folder)
    in_another_process(builds=False)


def in_another_process(*, builds: bool) -> None:
    """Run a function there, and check whether it is compiled."""
    script = (
        "import sys\n"
        f"from {__name__} import Native, check, scaled_sum\n"
        "check(Native(scaled_sum, 'sums', bare=False))\n"
        f"assert {builds} == ('numba' in sys.modules) == ('llvmlite' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=root, check=True)


def test_without_a_linker_it_is_an_object_file(folder, monkeypatch):
    """Of which llvmlite makes code."""
    monkeypatch.setattr(own_files, "_LINKERS", ())
    check(Native(scaled_sum, "sums", bare=False))

    assert [".o"] == files(folder)
    check(Native(scaled_sum, "sums", bare=False))


def test_where_nothing_can_be_written_every_process_compiles(folder, monkeypatch):
    file = folder / "file"
    file.write_text("no folder")
    monkeypatch.setenv("SIMREDUCE_CACHE_DIR", str(file))

    check(Native(scaled_sum, "sums", bare=False))


@pytest.mark.slow
def test_a_broken_file_is_replaced(folder):
    check(Native(scaled_sum, "sums", bare=False))
    (path,) = folder.glob("scaled_sum-*.so")
    path.unlink()  # what is loaded stays whole
    path.write_bytes(b"\x7fELF")

    in_another_process(builds=True)
    in_another_process(builds=False)


def test_a_user_without_a_home_has_no_folder_of_his_own(monkeypatch):
    monkeypatch.delenv("SIMREDUCE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert len(own_files._folders()) == 2
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("no home")))

    assert ["__pycache__"] == [folder.name for folder in own_files._folders()]


def test_the_digest_depends_on_all_that_is_called(monkeypatch):
    before = digest_of(scaled_sum)
    digest_of.cache_clear()
    assert digest_of(scaled_sum) == before
    digest_of.cache_clear()
    monkeypatch.setitem(globals(), "twice", divided)
    assert digest_of(scaled_sum) != before
    digest_of.cache_clear()


@pytest.mark.usefixtures("folder")
def test_who_compiles_long_says_so(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(workers, "listeners", [said.append])
    monkeypatch.setattr("simreduce.computing.loops._SECONDS", 0.1)
    check(Native(scaled_sum, "sums", bare=False))

    assert len(said) == 1
    assert said[0].startswith("compiling sums (once, about ")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("seconds", "words"), [(10.0, "compiling sums (once, about 10 s)"), (1.0, "")]
)
def test_who_compiles_says_how_long_that_takes(monkeypatch, seconds, words):
    """Of a second or less nobody is told."""
    said: list[str] = []
    monkeypatch.setattr(workers, "listeners", [said.append])
    monkeypatch.setattr("simreduce.computing.loops._SECONDS", seconds / code_size(scaled_sum))
    check(Native(scaled_sum, "sums", bare=False))

    assert [words] * bool(words) == said


@pytest.mark.usefixtures("folder")
def test_columns_in_another_order_have_other_code():
    """Machine code knows columns by their place."""
    for make in (Table, Swapped.Table):
        first, second = np.zeros(2), np.ones(2)
        Native(of_table, "tables", bare=True)(make(first=first, second=second), 2)

        assert first.tolist() == [1.0, 1.0]


def test_a_file_that_everybody_may_write_is_not_loaded(folder):
    check(Native(scaled_sum, "sums", bare=False))
    (path,) = folder.glob("scaled_sum-*.so")
    path.chmod(0o666)

    in_another_process(builds=True)


def test_a_library_without_the_function_is_replaced(folder):
    """One that is whole, but another's."""
    check(Native(scaled_sum, "sums", bare=False))
    (path,) = folder.glob("scaled_sum-*.so")
    Native(by_rows, "rows", bare=False)(np.arange(6).reshape(2, 3))
    (other,) = folder.glob("by_rows-*.so")
    path.unlink()
    path.write_bytes(other.read_bytes())
    path.chmod(0o755)

    in_another_process(builds=True)
    in_another_process(builds=False)


def test_a_folder_that_cannot_lock_is_used_all_the_same(folder):
    (folder / "lock").mkdir()
    check(Native(scaled_sum, "sums", bare=False))

    assert [".so"] == files(folder)
