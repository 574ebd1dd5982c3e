"""Runs of scripts as ranks, from Python; the command line has its own tests."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import BadGang, Cancelled, RankFailed, RankTimeout, Terminated
from stoker.gang.mailbox import Phase
from stoker.gang.script_gang import ScriptGang
from stoker.gang.scripts import read_script
from stoker.gang.starters import ExecStarter
from tests.leaks import left_open, open_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere untested")


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.phases: list[tuple[int, Phase]] = []
        self.something = threading.Event()

    def hear(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None:
        self.lines += [f"{rank}{'!' if is_error else ':'}{line.decode()}" for line in lines]
        self.something.set()

    def phase(self, rank: int, phase: Phase, _at_ns: int) -> None:
        self.phases.append((rank, phase))


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard = Heard()

    def gang(self, code: str, nranks: int = 2, kind: type[ScriptGang] = ScriptGang, **more: Any) -> ScriptGang:
        words = [sys.executable, "-c", code]
        script = read_script(words, folder=str(self.folder), environment=dict(os.environ))
        return kind(script, nranks, folder=str(self.folder), hear=self.heard.hear, on_phase=self.heard.phase, **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_run_leaves_no_descriptor_and_its_phases_come_in_order(place):
    before = open_files()
    place.gang("import os; print(os.environ['RANK'])").run()
    assert sorted(place.heard.lines) == ["0:0", "1:1"]
    assert [phase for rank, phase in place.heard.phases if rank == 1] == [Phase.FORKED, Phase.RUN]
    with pytest.raises(RankFailed):
        place.gang("1 / 0").run()
    assert left_open(before) == set()


class Started(ScriptGang):
    """As where there is no forking."""

    def _starter(self, env, held):
        return ExecStarter(sys.executable, env=env, cwd=self._folder, sys_path=sys.path)


def test_where_there_is_no_forking_ranks_are_started(place):
    # The first one speaks before the second one fails, at which it is ended.
    code = (
        "import os, sys, time\n"
        "rank = os.environ['RANK']\n"
        "while rank == '1' and not os.path.exists('said'): time.sleep(0.01)\n"
        "print(rank, sys.argv, flush=True)\n"
        "open('said', 'w').close()\n"
        "sys.exit(int(rank) * 3)\n"
    )
    with pytest.raises(RankFailed, match=r"rank 1 \(device 1\) failed in RUN after .*: exit 3$"):
        place.gang(code, kind=Started).run()
    assert sorted(place.heard.lines) == ["0:0 ['-c']", "1:1 ['-c']"]


@pytest.mark.parametrize(("why", "said"), [(Cancelled("enough"), "interrupted"), (Terminated("enough"), "asked")])
def test_whoever_ends_a_run_gets_his_own_reason_and_ranks_are_told_fittingly(place, why, said):
    gang = place.gang(
        "import signal, sys, time\n"
        "def leave(word): sys.exit(print(word))\n"
        "signal.signal(signal.SIGINT, lambda *_: leave('interrupted'))\n"
        "signal.signal(signal.SIGTERM, lambda *_: leave('asked'))\n"
        "print('up', flush=True)\nwhile True: time.sleep(0.05)\n",
        nranks=1,
    )
    ending = threading.Thread(target=lambda: (place.heard.something.wait(30), gang.end(why)))
    ending.start()
    with pytest.raises(type(why), match="enough"):
        gang.run()
    ending.join()
    assert place.heard.lines == ["0:up", f"0:{said}"]


def test_a_run_that_is_ended_before_it_begins_starts_nobody(place):
    gang = place.gang("print('never')")
    gang.end(Cancelled("no"))
    with pytest.raises(Cancelled, match="no"):
        gang.run()
    assert place.heard.lines == []


def test_too_many_ranks_are_refused_before_anything_starts(place):
    with pytest.raises(BadGang):
        place.gang("pass", nranks=2000)


def test_a_program_that_turns_out_to_be_none_is_told_with_its_rank(place):
    path = place.folder / "tool"
    path.write_bytes(b"\x7fELF, but no more")
    path.chmod(0o755)
    script = read_script([str(path)], folder=str(place.folder), environment=dict(os.environ))
    gang = ScriptGang(script, 2, folder=str(place.folder), hear=place.heard.hear)
    with pytest.raises(RankFailed, match=r"rank \d .*: OSError: .*Exec format error"):
        gang.run()


def test_a_rank_that_waits_for_one_who_has_left_says_for_whom(place):
    package = place.folder / "torch" / "distributed"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.touch()
    (package / "distributed_c10d.py").write_text(
        "import threading\ndef init_process_group(store=None): threading.Event().wait()\n"
    )
    code = (
        "import importlib, os, sys\n"
        "c10d = importlib.import_module('torch.distributed.distributed_c10d')\n"
        "sys.exit() if os.environ['RANK'] == '0' else c10d.init_process_group(store=1)\n"
    )
    with pytest.raises(RankTimeout, match=r"rank 1 .* is silent in COMM") as caught:
        place.gang(code, timeout_s=0.3, sys_path=[str(place.folder), *sys.path]).run()
    assert caught.value.hint.endswith("for rank 0, which exited with 0 and never called it")


def test_a_rank_whose_peer_is_gone_is_told_who_had_left(place):
    gone = place.folder / "gone"
    code = (
        "import os, sys, time\n"
        f"gone = {str(gone)!r}\n"
        "if os.environ['RANK'] == '0': sys.exit()\n"
        "while not os.path.exists(gone): time.sleep(0.01)\n"
        "raise RuntimeError('Connection closed by peer')\n"
    )
    gang = place.gang(code)
    watching = threading.Thread(target=lambda: (wait_for_one_to_leave(gang), gone.touch()))
    watching.start()
    with pytest.raises(RankFailed, match=r"rank 1 .* closed by peer") as caught:
        gang.run()
    watching.join()
    assert caught.value.hint == "rank 0 exited with 0 before; it may be the peer that is gone"


def wait_for_one_to_leave(gang: ScriptGang) -> None:
    deadline_s = time.monotonic() + 30
    while not gang._left and time.monotonic() < deadline_s:
        time.sleep(0.005)
