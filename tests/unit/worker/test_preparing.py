"""What a job needs: whether it is here, brought if it is not, and put in its place."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import NetworkFailed, NotOnServer, Terminated
from stoker.core.frozen import changed
from stoker.core.job import EnvironmentChoice, InputKind, JobInput
from stoker.host.identity import mine, of_pid
from stoker.jobs.pack.environment_files import gather
from stoker.store.environment_cache import EnvironmentImpossible, EnvironmentReady, key_of
from stoker.store.memo import digest_path
from stoker.transfer.trees import tree_sources
from stoker.transfer.trees.tree_sources import CoordinatorSource, TransferBackoff
from stoker.worker.preparation import input_fetch, workspaces
from stoker.worker.preparation.input_check import InputStatus, PresentInputs, refusal_by_tree, what_is_missing
from stoker.worker.preparation.prepare_child import (
    MOST_BYTES,
    EnvironmentActivity,
    InputPreparer,
    PrepareLine,
    PreparingProgram,
    SmallTrees,
    TreeActivity,
)
from tests.servers.relay import Relay
from tests.unit.worker.benches import CLOCK, MachineAlone, files_in, giving, input_at, kept_tree, wanting
from tests.unit.worker.tiny_wheels import locked_project, wheel

READY = EnvironmentReady(digest="d" * 64, key="k", interpreter="/env/bin/python")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[MachineAlone]:
    yield MachineAlone(tmp_path / "desk")
    MachineAlone.close_all()


def lab_in(folder: Path, url: str = "", **more: object) -> MachineAlone:
    return MachineAlone(folder / "lab", host="lab", url=url, **more)  # type: ignore[arg-type]


def corpus_in(folder: Path) -> Path:
    place = folder / "corpus"
    (place / "deep").mkdir(parents=True)
    (place / "a.txt").write_text("one")
    (place / "deep" / "large.bin").write_bytes(os.urandom(3 << 20))
    return place


def test_nothing_is_missing_where_everything_is_here(tmp_path: Path, desk: MachineAlone):
    body = input_at(corpus_in(tmp_path), desk.store)
    choice = EnvironmentChoice(kind="uv.lock", path="uv.lock", digest="d" * 64)
    wanted = wanting(code_tree="c" * 64, inputs=(body,), environment=(choice,))
    assert what_is_missing(wanting(), PresentInputs()).is_nothing
    everything = PresentInputs(code=True, inputs={"env:DATA": InputStatus.IN_PLACE}, environment=READY)
    assert what_is_missing(wanted, everything).is_nothing
    missing = what_is_missing(wanted, PresentInputs())
    assert (missing.code, missing.environment, missing.inputs) == (True, True, (body,))
    assert missing.words() == "code, DATA (3.0 MiB), environment"
    assert what_is_missing(wanted, changed(everything, inputs={"env:DATA": InputStatus.UNSURE})).inputs == (body,)
    assert what_is_missing(wanted, changed(everything, code=False)).is_code_alone
    impossible = changed(everything, environment=EnvironmentImpossible(digest="d" * 64, why="no wheel of torch"))
    assert what_is_missing(wanted, impossible).impossible == "no wheel of torch"


def test_data_of_this_very_machine_is_read_once_and_then_known_in_place(tmp_path: Path, desk: MachineAlone):
    lab = lab_in(tmp_path)
    body = input_at(corpus_in(tmp_path), desk.store, host="lab")
    wanted = wanting(inputs=(body,))
    assert lab.here.look(wanted).inputs == {"env:DATA": InputStatus.UNSURE}
    ended = lab.bring(wanted)
    assert (ended.end, ended.verified) == ("ready", ("env:DATA",))
    held = lab.here.look(wanted, ended.verified)
    assert held.inputs == {"env:DATA": InputStatus.IN_PLACE}
    assert lab.here.put_in_place(wanted, "run", held).paths == {"env:DATA": str(tmp_path / "corpus")}
    assert any("reads DATA" in told.says for told in lab.told)
    assert ended.count > 3 << 20


def test_data_that_is_no_longer_that_and_nobody_has_is_refused_with_the_reason(tmp_path: Path, desk: MachineAlone):
    body = input_at(corpus_in(tmp_path), desk.store)
    (tmp_path / "corpus" / "a.txt").write_text("another")
    nobody = MachineAlone(tmp_path / "nobody")
    with giving(nobody.store) as url:
        ended = MachineAlone(tmp_path / "third", url=url).bring(wanting(inputs=(body,)))
    assert (ended.end, ended.reason, ended.lasts) == ("refused", "data", True)
    assert "is no longer what was submitted, and DATA not found in the fleet" in ended.message


def test_code_and_data_come_from_another_machine_and_are_laid_out(tmp_path: Path, desk: MachineAlone):
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "train.py").write_text("print(1)")
    corpus = corpus_in(tmp_path)
    tree, body = kept_tree(project, desk.store), input_at(corpus, desk.store)
    kept_tree(corpus, desk.store)
    wanted = wanting(code_tree=tree, code_folder="sub", inputs=(body,))
    with giving(desk.store) as url:
        lab = lab_in(tmp_path, url)
        assert lab.bring(wanted).end == "ready"
    held = lab.here.look(wanted)
    assert (held.code, held.inputs) == (True, {"env:DATA": InputStatus.HELD})
    prepared = lab.here.put_in_place(wanted, "run-1", held)
    assert prepared.folder(wanted) == f"{prepared.workspace}/sub"
    assert files_in(prepared.workspace) == {"train.py": b"print(1)"}
    assert stat.S_IMODE(os.stat(prepared.workspace).st_mode) == 0o700
    place = prepared.paths["env:DATA"]
    assert files_in(place) == files_in(str(corpus))
    assert not os.stat(f"{place}/a.txt").st_mode & 0o222
    assert prepared.facts(wanted)["data"] == {"DATA": f"tree:{body.tree}"}
    lab.here.leave(wanted, "run-1", prepared)
    assert not os.path.exists(prepared.workspace)
    lab.data.prune()
    assert os.path.isdir(place)
    assert [told.line for told in lab.told if "copies DATA" in told.line] == ["copies DATA: 2 files, 3.0 MiB"]


def test_what_came_verified_is_known_without_being_read_again(
    tmp_path: Path, desk: MachineAlone, monkeypatch: pytest.MonkeyPatch
):
    corpus = corpus_in(tmp_path)
    tree = kept_tree(corpus, desk.store)
    body = input_at(corpus, desk.store, host="elsewhere")
    wanted = wanting(inputs=(body,))
    place = desk.here.put_in_place(wanted, "run", desk.here.look(wanted)).paths["env:DATA"]
    monkeypatch.setattr("stoker.store.memo.hash_file", lambda _: pytest.fail("it is read again"))
    assert digest_path(place, memo=desk.store.memo, clock=CLOCK) == f"tree:{tree}"


def test_one_file_is_found_under_its_own_name(tmp_path: Path, desk: MachineAlone):
    file = tmp_path / "train.csv"
    file.write_text("a,b\n1,2\n")
    body = input_at(file, desk.store, where="arg:data", host="elsewhere")
    assert body.kind is InputKind.FILE
    kept_tree(file, desk.store)
    wanted = wanting(inputs=(body,))
    path = desk.here.put_in_place(wanted, "run", desk.here.look(wanted)).paths["arg:data"]
    assert os.path.basename(path) == "train.csv"
    assert Path(path).read_text() == "a,b\n1,2\n"


def test_a_program_of_another_user_gets_a_copy_of_what_lies_on_the_same_machine(tmp_path: Path, desk: MachineAlone):
    body = input_at(corpus_in(tmp_path), desk.store, host="lab")
    lab = lab_in(tmp_path, may_read_in_place=False)
    wanted = wanting(inputs=(body,))
    assert lab.here.look(wanted).inputs == {"env:DATA": InputStatus.ABSENT}
    assert lab.bring(wanted).end == "ready"
    assert lab.here.look(wanted).inputs == {"env:DATA": InputStatus.HELD}


def test_data_stays_while_the_store_has_it_or_somebody_reads_it(
    tmp_path: Path, desk: MachineAlone, monkeypatch: pytest.MonkeyPatch
):
    corpus = corpus_in(tmp_path)
    kept_tree(corpus, desk.store)
    body = input_at(corpus, desk.store, host="elsewhere")
    wanted = wanting(inputs=(body,))
    prepared = desk.here.put_in_place(wanted, "run", desk.here.look(wanted))
    place = prepared.paths["env:DATA"]
    desk.here.mark(wanted, "run", mine(), prepared)
    desk.data.prune()
    assert os.path.isdir(place)
    monkeypatch.setattr(workspaces, "named_tree", lambda *_: None)
    desk.data.prune()
    assert os.path.isdir(place), "its reader lives"
    gone = of_pid(os.getpid())
    assert gone is not None
    desk.here.mark(wanted, "run", changed(gone, start_ticks=gone.start_ticks + 1), prepared)
    desk.data.prune()
    assert not os.path.exists(place)


def test_a_stop_ends_it_and_the_next_try_goes_on(tmp_path: Path, desk: MachineAlone):
    corpus = corpus_in(tmp_path)
    kept_tree(corpus, desk.store)
    body = input_at(corpus, desk.store)
    with giving(desk.store) as url:
        lab = lab_in(tmp_path, url)
        lab.stop.ask(Terminated("stopped by its worker"))
        assert lab.bring(wanting(inputs=(body,))).end == "refused"
        assert lab_in(tmp_path, url).bring(wanting(inputs=(body,))).end == "ready"


def test_two_jobs_that_want_the_same_environment_at_once_make_it_once(tmp_path: Path, desk: MachineAlone):
    project = tmp_path / "project"
    locked_project(str(project), [wheel(str(project / "wheels"), "alpha")])
    sources = gather(str(project), "uv.lock")
    choice = EnvironmentChoice(kind="uv.lock", path="uv.lock", digest=sources.digest, python=sources.python)
    wanted = wanting(code_tree=kept_tree(project, desk.store), environment=(choice,))
    ends: list[PrepareLine] = []
    threads = [threading.Thread(target=lambda: ends.append(desk.bring(wanted))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.end for one in ends] == ["ready", "ready"]
    assert len([told for told in desk.told if told.line.startswith("builds uv.lock for")]) == 1
    held = desk.here.look(wanted)
    assert isinstance(held.environment, EnvironmentReady)
    prepared = desk.here.put_in_place(wanted, "run", held)
    assert prepared.variables(wanted) == {"PYTHONPATH": prepared.workspace}


def test_little_code_comes_at_once_and_much_is_left_to_a_process(tmp_path: Path, desk: MachineAlone):
    little, much = tmp_path / "little", tmp_path / "much"
    for folder, size in ((little, 10), (much, MOST_BYTES + 1)):
        folder.mkdir()
        (folder / "a").write_bytes(os.urandom(size))
    trees = [kept_tree(one, desk.store) for one in (little, much)]
    with giving(desk.store) as url:
        lab = lab_in(tmp_path, url)
        origins = CoordinatorSource(lab.client)
        small = SmallTrees(store=lambda: lab.store, open_origins=lambda: _Open(origins), clock=CLOCK)
        never = threading.Event()
        assert [small.bring(tree, never) for tree in trees] == [True, False]
        assert not small.bring("0" * 64, never)


def test_what_is_brought_is_heeded_and_what_was_here_already_is_not(tmp_path: Path, desk: MachineAlone):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    wanted = wanting(code_tree=kept_tree(tmp_path / "code", desk.store))
    heard: list[PrepareLine] = []
    with giving(desk.store) as url:
        lab = lab_in(tmp_path, url)
        origins = CoordinatorSource(lab.client)
        small = SmallTrees(store=lambda: lab.store, open_origins=lambda: _Open(origins), clock=CLOCK)
        program = PreparingProgram(argv=("false",), folder=str(tmp_path), environment=dict, clock=CLOCK)
        preparing = InputPreparer(here=lab.here, program=program, ticket=lambda _, user: b"", clock=CLOCK, small=small)
        for _ in range(2):
            assert isinstance(preparing.prepare(wanted, threading.Event(), heard.append), PresentInputs)
            assert len(heard) == 1


class _Open:
    def __init__(self, origins: CoordinatorSource) -> None:
        self._origins = origins

    def __enter__(self) -> CoordinatorSource:
        return self._origins

    def __exit__(self, *_: object) -> None:
        """Leave it open."""


def test_who_waits_for_another_feels_that_bytes_still_arrive(tmp_path: Path, desk: MachineAlone):
    pulse = TreeActivity(desk.store, "a" * 64)
    incoming = Path(desk.store.places.incoming)
    assert not pulse.beats()
    incoming.mkdir()
    part = incoming / "part"
    part.write_bytes(b"1")
    assert pulse.beats()
    assert not pulse.beats(), "one that stands still counts nothing"
    with part.open("ab") as file:
        file.write(b"2")
    assert pulse.beats()
    staging = Path(desk.store.new_staging(f"tree.{'a' * 12}"))
    assert pulse.beats()
    (staging / "f").write_bytes(b"")
    assert pulse.beats()


def test_a_pinned_machine_uses_no_environment_that_was_built_for_other_code(tmp_path: Path, desk: MachineAlone):
    good, evil = tmp_path / "good", tmp_path / "evil"
    choices = []
    for project in (good, evil):
        (project / "sub").mkdir(parents=True)
        (project / "sub" / "train.py").write_text("import this\n")
        (project / "sub" / "requirements.txt").write_text(f"{project.name}\n")
        digest = gather(str(project / "sub"), "requirements.txt").digest
        key = key_of(digest, desk.maker.platform)
        desk.maker.shelf.make(key)
        venv_bin = Path(desk.maker.shelf.venv(key)) / "bin"
        venv_bin.mkdir(parents=True)
        (venv_bin / "python").symlink_to(sys.executable)
        desk.maker.shelf.keep(changed(READY, digest=digest, key=key, interpreter=str(venv_bin / "python")))
        choices.append(EnvironmentChoice(kind="requirements", path="requirements.txt", digest=digest))
    tree = kept_tree(good, desk.store)

    def refusal(choice: EnvironmentChoice) -> str:
        args = {"argv": ["python", "train.py"]}
        wanted = wanting(recipe="command", code_tree=tree, code_folder="sub", environment=(choice,), args=args)
        held = desk.here.look(wanted)
        assert held.code
        assert isinstance(held.environment, EnvironmentReady)
        return refusal_by_tree(wanted, (tree,), desk.here.code_tree(wanted), lambda: desk.here.code_view(wanted))

    assert refusal(choices[0]) == ""
    assert "requirements.txt is not the one" in refusal(choices[1])
    assert "file not found: other.txt" in refusal(changed(choices[1], path="other.txt"))
    for outside in ("../../evil/sub/requirements.txt", "/requirements.txt", "\0.txt"):
        assert "outside of the project" in refusal(changed(choices[1], path=outside))
    assert "(no name) is not an environment file" in refusal(changed(choices[1], path=""))


def test_who_waits_for_an_environment_feels_that_it_is_still_made(tmp_path: Path, desk: MachineAlone):
    choice = EnvironmentChoice(kind="uv.lock", path="uv.lock", digest="d" * 64)
    pulse = EnvironmentActivity(desk.maker, (choice,))
    assert not pulse.beats()
    place = Path(desk.maker.shelf.place(key_of("d" * 64, desk.maker.platform)))
    place.mkdir(parents=True)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        maker = of_pid(busy.pid)
        assert maker is not None
        (place / "building.json").write_text(json.dumps({"group": maker.to_dict(), "line": ""}))
        until_s = time.monotonic() + 20
        for _ in range(3):
            while not pulse.beats():
                assert time.monotonic() < until_s
                time.sleep(0.01)
        busy.send_signal(signal.SIGSTOP)
        while pulse.beats():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert not pulse.beats(), "one that hangs counts nothing"
    finally:
        busy.kill()
        busy.wait()
    assert not pulse.beats()


def test_no_room_on_the_disk_is_a_passing_reason_of_its_own(
    tmp_path: Path, desk: MachineAlone, monkeypatch: pytest.MonkeyPatch
):
    corpus = corpus_in(tmp_path)
    kept_tree(corpus, desk.store)
    monkeypatch.setattr("stoker.transfer.trees.tree_download.free_bytes", lambda _: 1000)
    with giving(desk.store) as url:
        ended = lab_in(tmp_path, url).bring(wanting(inputs=(input_at(corpus, desk.store),)))
    assert (ended.end, ended.reason, ended.lasts) == ("refused", "disk", False)


def test_whoever_waits_for_a_link_looks_again_within_a_second_and_never_all_at_once():
    for longest_s in (input_fetch._PAUSE_S, tree_sources._LONGEST_PAUSE_S):
        pauses = TransferBackoff(first_s=longest_s, longest_s=longest_s)
        found = [pauses.failed() for _ in range(20)]
        assert max(found) <= 1.0
        assert len(set(found)) > 1


@pytest.mark.slow
def test_a_link_that_is_cut_is_waited_for_and_gone_on_with(
    tmp_path: Path, desk: MachineAlone, monkeypatch: pytest.MonkeyPatch
):
    corpus = corpus_in(tmp_path)
    kept_tree(corpus, desk.store)
    monkeypatch.setattr("stoker.worker.preparation.input_fetch._PAUSE_S", 0.05)
    body = input_at(corpus, desk.store)
    with giving(desk.store) as url, Relay(int(url.rpartition(":")[2])) as relay:
        relay.cuts = [50, 300, 1 << 20]
        assert lab_in(tmp_path, relay.url).bring(wanting(inputs=(body,))).end == "ready"
        assert relay.cut_count >= 2


class HubAway:
    """A hub that is away for a number of questions, and then has no such thing."""

    def __init__(self, times: int) -> None:
        self.times = times

    def files(self, *_: object) -> object:
        self.times -= 1
        if self.times < 0:
            raise NotOnServer("no such repository")
        raise NetworkFailed("the hub refused the connection")


def repository_input() -> JobInput:
    return JobInput(where="env:DATA", kind=InputKind.REPO, name="data", repo=f"org/data@{'c' * 40}")


def test_a_hub_that_is_away_for_a_while_is_waited_for_and_each_time_it_is_told(desk):
    desk.clock, desk.open_hub = FakeClock(), lambda *_: HubAway(60)
    told = desk.bring(wanting(inputs=(repository_input(),)))
    assert (told.reason, told.lasts) == ("data", True)
    waits = [one.line for one in desk.told if one.line.startswith("waits:")]
    assert waits == ["waits: the hub refused the connection"] * 60


def test_a_hub_that_stays_away_gives_the_job_back_in_the_end(desk):
    desk.clock, desk.open_hub = FakeClock(), lambda *_: HubAway(10_000)
    told = desk.bring(wanting(inputs=(repository_input(),)))
    assert (told.reason, told.lasts, told.message) == ("preparing", False, "the hub refused the connection")
    assert 120 < desk.clock.monotonic_s() < 130
