"""Gradient lists from files and inline: what is read, and every fault with its place."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from simreduce import dtypes
from simreduce.errors import WorkloadError
from simreduce.workload import MOST_BYTES, Gradient, Workload
from simreduce.workload.loader import load_workload


def _refused(text: str) -> tuple[str, ...]:
    with pytest.raises(WorkloadError) as caught:
        load_workload(text)
    return caught.value.problems


def test_a_csv_file_gives_elements_or_shapes(write):
    """Columns in any order; comments and empty lines do not count; a gradient without a name is
    numbered.
    """
    path = write(
        "model.csv",
        "# comment\n\nshape,name,dtype,elements\n7x7x3x64,conv,float16,\n,bias,,64\n\n# more\n0,,,"
        '\n,"a,b",double,5\n',
    )

    assert (
        Gradient("conv", 9408, dtypes.code("float16")),
        Gradient("bias", 64),
        Gradient("gradient2", 0),
        Gradient("a,b", 5, dtypes.code("float64")),
    ) == load_workload(path).gradients


def test_a_csv_file_may_end_its_lines_as_any_system_does(write):
    """CR LF and LF, with and without a last one."""
    lists = [
        load_workload(write("a.csv", text)).gradients
        for text in (
            "name,elements\na,1\nb,2",
            "name,elements\na,1\nb,2\n",
            "name,elements\r\na,1\r\nb,2\r\n",
        )
    ]

    assert [(Gradient("a", 1), Gradient("b", 2))] * 3 == lists


def test_a_toml_file_gives_gradients_as_tables(write):
    """The same keys; a shape is a list."""
    path = write(
        "model.toml",
        'title = "two"\n[[gradients]]\nname = "conv"\nshape = [7, 7, 3, 64]\ndtype = "half"\n'
        "[[gradients]]\nelements = 64\n",
    )

    assert (Gradient("conv", 9408, 1), Gradient("gradient1", 64)) == load_workload(path).gradients
    assert "two" == load_workload(path).name


def test_a_scalar_has_an_empty_shape_in_toml(write):
    """The product of nothing is one element."""
    assert 1 == load_workload(write("a.toml", "[[gradients]]\nshape = []\n")).elements


@pytest.mark.parametrize(
    ("text", "elements", "dtype"),
    [
        ("bytes:64M", 2**24, "float32"),
        ("bytes:64MB", 16_000_000, "float32"),
        ("bytes:64MiB", 2**24, "float32"),
        ("bytes:64M,dtype=float16", 2**25, "float16"),
        ("bytes:8,dtype=double", 1, "float64"),
    ],
)
def test_one_gradient_may_be_written_inline(text, elements, dtype):
    """In nccl-tests' spelling of sizes, or with the unit spelled out."""
    workload = load_workload(text)

    assert (text, (Gradient("gradient", elements, dtypes.code(dtype)),)) == (
        workload.name,
        workload.gradients,
    )


def test_every_fault_of_an_inline_gradient_is_told_at_once():
    """The size and the options."""
    text = "bytes:x,dtpye=half,dtype=flaot16"

    assert (
        f"{text}: 'x' is not a size; write for example '64M', '512K', '64MiB' or '1048576'",
        f"{text}: dtpye: unknown key (did you mean 'dtype'?)",
        (
            f"{text}: unknown dtype 'flaot16' (did you mean 'float16'?); one of "
            f"{', '.join(dtypes.NAMES)}, float, half, double"
        ),
    ) == _refused(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bytes:0", "bytes:0: a gradient has at least one element, and this has 0 bytes"),
        ("bytes:7", "bytes:7: 7 bytes are not a whole number of float32 elements"),
        (
            "bytes:",
            "bytes:: '' is not a size; write for example '64M', '512K', '64MiB' or '1048576'",
        ),
        ("bytes:2000T", "bytes:2000T: more than 1 PiB of gradients"),
        ("bytes:1e999", "bytes:1e999: '1e999' is too large for a size"),
    ],
)
def test_an_inline_size_that_cannot_be(text, message):
    """One line says what is wrong with it."""
    assert (message,) == _refused(text)


