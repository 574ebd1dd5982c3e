from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from stoker.jobs.code_diff import CODE, LARGEST_FILE_BYTES, MOST_TEXT, code_paper, compare_code, read_code
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.request import JobRequest
from tests.unit.jobs.conftest import Office


def test_changed_added_and_removed_files_as_a_unified_diff() -> None:
    stored = {"1": b"a\nb\nc\n", "2": b"a\nB\nc\n", "3": b"new\x1b[2J\n"}
    change = compare_code(
        {"x.py": "1", "same.py": "9", "old.py": "1"}, {"x.py": "2", "same.py": "9", "n.py": "3"}, stored.get
    )
    assert change.files == ("n.py", "old.py", "x.py")
    assert "--- a/x.py\n+++ b/x.py\n@@ -1,4 +1,4 @@\n a\n-b\n+B\n c\n " in change.text
    assert "--- /dev/null\n+++ b/n.py" in change.text
    assert "+++ /dev/null" in change.text
    assert "\x1b" not in change.text
    assert not change.is_cut


def test_what_is_binary_large_or_not_stored_is_named() -> None:
    stored = {"1": b"\0", "2": b"x" * (LARGEST_FILE_BYTES + 1)}
    change = compare_code({"a": "1", "b": "2"}, {"a": "7", "b": "8", "c": "missing"}, stored.get)
    assert change.files == ("a", "b", "c")
    assert change.text.count("# not shown") == 3


def test_a_long_diff_is_cut() -> None:
    stored = {str(at): "".join(f"{at} {line} {'x' * 90}\n" for line in range(1000)).encode() for at in range(8)}
    change = compare_code({}, {f"{at}.py": str(at) for at in range(8)}, stored.get)
    assert change.is_cut
    assert len(change.text) <= MOST_TEXT
    assert compare_code({"a": "1"}, {"a": "1"}).files == ()


def test_of_very_many_changed_lines_only_the_first_files_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.jobs.code_diff._COMPARED_LINES", 250)
    files = {f"f{at}.py": f"{at}" for at in range(4)}
    change = compare_code({}, files, lambda digest: f"x = {digest}\n".encode() * 100)
    assert change.files == tuple(files)
    assert change.text.count("# not shown: too many lines") == 2
    assert "+x = 1" in change.text
    assert "+x = 2" not in change.text


def test_small_texts_of_a_program_s_code_are_kept_with_its_run(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("lr = 1\n")
    (tmp_path / "b.bin").write_bytes(b"\xff\x00")
    (tmp_path / "c.py").write_text("#" * 100_000)
    paper = code_paper([str(tmp_path / name) for name in ("a.py", "b.bin", "c.py", "gone.py")])
    (tmp_path / CODE).write_bytes(paper[CODE])
    assert read_code(JobFolder(str(tmp_path))) == {sha256(b"lr = 1\n").hexdigest(): b"lr = 1\n"}
    assert code_paper([]) == {}
    (tmp_path / CODE).write_bytes(b"[]")
    assert read_code(JobFolder(str(tmp_path))) == {}


def test_a_run_of_a_program_keeps_its_code(office: Office) -> None:
    script = office.folder / "x.py"
    script.write_text("print(1)\n")
    build = office.builder.build(JobRequest(target="", program=("python", "x.py")))
    assert sha256(script.read_bytes()).hexdigest() in build.papers[CODE].decode()
    assert list(build.code.values()) == [f"sha256:{sha256(script.read_bytes()).hexdigest()}"]
