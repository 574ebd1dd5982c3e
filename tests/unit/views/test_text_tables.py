from __future__ import annotations

from rich.cells import cell_len

from stoker.views.text_tables import table


def test_columns_line_up_below_wide_and_combining_characters() -> None:
    rows = [["学习率", "1"], ["cafe\u0301", "2"], ["lr", "3"], ["한국어/🚀", "4"]]
    lines = table(rows, header=("name", "value"))
    assert len({cell_len(line[: -len(end)]) for line, (_, end) in zip(lines[1:], rows, strict=True)}) == 1
    assert lines[1].startswith("学习率     1")


def test_the_last_column_wraps_by_what_is_seen() -> None:
    lines = table([["a", "数据集合 成功完成 " * 4]], columns=40)
    assert len(lines) > 1
    assert all(cell_len(line) <= 40 for line in lines)
    assert table([["a", "two  spaces " + "x" * 30]], columns=40)[0] == "a  two  spaces"