def test_an_unknown_name_is_told_with_the_nearest_model():
    """And how else a workload can be given."""
    (message,) = _refused("resnet5")

    assert message.startswith(
        "no workload 'resnet5' (did you mean 'resnet50'?); a file ends in .csv or .toml"
    )
    assert "shipped: alexnet, bert-base" in _refused("zzz")[0]
    assert _refused("")[0].startswith("no workload ''")


def test_every_fault_of_a_csv_file_is_told_at_once_with_its_line(write):
    """Those of the header and those of every row."""
    path = write(
        "bad.csv",
        "# comment\nname,elemnts,dtype,shape,name\na,1,float32,2x2,b\nb,1\n\nc,,flat32,2xy,c\nd,,,,"
        'd\ne,,,"3x3,d\n',
    )

    assert (
        "bad.csv: line 8: unexpected end of data",
        "bad.csv: line 2: elemnts: unknown key (did you mean 'elements'?)",
        "bad.csv: line 2: two columns 'name'",
        "bad.csv: line 4: 2 fields where the header has 5",
    ) == _refused(path)


def test_every_fault_of_the_rows_is_told_at_once(write):
    """When the columns are right."""
    path = write(
        "bad.csv", "name,elements,shape,dtype\na,1,2x2,\nb,,,\nc,-1,,\nd,,2xy,flaot32\ne,1.5,,\n"
    )

    assert (
        "bad.csv: line 2: give elements or shape, one of the two",
        "bad.csv: line 3: give elements or shape, one of the two",
        "bad.csv: line 4: elements: must be a whole number from 0, got '-1'",
        "bad.csv: line 5: shape[1]: must be a whole number from 0, got 'y'",
        (
            "bad.csv: line 5: dtype: unknown dtype 'flaot32' (did you mean 'float32'?); one of "
            f"{', '.join(dtypes.NAMES)}, float, half, double"
        ),
        "bad.csv: line 6: elements: must be a whole number from 0, got '1.5'",
    ) == _refused(path)


def test_every_fault_of_a_toml_file_is_told_at_once_with_its_index(write):
    """Unknown keys of the document and of the tables."""
    path = write(
        "bad.toml",
        'titel = "x"\n[[gradients]]\nnmae = "a"\nelements = 1\n[[gradients]]\nshap = 1\n',
    )

    assert (
        "bad.toml: titel: unknown key (did you mean 'title'?)",
        "bad.toml: gradients[0].nmae: unknown key (did you mean 'name'?)",
        "bad.toml: gradients[1].shap: unknown key (did you mean 'shape'?)",
        "bad.toml: gradients[1]: give elements or shape, one of the two",
    ) == _refused(path)


def test_every_fault_of_the_tables_is_told_at_once(write):
    """When the keys are right: wrong types are named."""
    path = write(
        "bad.toml",
        "[[gradients]]\nelements = true\n[[gradients]]\nelements = [1]\n[[gradients]]\nshape = "
        "3.5\nname = 5\n"
        "[[gradients]]\nelements = 1\ndtype = 32\n",
    )

    assert (
        "bad.toml: gradients[0].elements: must be a whole number from 0, got true",
        "bad.toml: gradients[1].elements: must be a whole number from 0, got [1]",
        "bad.toml: gradients[2].name: must be text, got 5",
        "bad.toml: gradients[2].shape: must be a list, each a whole number from 0, got 3.5",
        "bad.toml: gradients[3].dtype: must be text, got 32",
    ) == _refused(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "a.csv: empty; the first line names the columns: name,elements,dtype"),
        (
            "a.csv",
            "# only\n\n",
            "a.csv: empty; the first line names the columns: name,elements,dtype",
        ),
        ("a.csv", "name,elements\n", "a.csv: there is no gradient to reduce"),
        ("a.csv", b"\xff\xfd", "a.csv: line 1 is not UTF-8 text"),
        ("a.csv", b"name\n\x80", "a.csv: line 2 is not UTF-8 text"),
        ("a.csv", "elements\n" + "9" * 19, "a.csv: more than 1 PiB of gradients"),
        (
            "a.toml",
            "gradients = 1",
            (
                "a.toml: gradients: must be [[gradients]] tables with name, elements, shape, dtype,"
                " "
                "got 1"
            ),
        ),
        (
            "a.toml",
            "",
            (
                "a.toml: gradients: missing; must be [[gradients]] tables with name, elements, "
                "shape, "
                "dtype"
            ),
        ),
        ("a.toml", "gradients = []", "a.toml: there is no gradient to reduce"),
        ("a.toml", "x = " + "[" * 9999, "a.toml: line 1: nested too deeply, more than 64 levels"),
        (
            "a.toml",
            "[[gradients]]\nelements = 0x" + "f" * 9999,
            "a.toml: more than 1 PiB of gradients",
        ),
        ("a.toml", b"\x00", "a.toml: not valid TOML: Invalid statement (at line 1, column 1)"),
    ],
)
def test_a_file_that_is_no_gradient_list(write, name, content, message):
    """One line says why."""
    assert (message,) == _refused(write(name, content))


