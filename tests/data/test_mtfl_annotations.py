import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data.mtfl import CLASSES, member_path, parse_annotations, parse_boxes
from mtfl_archive import POINTS, row, text

GOOD = row("a/b.jpg")


def parse(content):
    return parse_annotations(content, "training.txt")


def boxes(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "boxes.csv"
        path.write_bytes(content)
        return parse_boxes(path)


def test_a_file_as_it_really_is():
    table = parse(
        text(
            [row("lfw_5590\\A_1.jpg", labels=(1, 2, 2, 3)), row("AFLW/b.jpg", labels=(2, 1, 1, 5))]
        )
    )
    assert table.paths == ["lfw_5590/A_1.jpg", "AFLW/b.jpg"]
    assert table.rows.tolist() == [1, 2]
    assert table.labels.tolist() == [[0, 1, 1, 2], [1, 0, 0, 4]]
    np.testing.assert_allclose(table.landmarks, [POINTS, POINTS])


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n", " \r\n \r\n\t"])
def test_line_endings_and_blank_lines(ending):
    assert len(parse((GOOD + ending + GOOD).encode()).paths) == 2


def test_byte_order_mark():
    assert parse(b"\xef\xbb\xbf" + GOOD.encode()).paths == ["a/b.jpg"]


BAD = {
    "14 fields, not 15": " ".join(GOOD.split()[:-1]),
    "16 fields, not 15": GOOD + " 1",
    "gender is '0'": row("a.jpg", labels=(0, 1, 1, 1)),
    "smile is '3'": row("a.jpg", labels=(1, 3, 1, 1)),
    "glasses is '-1'": row("a.jpg", labels=(1, 1, -1, 1)),
    "pose is '6'": row("a.jpg", labels=(1, 1, 1, 6)),
    "landmark 'nan'": row("a.jpg", points=(float("nan"), *POINTS[1:])),
    "landmark 'inf'": row("a.jpg", points=(float("inf"), *POINTS[1:])),
    "landmark 'x'": GOOD.replace("20.250000", "x"),
    "both eyes": row("a.jpg", points=(5, 5, 6, 7, 8, 9, 9, 1, 2, 3)),
    "outside the data folder": row("..\\..\\secret.jpg"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_is_named(what):
    content = text([GOOD, BAD[what], GOOD])
    with pytest.raises(DataError, match=rf"^training\.txt, row 2: .*{what}.*again$"):
        parse(content)


def test_no_usable_row():
    for content in (b"", b"\r\n \r\n"):
        with pytest.raises(DataError, match=r"training\.txt: no usable row"):
            parse(content)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../a.jpg", "a/../../b", "C:\\a.jpg", "\\\\host\\a", "a/\0b", "", ".", "a\nb"],
)
def test_paths_that_leave_the_folder(path):
    with pytest.raises(
        ValueError, match=r"path .* (points outside|names no file|is not a file name)"
    ):
        member_path(path)


def test_paths_are_made_plain():
    assert member_path(".\\a\\b..c.jpg") == "a/b..c.jpg"


def test_boxes_by_name_best_score_first():
    lines = ["score,path,x0,y0,x1,y1", r".5,a\b.jpg,1,2,3,4", ".9,a/b.jpg,-5,0,9,9"]
    content = "\r\n".join([*lines, ".7,a/b.jpg,0,0,1,1"]).encode()
    assert boxes(content) == {"a/b.jpg": (-5, 0, 9, 9)}
    assert boxes(b"path,x0,y0,x1,y1\na.jpg,1,2,3,4") == {"a.jpg": (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("a.jpg,1,2,nan,4,1", "x1 'nan' is not a finite number"),
        ("a.jpg,1,2,,4,1", "x1 '' is not a finite number"),
        ("a.jpg,1,2,3", "fields where the header has 6"),
        ("a.jpg,1,2,3,4,1,7", "fields where the header has 6"),
        ("a.jpg,3,2,1,4,1", "less than one pixel"),
        ("../a.jpg,1,2,3,4,1", "outside the data folder"),
    ],
)
def test_a_bad_box_is_named(line, what):
    content = f"path,x0,y0,x1,y1,score\nok.jpg,1,2,3,4,1\n{line}\n".encode()
    with pytest.raises(DataError, match=rf"boxes\.csv, data row 2 \(line 3\): .*{what}"):
        boxes(content)


@pytest.mark.parametrize("content", [b"", b"path,x0,y0,x1\n", b"\xff\xfe", b'path,x0,y0,x1,y1\n"a'])
def test_what_is_no_csv_of_boxes(content):
    with pytest.raises(DataError, match=r"boxes\.csv(: |, after line)"):
        boxes(content)


def test_on_bad_is_checked():
    with pytest.raises(ConfigError, match="did you mean 'drop'"):
        BadRows("dropp")


FIELD = st.one_of(
    st.sampled_from(
        ["1", "2", "6", "0", "nan", "1e999", "-3.5", "a\\b.jpg", "../x", "\0", "9" * 5000, "\u0661"]
    ),
    st.floats().map(str),
    st.text(max_size=5),
)
LINE = st.one_of(
    st.just(GOOD.encode()),
    st.lists(FIELD, min_size=13, max_size=16).map(lambda f: " ".join(f).encode(errors="replace")),
    st.binary(max_size=60),
    st.tuples(st.integers(0, 14), FIELD).map(
        lambda change: " ".join(
            change[1] if place == change[0] else field for place, field in enumerate(GOOD.split())
        ).encode(errors="replace")
    ),
)
CONTENT = st.tuples(st.sampled_from([b"\r\n ", b"\n", b"\r"]), st.lists(LINE, max_size=5)).map(
    lambda parts: parts[0].join(parts[1])
)


def one_line(error):
    assert str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(st.one_of(CONTENT, st.binary(max_size=200)))
def test_fuzzed_annotations_give_rows_or_our_own_error(content):
    try:
        table = parse(content)
    except DataError as error:
        one_line(error)
        return
    assert len(table.paths) == len(table.rows) > 0
    assert table.landmarks.shape == (len(table.rows), 10)
    assert np.isfinite(table.landmarks).all()
    assert (table.labels >= 0).all()
    assert (table.labels < [len(names) for names in CLASSES.values()]).all()
    assert not any(path.startswith("/") or ".." in path.split("/") for path in table.paths)


CELL = st.one_of(FIELD, st.sampled_from(['"', "a,b", "1", "50", "a.jpg"]))
TABLE = st.lists(st.lists(CELL, min_size=4, max_size=7).map(",".join), max_size=5).map(
    lambda lines: "\n".join(["path,x0,y0,x1,y1,score", *lines]).encode(errors="replace")
)


@settings(max_examples=600, deadline=None)
@given(st.one_of(TABLE, st.binary(max_size=200)))
def test_fuzzed_boxes_give_boxes_or_our_own_error(content):
    try:
        found = boxes(content)
    except DataError as error:
        one_line(error)
        return
    for x0, y0, x1, y1 in found.values():
        assert np.isfinite([x0, y0, x1, y1]).all()
        assert x1 - x0 >= 1
        assert y1 - y0 >= 1
