from __future__ import annotations

import numpy as np
import pytest

from stoker.authoring import StageInputError
from stoker.cookbooks.sequence.arrays import PARTS, cut, read_windows, write_windows
from stoker.cookbooks.sequence.schemas import WindowArgs
from tests.later import imported_later

with imported_later():
    import pandas as pd

    from tests.unit.cookbooks.sequence.walked_series import settled, small_windows


HOW = WindowArgs(window=5, stride=2, horizon=3, validation_percent=20, test_percent=20)


def counted(rows: int = 100, **columns):
    return pd.DataFrame({"x": np.arange(float(rows)), "y": np.arange(float(rows)) ** 2, **columns})


def test_no_row_is_seen_or_asked_about_in_two_parts():
    windows = cut(settled(counted(), target="x"), HOW)
    touched = {
        name: {int(row) for start in windows.starts[name] for row in range(start, start + 5 + 3)} for name in PARTS
    }
    assert max(touched["train"]) < min(touched["validation"])
    assert max(touched["validation"]) < min(touched["test"])
    assert windows.facts["borders"] == [0, 60, 80, 100]
    assert windows.starts["train"].tolist() == list(range(0, 53, 2))
    assert windows.starts["test"].tolist() == list(range(80, 93, 2))


def test_the_scale_is_that_of_the_training_rows_alone():
    frame = counted()
    windows = cut(settled(frame, target="x"), HOW)
    assert windows.facts["mean"] == pytest.approx([frame["x"][:60].mean(), frame["y"][:60].mean()])
    assert windows.facts["spread"] == pytest.approx([frame["x"][:60].std(ddof=0), frame["y"][:60].std(ddof=0)])
    later = frame.copy()
    later.loc[60:, :] = -1e6
    assert (cut(settled(later, target="x"), HOW).signals[:60] == windows.signals[:60]).all()


def test_the_answer_of_a_class_is_that_of_the_last_row_and_the_class_is_no_channel():
    frame = counted(state=np.repeat(["a", "b", "c", "d"] * 5, 5))
    windows = cut(settled(frame, target="state"), HOW)
    assert windows.facts["series"]["channels"] == ["x", "y"]
    assert windows.facts["horizon"] == 0
    assert windows.starts["test"].tolist() == list(range(80, 96, 2))


def test_a_gap_is_filled_from_before_it_and_never_asked_about():
    frame = counted()
    frame.loc[10:11, "x"] = np.nan
    frame.loc[0, "y"] = np.nan
    windows = cut(settled(frame, target="x"), HOW)
    assert windows.signals[11, 0] == windows.signals[10, 0] == windows.signals[9, 0]
    assert windows.signals[0, 1] == 0.0
    asked = {int(row) for start in windows.starts["train"] for row in range(start + 5, start + 8)}
    assert not asked & {10, 11}
    assert any("3 missing values were filled" in note for note in windows.facts["notes"])
    assert any("windows were left out" in note for note in windows.facts["notes"])


def test_a_row_without_a_class_ends_no_window():
    state: list[str | None] = ["a", "b"] * 50
    state[8] = None
    windows = cut(settled(counted(state=state), target="state"), HOW)
    assert 8 - 4 not in windows.starts["train"]
    assert 6 - 4 in windows.starts["train"]


def test_a_class_that_the_training_part_never_shows_is_told():
    windows = cut(settled(counted(state=["a", "a", "b", "b"] * 20 + ["c"] * 20), target="state"), HOW)
    assert windows.facts["notes"][-1] == "No training window shows c: a model can't know it."


def test_too_few_rows_are_refused_with_what_is_missing():
    with pytest.raises(StageInputError, match=r"30 rows are too few for windows of 5 \+ 3 ahead .* none in validation"):
        cut(settled(counted(30), target="x"), HOW)


def test_a_column_that_begins_after_the_training_part_is_refused():
    with pytest.raises(StageInputError, match="column 'z' has no value in the training part"):
        cut(settled(counted(z=[np.nan] * 70 + list(range(30))), target="x"), HOW)


def test_windows_come_back_as_they_were_written(tmp_path):
    windows = small_windows()
    write_windows(windows, tmp_path)
    again = read_windows(tmp_path)
    assert again.facts == windows.facts
    assert (again.signals == windows.signals).all()
    assert all((again.starts[name] == windows.starts[name]).all() for name in PARTS)