def test_a_toml_file_with_a_number_that_python_will_not_read_is_refused(write):
    """Thousands of digits."""
    (message,) = _refused(write("a.toml", "[[gradients]]\nelements = 1" + "0" * 5000))

    assert message.startswith("a.toml: not valid TOML: Exceeds the limit")


def test_a_file_that_is_no_table_is_not_echoed(write):
    """Its first line names no columns, so what is expected is said."""
    (message,) = _refused(write("notes.txt", "root:x:0:0:root:/root:/bin/sh\nuser,1\n"))

    assert (
        "notes.txt: line 1: no columns; expected a CSV file that begins with name,elements,dtype"
        == message
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "name,elements\nw,1\n"), ("a.toml", "[[gradients]]\nname = 'w'\nelements = 1\n")],
)
def test_a_byte_order_mark_does_not_count(write, name, content):
    """Editors on Windows begin files with one."""
    assert (Gradient("w", 1),) == load_workload(write(name, "\ufeff" + content)).gradients


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.csv", "name,elements\nw,1\nw,2\n", "line 3: name"),
        (
            "a.toml",
            "gradients = [{name='w', elements=1}, {name='w', elements=1}]",
            "gradients[1].name",
        ),
    ],
)
def test_a_name_stands_once(write, name, content, place):
    """Two gradients of one name could not be told apart."""
    assert (f"{name}: {place}: a second gradient 'w'",) == _refused(write(name, content))


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\u202e", "\u2066"])
def test_no_text_hides_what_it_says(write, character):
    """Control characters and those that turn the direction of text are refused, and escaped."""
    text = f'title = "{ascii(character)[1:-1].replace("x", "u00")}"' if character < " " else ""
    text = text or f'title = "a{character}b"'
    (message,) = _refused(write("a.toml", f"{text}\n[[gradients]]\nelements = 1\n"))

    assert message.startswith("a.toml: title: has a control character, which could hide")
    assert message.isprintable()


@pytest.mark.parametrize("text", ["missing.csv", "missing.toml", "no/such/folder/a.csv"])
def test_a_file_that_is_not_there(write, text):
    """The system's own reason is given."""
    write("other.csv", "")

    assert (f"{text}: there is no such file",) == _refused(text)


def test_a_folder_is_no_gradient_list(write, tmp_path):
    """Nor is a name that no file can have."""
    write("other.csv", "")
    (tmp_path / "folder.csv").mkdir()

    assert ("folder.csv: is a directory, not a file",) == _refused("folder.csv")
    assert (".: is a directory, not a file",) == _refused(".")
    assert _refused("x" * 5000)[0].startswith("no workload 'xxxx")
    assert "File name too long" in _refused("x" * 5000 + ".csv")[0]
    assert ("'a\\x00.csv': cannot be read: embedded null byte",) == _refused("a\x00.csv")


def test_a_file_without_the_ending_is_read_as_csv_when_it_is_there(write):
    """A name without an ending that is no file is taken for a misspelt model."""
    assert 3 == load_workload(write("gradients", "elements\n3\n")).elements


