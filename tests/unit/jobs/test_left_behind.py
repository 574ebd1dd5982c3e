"""What stays behind of a program's folder: what it names first, the largest folders, within a bound."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.core.job import InputKind, JobInput, JobSpec
from stoker.jobs.pack import left_behind
from stoker.jobs.pack.left_behind import EXCLUDED, UNTRACKED, LeftBehind, find_left_behind, missing_file_hint
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.test_project_packing import commit, found, git, packed

TRAIN = """
import os
data_dir = os.path.join("data", "chars")
rows = open(os.path.join(data_dir, "train.bin")).read()
torch.save(model, os.path.join("out", "ckpt.pt"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program in a git repository that ignores its data and its outputs."""
    folder = tmp_path / "project"
    (folder / "data" / "chars").mkdir(parents=True)
    (folder / "out").mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / ".gitignore").write_text("*.bin\nout/\n.env\n")
    (folder / "data" / "chars" / "prepare.py").write_text("")
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    (folder / "data" / "chars" / "train.bin").write_bytes(b"x" * 3_000_000)
    (folder / "data" / "chars" / "val.bin").write_bytes(b"x" * 1000)
    (folder / "out" / "ckpt.pt").write_bytes(b"x" * 9_000_000)
    (folder / ".env").write_text("KEY=secret")
    (folder / "notes.txt").write_text("mine")
    return folder


def job(*argv: str, inputs: tuple[JobInput, ...] = (), **args: Any) -> JobSpec:
    args = {"argv": argv or ("python", "train.py"), **args}
    return JobSpec(id="a" * 64, name="train", recipe="command", args=args, code={"train.py": "d"}, inputs=inputs)


def left(office: Office, folder: Path, *include: str, spec: JobSpec | None = None, at: str = "") -> LeftBehind:
    tree = packed(office, folder, *include).tree
    return find_left_behind(found(folder / at), tree, [spec or job()])


def test_what_the_program_names_is_first_and_what_it_writes_is_not_mentioned(office: Office, folder: Path) -> None:
    seen = left(office, folder)
    assert [(one.path, one.files, one.size_bytes, one.why) for one in seen.groups] == [
        ("out/", 1, 9_000_000, UNTRACKED),
        ("data/chars/", 2, 3_001_000, UNTRACKED),
        (".env", 1, 10, UNTRACKED),
        ("notes.txt", 1, 4, UNTRACKED),
    ]
    assert list(seen.lines()) == [
        "train.py names data/chars/train.bin, which stays behind",
        "not sent: data/chars/ (2 files, 2.9 MiB, not tracked by git), notes.txt (4 B, not tracked by git)",
        "to send data/chars/: --include data/chars/, or --data data/chars=data/chars",
    ]
    assert list(seen.lines(is_manifest=True))[-1] == (
        'to send data/chars/: include = ["data/chars/"], or data = { "data/chars" = "data/chars" }'
    )
    body = seen.to_json()
    assert (body["files"], body["is_complete"], body["named"][0]["text"]) == (5, True, "train.bin")


def test_what_is_sent_as_code_or_as_data_or_is_an_output_does_not_stay_behind(office: Office, folder: Path) -> None:
    included = left(office, folder, "data/", "notes.txt")
    assert not list(included.lines())
    data = JobInput(where="env:DATA", kind=InputKind.TREE, path=str(folder / "data"))
    given = left(office, folder, spec=job(inputs=(data,), outputs=("notes.txt",)))
    assert [one.path for one in given.groups] == ["out/", ".env"]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("python", "a.py", "data/chars"), ["data/chars/"]),
        (("python", "a.py", "--dir=./data/"), ["data/"]),
        (("python", "a.py", "--file", "data/chars/val.bin"), ["data/chars/val.bin"]),
        (("python", "a.py", "/data", "..", "../data", "\0", "out", "ckpt.pt"), []),
    ],
    ids=str,
)
def test_arguments_name_files_and_folders(
    office: Office, folder: Path, argv: tuple[str, ...], named: list[str]
) -> None:
    (folder / "train.py").write_text("")
    seen = left(office, folder, spec=job(*argv))
    assert [one.path for one in seen.named] == named
    assert not named or next(seen.lines()) == f"the command names {named[0]}, which stays behind"


def test_little_that_nothing_names_takes_one_line(office: Office, folder: Path) -> None:
    (folder / "data" / "chars" / "train.bin").write_text("")
    (folder / "train.py").write_text("")
    (line,) = left(office, folder).lines()
    assert line.startswith("not sent: data/chars/ (2 files, 1000 B, not tracked by git), notes.txt")
    assert line.endswith("; --include sends them")


def test_ignored_files_links_and_hostile_names_are_listed_and_never_followed(office: Office, folder: Path) -> None:
    (folder / ".stokerignore").write_text("prepare.py\n")
    (folder / "big").symlink_to("/usr")
    (folder / "loop").symlink_to(".")
    (folder / "red\x1b[31m.csv").write_text("x")
    (folder / os.fsdecode(b"odd\xff")).write_text("x")
    os.mkfifo(folder / "pipe")
    (folder / "closed").mkdir(mode=0)
    seen = left(office, folder)
    by_path = {one.path: one for one in seen.groups}
    assert by_path["big"].is_link
    assert by_path["loop"].is_link
    assert "pipe" not in by_path
    assert by_path["big"].words() == "--data ./big=big"
    assert [one.why for one in seen.groups if one.path == "data/chars/"] == [UNTRACKED, EXCLUDED]
    assert "\x1b" not in "".join(seen.lines())
    (folder / "closed").chmod(0o700)


@pytest.mark.parametrize("odd", ["pipe", "link out", "absolute link", "name"])
def test_what_keeps_a_folder_from_being_sent_is_named(office: Office, folder: Path, odd: str) -> None:
    chars = folder / "data" / "chars"
    (chars / "inside").symlink_to("val.bin")
    words = "--include data/chars/, or --data data/chars=data/chars"
    assert list(left(office, folder).lines())[-1] == f"to send data/chars/: {words}"
    made = chars / ("odd\udcff" if odd == "name" else "odd")
    if odd == "pipe":
        os.mkfifo(made)
    elif odd == "name":
        made.write_text("x")
    else:
        made.symlink_to("../../notes.txt" if odd == "link out" else "/etc/hostname")
    seen = left(office, folder)
    path = f"data/chars/{made.name}"
    assert (
        list(seen.lines())[-1]
        == f"to send data/chars/, first remove {path} (no file with a Unicode name, or a link out of it): {words}"
    )
    assert [one["send"] for one in seen.to_json()["folders"] if one["path"] == "data/chars/"] == [""]


def test_caches_environments_and_results_are_not_looked_at(office: Office, folder: Path, tmp_path: Path) -> None:
    for name in ("node_modules", "__pycache__", ".venv", "stoker-out"):
        (folder / name).mkdir()
        (folder / name / "x").write_text("x")
    (folder / "conda").mkdir()
    (folder / "conda" / "pyvenv.cfg").write_text("")
    (folder / "home").mkdir()
    (folder / "home" / "x").write_text("x")
    tree = packed(office, folder).tree
    seen = find_left_behind(found(folder), tree, [job()], ours=[str(folder / "home")])
    assert {one.path for one in seen.groups} == {"out/", "data/chars/", ".env", "notes.txt"}


def test_a_subfolder_of_a_repository_is_looked_at_alone(office: Office, folder: Path) -> None:
    seen = left(office, folder, at="data")
    assert [one.path for one in seen.groups] == ["chars/"]


def test_the_walk_is_bounded(office: Office, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "many").mkdir()
    for number in range(200):
        (folder / "many" / str(number)).write_text("x")
    monkeypatch.setattr(left_behind, "_MOST_LEFT", 100)
    seen = left(office, folder)
    assert not seen.is_complete
    assert seen.to_json()["files"] == 100
    assert any("at least" in line for line in seen.lines())
    monkeypatch.setattr(left_behind, "_MOST_SEEN", 3)
    assert left(office, folder).to_json()["files"] <= 3


def test_without_git_only_what_is_ignored_stays_behind(office: Office, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "train.py").write_text('open("rows.csv")')
    (plain / "rows.csv").write_text("x")
    assert left(office, plain).groups == ()
    (plain / ".stokerignore").write_text("*.csv\n")
    assert list(left(office, plain).lines()) == [
        "train.py names rows.csv, which stays behind",
        "not sent: rows.csv (1 B, excluded by .stokerignore)",
        "to send rows.csv: --include rows.csv, or --data ./rows.csv=rows.csv",
    ]


def failed(folder: Path, code_folder: str = "") -> JobSpec:
    return JobSpec(
        id="a" * 64,
        name="train",
        recipe="command",
        folder=str(folder),
        code_tree="b" * 64,
        code_folder=code_folder,
        code={"train.py": "d"},
    )


@pytest.mark.parametrize(
    "text",
    [
        "exit 1: FileNotFoundError: [Errno 2] No such file or directory: 'data/chars/train.bin' (train.py:3)",
        "cat: data/chars/train.bin: No such file or directory",
        "cat: ./data/chars/train.bin: No such file or directory",
        "OSError: data/chars/train.bin not found.",
        'RuntimeError: "/home/w/.local/workspaces/2026-x/data/chars/train.bin" does not exist',
    ],
)
def test_a_missing_file_that_is_here_is_named_with_the_words_that_send_it(folder: Path, text: str) -> None:
    assert missing_file_hint(failed(folder), [text]) == (
        "data/chars/train.bin is in the folder that the job was submitted from, and was not sent: "
        "submit with --include data/chars/, or --data data/chars=data/chars"
    )


def test_a_missing_file_of_a_subfolder_is_found_in_its_workspace(folder: Path) -> None:
    text = "No such file or directory: '/w/workspaces/run/data/chars/val.bin'"
    assert missing_file_hint(failed(folder / "data", "data"), [text]).startswith("chars/val.bin is in the folder")


@pytest.mark.parametrize(
    "text",
    [
        "exit 1: ValueError: data/chars/train.bin is odd",
        "No such file or directory: 'data/other.bin' (train.py:3)",
        "No such file or directory: '/etc/passwd'",
        "No such file or directory: '../../../../etc/passwd'",
        "python: can't open file 'train.py': [Errno 2] No such file or directory",
        "No such file or directory: ''",
    ],
)
def test_no_hint_for_what_is_not_missing_or_not_here(folder: Path, text: str) -> None:
    assert missing_file_hint(failed(folder), [text]) == ""


def test_no_hint_where_the_folder_is_not_here_or_nothing_was_sent(folder: Path) -> None:
    text = "No such file or directory: 'notes.txt'"
    assert missing_file_hint(failed(folder), [text])
    assert not missing_file_hint(failed(folder / "gone"), [text])
    assert not missing_file_hint(JobSpec(id="", name="x", recipe="command", folder=str(folder)), [text])
