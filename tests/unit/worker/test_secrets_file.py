"""Secrets of jobs on a worker's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.errors import BadInput
from stoker.worker.machine_checks import find_secrets, read_secrets


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "secrets.env"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_file_has_a_name_and_a_value_in_each_line(tmp_path: Path):
    path = written(tmp_path, "# mine\nTOKEN=abcd=ef \n\nexport KEY='a b # c'\nEMPTY=\n")
    assert read_secrets(path) == {"TOKEN": "abcd=ef", "KEY": "a b # c", "EMPTY": ""}
    assert read_secrets(str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A=1234\nnonsense hunter2\n", "line 2: not NAME=value"),
        ("1A=hunter2\n", "line 1: not NAME=value"),
        ("A=hunter2\nA=hunter3\n", "line 2: A stands in line 1 already"),
        ('A="hunter2\n', "line 1: the quote of A does not end"),
    ],
    ids=["no-equals", "bad-name", "twice", "quote"],
)
def test_what_is_wrong_in_it_is_told_by_its_line_and_never_by_a_value(tmp_path: Path, text: str, says: str):
    with pytest.raises(BadInput, match=says) as caught:
        read_secrets(written(tmp_path, text))
    assert "hunter" not in str(caught.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="chmod 600"):
        read_secrets(written(tmp_path, "A=hunter2\n", 0o640))


def test_the_workers_own_environment_wins_and_what_is_missing_is_named(tmp_path: Path):
    path = written(tmp_path, "A=from-file\nB=also-file\nSHORT=ab\n")
    found = find_secrets(["A", "B"], environment={"A": "from-environment"}, path=path)
    assert dict(found.values) == {"A": "from-environment", "B": "also-file"}
    assert "from-environment" not in repr(found)
    lacking = find_secrets(["A", "C"], environment={}, path=path)
    assert not lacking.values
    assert "C" in lacking.trouble
    assert "SHORT" in find_secrets(["SHORT"], environment={}, path=path).trouble
    assert "chmod 600" in find_secrets(["C"], environment={}, path=written(tmp_path, "A=1", 0o644)).trouble
