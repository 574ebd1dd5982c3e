"""The one file that also runs in foreign interpreters: here in fresh ones of our own, without Stoker on their path."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.gang import script_boot
from stoker.gang.mailbox import MailboxPages, Phase, RankPage, RankState, unnamed_memory

BOOT = script_boot.__file__
LOOKS = "import os, sys; print([__name__, sys.argv, sys.path, os.getcwd(), globals().get('__file__')])\n"


RUDE = "class Rude(Exception):\n    def __str__(self): raise SystemExit(0)\n"


class Booted:
    def __init__(self, folder: Path, how: str, what: str, *args: str, options: tuple[str, ...] = ()) -> None:
        with MailboxPages.make(1) as pages:
            wake_read, wake_write = os.pipe()
            numbers = {"mailbox_fd": pages.fd(0), "wake_fd": wake_write, "store_fd": unnamed_memory("store", 0)}
            order = {"how": how, "what": what, "args": args, "rank": 2, "nranks": 4, **numbers}
            body = json.dumps(order).encode()
            order_fd = unnamed_memory("order", len(body))
            os.pwrite(order_fd, body, 0)
            self.done = subprocess.run(
                [sys.executable, *options, BOOT, str(order_fd)],
                cwd=folder,
                pass_fds=[order_fd, *numbers.values()],
                capture_output=True,
                text=True,
                check=False,
                env={"PATH": os.defpath},
            )
            page = pages.read(0)
            assert isinstance(page, RankPage), page
            self.page = page
            self.traceback = pages.traceback(0, page)
            for fd in (wake_read, wake_write, order_fd, numbers["store_fd"]):
                os.close(fd)


def alone(folder: Path, *words: str) -> str:
    """What the interpreter itself says to the same words."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=True, env={"PATH": os.defpath}
    ).stdout


@pytest.mark.parametrize(
    ("how", "what", "words"),
    [
        ("file", "sub/train.py", ["sub/train.py"]),
        ("file", "link.py", ["link.py"]),
        ("file", "sub", ["sub"]),
        ("module", "sub.train", ["-m", "sub.train"]),
        ("code", LOOKS, ["-c", LOOKS]),
    ],
)
def test_a_script_sees_what_python_itself_would_show_it(tmp_path, how, what, words):
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "__main__.py"):
        (tmp_path / "sub" / name).write_text(LOOKS)
    (tmp_path / "link.py").symlink_to("sub/train.py")
    booted = Booted(tmp_path, how, what, "a", "-b")
    assert booted.done.stdout == alone(tmp_path, *words, "a", "-b")
    assert (booted.done.returncode, booted.page.state, booted.page.phase) == (0, RankState.SUCCESS, Phase.RUN)
    assert (booted.page.rank, booted.page.nranks) == (2, 4)


def test_with_a_safe_path_the_folder_of_the_script_is_not_on_it(tmp_path):
    (tmp_path / "train.py").write_text(LOOKS)
    assert Booted(tmp_path, "file", "train.py", options=("-P",)).done.stdout == alone(tmp_path, "-P", "train.py")


def test_an_error_is_told_and_printed_without_our_own_frames(tmp_path):
    (tmp_path / "train.py").write_text("def f():\n    raise ValueError('ü' * 2000)\nf()\n")
    booted = Booted(tmp_path, "file", "train.py")
    assert (booted.done.returncode, booted.page.state, booted.page.error_type) == (1, RankState.ERROR, "ValueError")
    assert (booted.page.error_text, booted.page.is_cut) == ("ü" * 511, True)
    expected = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.defpath},
    ).stderr
    assert booted.done.stderr == expected
    assert booted.traceback == expected


def test_a_script_that_does_not_compile_is_told_as_python_would(tmp_path):
    (tmp_path / "train.py").write_text("def f(:\n")
    booted = Booted(tmp_path, "file", "train.py")
    assert booted.page.error_type == "SyntaxError"
    assert "script_boot" not in booted.done.stderr