def test_a_workload_is_at_least_one_gradient_and_at_most_a_pebibyte():
    """Beyond that, nothing is left of any machine."""
    with pytest.raises(WorkloadError, match="x: there is no gradient to reduce"):
        Workload("x", ())
    with pytest.raises(WorkloadError, match="x: more than 1 PiB of gradients"):
        Workload("x", (Gradient("g", MOST_BYTES // 4 + 1),))
    assert MOST_BYTES == Workload("x", (Gradient("g", MOST_BYTES // 4),)).nbytes


csv_text = st.lists(
    st.one_of(
        st.just("name,elements,shape,dtype"),
        st.just("name,elements"),
        st.text(alphabet='name,elementsshapedtype0123x"#\r \t', max_size=30),
        st.lists(
            st.sampled_from(
                [
                    "",
                    "a",
                    "1",
                    "-1",
                    "2x3",
                    "x",
                    "float32",
                    '"',
                    '"q"',
                    "9" * 30,
                    "\u2028",
                    "\x0b",
                    "\x00",
                ]
            ),
            max_size=5,
        ).map(",".join),
    ),
    max_size=6,
).map("\n".join)
toml_value = st.sampled_from(
    [
        "1",
        "-1",
        "1.5",
        "nan",
        "true",
        '"x"',
        '"float16"',
        "[1, 2]",
        "[]",
        '["x"]',
        "{}",
        "{a = 1}",
        "1979-05-27",
        "0x" + "f" * 5000,
        "1" + "0" * 5000,
        "[[1]]",
        "07:32:00",
    ]
)
toml_text = st.lists(
    st.one_of(
        st.just("[[gradients]]"),
        st.tuples(
            st.sampled_from(["name", "elements", "shape", "dtype", "title", "x", "gradients"]),
            toml_value,
        ).map(" = ".join),
        st.text(max_size=10),
    ),
    max_size=6,
).map("\n".join)


def _only_a_workload_error(path: str) -> None:
    try:
        workload = load_workload(path)
    except WorkloadError as error:
        problems = error.problems
    else:
        problems = ()
        assert workload.nbytes <= MOST_BYTES
        assert all(g.elements >= 0 and isinstance(g.name, str) for g in workload.gradients)

    assert all(problem for problem in problems)


@pytest.mark.parametrize("name", ["fuzz.csv", "fuzz.toml", "fuzz"])
@given(
    content=st.one_of(
        st.binary(max_size=60),
        csv_text.map(str.encode),
        toml_text.map(lambda t: t.encode("utf-8", "replace")),
    )
)
@example(content=b'name,elements\n"a,1\n"b,2\n')
@example(content=b'"name\nelements"\n1\n')
@example(content=b"elements\n" + b'"' * 200_000)
@example(content=b"elements\n" + b"1" * 200_000)
@example(content=b"shape\n" + b"9x" * 50_000 + b"9")
@example(content=b"elements\n1\r2\n")
@example(content="elements\n٣\n".encode())
@example(content="elements\n²\n".encode())
@example(content=b"[[gradients]]\nshape = [0x" + b"f" * 5000 + b', "x"]\n')
@example(content=b"[[gradients]]\nname = 0x" + b"f" * 5000 + b"\nelements = 1\n")
@example(content=b"[[gradients]]\ndtype = 0x" + b"f" * 5000 + b"\nelements = 1\n")
def test_any_file_is_a_gradient_list_or_a_workload_error(tmp_path_factory, name, content):
    """Whatever bytes it holds."""
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)

    _only_a_workload_error(str(path))


@given(st.one_of(st.text(max_size=30), st.text(max_size=20).map("bytes:{}".format)))
@example("bytes:1,dtype")
@example("\ud800.csv")
@example("a\x00")
@example("..")
@example("bytes:" + "9" * 5000)
def test_any_text_names_a_workload_or_is_a_workload_error(text):
    """Whatever a user types."""
    _only_a_workload_error(text)


def test_lines_that_are_no_rows_are_told_with_the_faults_of_the_others(write):
    """In one round."""
    with pytest.raises(WorkloadError) as caught:
        load_workload(write("list.csv", "name,elements\na,-3\nb\nc,3,4\nd,x\n"))

    assert [place.split(": ")[1:3] for place in caught.value.problems] == [
        ["line 3", "1 field where the header has 2"],
        ["line 4", "3 fields where the header has 2"],
        ["line 2", "elements"],
        ["line 5", "elements"],
    ]


def test_too_many_gradients_are_refused_before_they_are_read(write):
    """A hundred thousand can be; lines that are no gradients do not count."""
    text = "name,elements,dtype\n" + "# none\n" * 10 + "x,256,float32\n" * 100_001
    with pytest.raises(WorkloadError, match=r"many\.csv: 100,001 gradients, where at most 100,000"):
        load_workload(write("many.csv", text))
