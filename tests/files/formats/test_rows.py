"""CSV files that are read by their columns."""

from __future__ import annotations

import pytest

from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults, read_csv


def test_a_file_without_columns_adds_one_fault_to_those_that_the_caller_has_found():
    """Not one for each of its lines, whose quotes need not end."""
    faults = Faults("a.csv")
    faults.add("title", "is missing")

    with pytest.raises(InputError) as caught:
        read_csv('# note\nPDF 1.7\n"stream', ("name", "bytes"), "name,bytes", faults, InputError)

    assert caught.value.problems == (
        "a.csv: title: is missing",
        "a.csv: line 2: no columns; expected a CSV file that begins with name,bytes",
    )