@pytest.mark.parametrize(
    ("code", "status", "kind", "text"),
    [
        ("import sys; sys.exit(3)", 3, "exit 3", ""),
        ("import sys; sys.exit('no data')", 1, "exit 1", "no data"),
        ("import sys; sys.exit(2**70)", 255, "exit 255", ""),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt", ""),
        (f"{RUDE}raise Rude", 1, "Rude", "(its text can't be had: SystemExit)"),
        ("import os; os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); raise ValueError(7)", 1, "ValueError", "7"),
    ],
)
def test_how_a_script_ends_is_told(tmp_path, code, status, kind, text):
    booted = Booted(tmp_path, "code", code)
    assert (booted.done.returncode, booted.page.state) == (status, RankState.ERROR)
    assert (booted.page.error_type, booted.page.error_text) == (kind, text)


@pytest.mark.parametrize("code", ["pass", "import sys; sys.exit()", "import sys; sys.exit(0)"])
def test_a_script_that_ends_well_tells_no_error(tmp_path, code):
    booted = Booted(tmp_path, "code", code)
    assert (booted.done.returncode, booted.page.state) == (0, RankState.SUCCESS)


def test_the_file_is_one_that_python_3_8_reads():
    ast.parse(Path(BOOT).read_text("utf-8"), feature_version=(3, 8))
    imported = {node.module for node in ast.walk(ast.parse(Path(BOOT).read_text("utf-8"))) if hasattr(node, "module")}
    assert not [name for name in imported if name and name.startswith("stoker")]


class FakeTorch:
    """What `init_process_group` of torch takes and does, as far as we touch it."""

    class FileStore:
        def __init__(self, path: str, count: int) -> None:
            self.told = (path, count)

        def set_timeout(self, timeout: Any) -> None:
            self.timeout = timeout

    class PrefixStore:
        def __init__(self, prefix: str, store: Any) -> None:
            self.prefix = prefix
            self.store = store

    default_pg_timeout = 1800

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

        def init_process_group(
            backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, **more
        ):
            self.calls.append(
                {"backend": backend, "init_method": init_method, "rank": rank, "world": world_size, "store": store}
            )

        self.init_process_group = init_process_group


class Report:
    def __init__(self) -> None:
        self.phases: list[int] = []

    def begin(self, phase: int) -> None:
        self.phases.append(phase)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    return fake


def attached(torch: FakeTorch) -> Report:
    report = Report()
    script_boot._GroupStore({"rank": 1, "nranks": 2, "store_fd": 9}, report).attach(torch)
    return report


@pytest.mark.parametrize(
    "given", [{}, {"init_method": "env://"}, {"rank": 1, "world_size": 2}, {"backend": "gloo", "rank": -1}]
)
def test_a_group_without_a_meeting_place_gets_ours(torch, given):
    report = attached(torch)
    torch.init_process_group(**given)
    torch.init_process_group(**given)
    assert report.phases == [script_boot.COMM, script_boot.READY, script_boot.RUN] * 2
    first, second = torch.calls
    assert (first["rank"], first["world"], first["init_method"]) == (1, 2, None)
    assert first["store"].store.told[1] == 2
    # A second group of the same run does not read what the first has left.
    assert first["store"].prefix != second["store"].prefix


@pytest.mark.parametrize(
    "given",
    [{"init_method": "tcp://h:1"}, {"store": "own"}, {"rank": 0, "world_size": 1}, {"backend": "mpi"}],
)
def test_a_group_that_says_where_it_meets_is_left_alone(torch, given):
    report = attached(torch)
    torch.init_process_group(**given)
    assert torch.calls[0]["store"] == given.get("store")
    assert torch.calls[0]["init_method"] == given.get("init_method")
    assert report.phases == [script_boot.COMM, script_boot.READY, script_boot.RUN]
