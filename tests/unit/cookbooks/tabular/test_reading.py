from __future__ import annotations

from pathlib import Path

import pytest

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.data import BUNDLED
from tests.later import imported_later

with imported_later():
    import pandas as pd

    from stoker.cookbooks.tabular.tables import read_bundled, read_file


def write(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_bundled_set_has_rows_and_knows_its_target():
    for name in BUNDLED:
        frame, origin = read_bundled(name)
        assert origin["target"] in frame.columns
        assert (origin["rows"], origin["columns"]) == frame.shape
        assert origin["rows"] >= 100


def test_bundled_classes_appear_under_their_names():
    frame, _ = read_bundled("breast_cancer")
    assert set(frame["target"]) == {"benign", "malignant"}
    digits, _ = read_bundled("digits")
    assert set(digits["target"]) == set(range(10))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_separator_of_a_csv_file_is_found(tmp_path, delimiter):
    rows = [["a", "b", "c"], ["1", "x y", "2.5"], ["2", "z", "3.5"]]
    frame, origin = read_file(write(tmp_path, "\n".join(delimiter.join(row) for row in rows)))
    assert list(frame.columns) == ["a", "b", "c"]
    assert frame["c"].tolist() == [2.5, 3.5]
    assert origin["format"] == "csv"


def test_quoted_separators_line_breaks_and_quotes_stay_inside_their_field(tmp_path):
    frame, _ = read_file(write(tmp_path, 'name,"size, cm",kind\n"Doe, ""J""",1,"two\nlines"\nRoe,2,one\n'))
    assert list(frame.columns) == ["name", "size, cm", "kind"]
    assert frame["name"].tolist() == ['Doe, "J"', "Roe"]
    assert frame["kind"].tolist() == ["two\nlines", "one"]


def test_unicode_headers_and_a_byte_order_mark_are_read(tmp_path):
    frame, _ = read_file(write(tmp_path, "\ufeffgröße,名前,ответ\n1,あ,да\n2,い,нет\n"))
    assert list(frame.columns) == ["größe", "名前", "ответ"]


def test_decimal_commas_are_read_where_the_separator_is_another_one_and_it_is_said(tmp_path):
    frame, origin = read_file(write(tmp_path, "a;b\n1,5;2\n-2,25;3\n"))
    assert frame["a"].tolist() == [1.5, -2.25]
    assert origin["notes"] == ["Numbers were read with a decimal comma."]


def test_a_nameless_first_column_that_counts_rows_is_left_out_and_it_is_said(tmp_path):
    frame, origin = read_file(write(tmp_path, ",a,b\n0,1,x\n1,2,y\n"))
    assert list(frame.columns) == ["a", "b"]
    assert "only counts the rows" in origin["notes"][0]


def test_another_nameless_column_gets_a_name_and_it_is_said(tmp_path):
    frame, origin = read_file(write(tmp_path, "a,,b\n5,1,x\n7,2,y\n"))
    assert list(frame.columns) == ["a", "column_2", "b"]
    assert origin["notes"] == ["Columns without a name in the header are called column_2."]


def test_missing_values_stay_missing(tmp_path):
    frame, _ = read_file(write(tmp_path, "a,b\n1,\n,x\n3,y\n"))
    assert frame.isna().sum().tolist() == [1, 1]


def test_a_parquet_file_is_known_by_its_bytes_and_its_stored_index_is_no_data(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"]}, index=[10, 20, 30])
    frame.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").rename(tmp_path / "misnamed.csv")
    read, origin = read_file(tmp_path / "misnamed.csv")
    assert list(read.columns) == ["a", "b"]
    assert origin["format"] == "parquet"


def test_the_same_bytes_under_two_names_have_the_same_origin(tmp_path):
    one = write(tmp_path, "a,b\n1,2\n", "one.csv")
    two = write(tmp_path, "a,b\n1,2\n", "two.txt")
    assert read_file(one)[1] == read_file(two)[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad.csv is empty"),
        (b"\n \n", "bad.csv is empty"),
        (b"a,b\n", "has a header but no rows"),
        (b"only\n1\n2\n", "has one column, 'only'"),
        (b"a,b,a\n1,2,3\n", "has more than one column named 'a'"),
        (b"a,b\n1,2\n3,4,5\n", "is not a regular table"),
        ("a,b\nx,y\nStraße,2\n".encode("latin-1"), "is not UTF-8 text (byte 0xdf in line 3)"),
        (b"a,b\n1,\x00\n", "is neither text nor Parquet"),
        (b"\x1f\x8b\x08\x00rest", "is gzip-compressed"),
        (b"PAR1 torn", "is not a whole Parquet file"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_the_reason(tmp_path, content, message):
    with pytest.raises(StageInputError) as caught:
        read_file(write(tmp_path, content, "bad.csv"))
    assert message in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_latin_1_far_into_a_long_file_is_found_in_its_line(tmp_path):
    content = b"a,b\n" + b"1,2\n" * 200_000 + b"\xe9,2\n"
    with pytest.raises(StageInputError, match="line 200002") as caught:
        read_file(write(tmp_path, content))
    assert "iconv" in caught.value.hint


def test_a_missing_file_is_refused_by_its_name(tmp_path):
    with pytest.raises(StageInputError, match=r"gone\.csv can't be read: No such file"):
        read_file(tmp_path / "gone.csv")


def test_a_parquet_file_with_repeated_or_single_columns_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "twice.parquet")
    with pytest.raises(StageInputError, match="more than one column named 'a'"):
        read_file(tmp_path / "twice.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "single.parquet")
    with pytest.raises(StageInputError, match="has one column"):
        read_file(tmp_path / "single.parquet")
    pq.write_table(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    with pytest.raises(StageInputError, match="no rows"):
        read_file(tmp_path / "none.parquet")
