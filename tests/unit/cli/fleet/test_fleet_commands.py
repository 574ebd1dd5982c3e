"""Commands about jobs of the fleet, against a real coordinator whose worker is the test."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stoker.api import fleet_job
from stoker.core.digests import Tree
from stoker.core.errors import NotFound
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import CancelConfirmed, Fail, Release
from stoker.protocol.view_messages import JobDetails
from stoker.store.results import MaterialisedResult, lay_out
from tests.contract.queue_driving import order
from tests.servers.coordinator import Fleet
from tests.servers.hand import Hand, said
from tests.servers.little import LittleServer, Said
from tests.unit.cli.fleet.conftest import Stoker
from tests.unit.host.real_processes import wait_until


def test_jobs_lists_the_fleets_newest_first_with_where_they_run(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt", "resnet/1", "resnet/2")
    Hand(fleet.client()).start()
    done = stoker("jobs", at=fleet)
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["job", "resnet/2", "resnet/1", "gbt"]
    assert "desk" in next(line for line in done.out.splitlines() if "running" in line)
    told = stoker("jobs", "--status", "pending", "--json", at=fleet).objects()
    assert {(one["name"], one["where"]) for one in told} == {("resnet/2", "fleet"), ("resnet/1", "fleet")}


def test_jobs_stops_at_its_limit_and_says_so(fleet: Fleet, stoker: Stoker, submit):
    submit(*(f"sweep/{number}" for number in range(1, 31)))
    done = stoker("jobs", "--limit", 3, at=fleet)
    assert len(done.out.splitlines()) == 4
    assert "older jobs are not shown" in done.err
    assert len(stoker("jobs", "--all", "--json", at=fleet).objects()) == 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("jobs", "--status", "runing"), "did you mean 'running'"),
        (("jobs", "--all", "--limit", "3"), "exclude each other"),
        (("jobs", "priority", "gbt", "high"), "not a whole number"),
        (("machines", "drain", "desk", "--for", "soon"), "--for"),
    ],
    ids=["state", "all", "priority", "for"],
)
def test_words_that_can_not_be_are_refused(stoker: Stoker, words, said):
    done = stoker(*words)
    assert done.code == 2
    assert said in done.err


def test_a_coordinator_that_does_not_answer_hides_nothing_of_this_machine(stoker: Stoker):
    with LittleServer(lambda _asked: Said()) as server:
        away = server.url
    done = stoker("jobs", at=away)
    assert (done.code, "no jobs on this machine" in done.out) == (0, True)
    assert "can't be reached" in done.err
    named = stoker("jobs", "--at", away)
    assert named.code == 34
    assert away in named.err


@pytest.mark.parametrize("words", ["jobs", "jobs --all", "status", "machines"])
def test_a_token_that_is_refused_hides_nothing_of_this_machine_and_is_reported(
    words: str, fleet: Fleet, stoker: Stoker
):
    here = stoker(*words.split())
    done = stoker(*words.split(), at=fleet, token="wrong")
    assert (done.code, done.out.splitlines()[0]) == (33, here.out.splitlines()[0])
    assert "stoker: the token is not valid at this coordinator; showing this machine only" in done.err
    assert stoker(*words.split(), "--json", at=fleet, token="wrong").objects()[-1]["error"] == "not_allowed"
    assert stoker(*words.split(), "--at", fleet.url, at=fleet, token="wrong").code == 33


def test_a_machine_of_the_fleet_is_not_called_unknown_where_the_token_is_refused(fleet: Fleet, stoker: Stoker):
    Hand(fleet.client())
    assert stoker("machines", "show", "desk", at=fleet).code == 0
    done = stoker("machines", "show", "desk", at=fleet, token="wrong")
    assert (done.code, "the token is not valid at this coordinator" in done.err) == (33, True)


def test_no_command_speaks_to_a_tcp_port_of_this_machine(stoker: Stoker):
    with LittleServer(lambda _asked: Said(body=b"{}")) as impostor:
        done = stoker("jobs", "--at", impostor.url)
        assert done.code == 34
        assert "a coordinator of another user is reached over TLS" in done.err
        assert "no process of this user listens at the socket of" in done.err
        assert impostor.asked == []
        assert not impostor.links


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "requeue", "gbt"),
        ("jobs", "priority", "gbt", "3"),
        ("machines", "drain", "desk"),
        ("admin", "reload"),
    ],
    ids=" ".join,
)
def test_what_needs_a_coordinator_says_how_to_get_one(stoker: Stoker, words):
    done = stoker(*words)
    assert done.code in (1, 34)
    if words[0] != "jobs":
        assert "stoker serve" in done.err


def test_a_job_is_shown_with_its_attempts_and_the_stages_of_the_last(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    hand = Hand(fleet.client())
    first = hand.start()
    hand.client.write(first.job, Release(**said(first), why="the machine is wanted"))
    second = hand.start()
    hand.put_story(second, "epoch 1")
    done = stoker("jobs", "show", "gbt", at=fleet)
    assert done.code == 0
    assert "gbt: running on desk" in done.out
    assert "by ann@laptop" in done.out
    assert "released" in done.out
    assert "run " in done.out.partition("stage")[2]
    (told,) = stoker("jobs", "show", "gbt", "--json", at=fleet).objects()
    assert [one["ending"] for one in told["attempts"]] == ["released", ""]
    assert [stage["node"] for stage in told["stages"]] == ["run"]


def test_a_sweeps_bare_name_stands_for_its_points(fleet: Fleet, stoker: Stoker, submit):
    submit("resnet/1", "resnet/2", "resnet/10")
    done = stoker("jobs", "show", "resnet", at=fleet)
    assert "resnet: 3 points, 3 pending" in done.out
    points = [line.split()[0] for line in done.out.splitlines() if line.startswith("resnet/")]
    assert points == ["resnet/1", "resnet/2", "resnet/10"]
    assert "nothing has run of resnet yet" in stoker("logs", "resnet", at=fleet).err
    assert stoker("logs", "resnet", "--attempt", 1, at=fleet).code == 2
    changed = stoker("jobs", "priority", "resnet", 7, "--json", at=fleet).objects()
    assert [(one["name"], one["priority"], one["was"]) for one in changed] == [
        ("resnet/1", 7, 0),
        ("resnet/2", 7, 0),
        ("resnet/10", 7, 0),
    ]
    assert len(stoker("cancel", "resnet", "--json", at=fleet).objects()) == 3
    assert "all 3 points of resnet have ended" in stoker("explain", "resnet", at=fleet).out


def test_of_a_large_sweep_the_first_points_are_listed_and_the_rest_counted(fleet: Fleet, stoker: Stoker, submit):
    submit(*(f"sweep/{number}" for number in range(1, 31)))
    for words in (("jobs", "priority", "sweep", 3), ("cancel", "sweep"), ("jobs", "requeue", "sweep")):
        lines = stoker(*words, at=fleet).out.splitlines()
        assert len(lines) == 21
        assert lines[-1] == "… and 10 more"
    assert len(stoker("cancel", "sweep", "--json", at=fleet).objects()) == 30


def test_points_that_have_not_run_are_compared_by_their_state(fleet: Fleet, stoker: Stoker, submit):
    submit("zap/1", "zap/2", "zap/3")
    none = stoker("compare", "zap", "--no-plots", at=fleet)
    assert (none.code, "no point of zap has run yet" in none.err) == (1, True)
    hand = Hand(fleet.client())
    first, second = hand.start(), hand.start()
    hand.put_story(first)
    hand.finish(first)
    # Of the second nothing has arrived, and the third waits.
    assert second.spec.label == "lr=2"
    done = stoker("compare", "zap", "--no-plots", at=fleet)
    assert done.out.splitlines()[0] == "zap: 3 trials (1 completed, 1 running, 1 pending)"
    rows = stoker("compare", "zap", "--no-plots", "--json", at=fleet).objects()
    assert [(row["label"], row["state"]) for row in rows] == [
        ("lr=1", "completed"),
        ("lr=2", "running"),
        ("lr=3", "pending"),
    ]


def test_points_that_have_not_run_are_compared_without_a_request_for_each(
    fleet: Fleet, stoker: Stoker, submit, monkeypatch: pytest.MonkeyPatch
):
    submit(*(f"zap/{number}" for number in range(1, 31)))
    hand = Hand(fleet.client())
    hand.put_story(hand.start())
    asked: list[str] = []
    job = FleetClient.job

    def counted(client: FleetClient, ref: str) -> JobDetails:
        asked.append(ref)
        return job(client, ref)

    monkeypatch.setattr(FleetClient, "job", counted)
    rows = stoker("compare", "zap", "--no-plots", "--json", at=fleet).objects()
    assert (len(rows), len(asked)) == (30, 1)


def test_a_trial_that_completes_while_the_others_are_copied_is_listed(
    stoker: Stoker, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = ("--", "sh", "-c", 'echo {n} > "$STOKER_OUT/made"')
    assert stoker("run", "n=1,2,3", "--name", "zap", *program).code == 0
    (folder,) = (home / "runs").iterdir()
    journal, end = folder / "status.jsonl", folder / "end.json"
    whole, ended = journal.read_bytes(), end.read_bytes()
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"3.run"' not in line and b'"run_end"' not in line))
    end.unlink()

    def laid_out(*given: Any, **more: Any) -> MaterialisedResult:
        journal.write_bytes(whole)
        end.write_bytes(ended)
        return lay_out(*given, **more)

    monkeypatch.setattr("stoker.store.results.lay_out", laid_out)
    done = stoker("get", "zap", tmp_path / "got")
    assert not (tmp_path / "got" / "n=3").exists()
    assert done.code == 1
    assert "1 of 3 trials of zap has no result and was not copied: zap/3 (n=3)" in done.err
    assert stoker("get", "zap", tmp_path / "all").code == 0


def test_a_metric_that_no_job_has_is_refused_with_those_of_the_fleet(
    fleet: Fleet, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
):
    def missing(*_given: Any, **_more: Any) -> NoReturn:
        raise NotFound("no job has a metric 'nothing'", hint="there are: val_loss")

    monkeypatch.setattr(FleetClient, "leaderboard", missing)
    done = stoker("jobs", "--rank", "nothing", at=fleet)
    assert (done.code, "hint: there are: val_loss" in done.err) == (1, True)


def test_points_without_a_result_are_listed_when_those_that_have_one_are_fetched(
    fleet: Fleet, stoker: Stoker, submit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    # What the hand finished has no archive that could be laid out.
    monkeypatch.setattr(fleet_job, "fetch_result", lambda *_args, **_more: None)
    monkeypatch.setattr("stoker.store.results.tree_of", lambda _parts: Tree(()))
    shown = MaterialisedResult(folder="x", files=("a",), kept_edits=())
    monkeypatch.setattr("stoker.store.results.lay_out", lambda *_args, **_more: shown)
    submit("zap/1", "zap/2", "zap/3")
    hand = Hand(fleet.client())
    first, second = hand.start(), hand.start()
    hand.finish(first)
    hand.client.write(second.job, Fail(**said(second), cause="user", message="no"))
    done = stoker("get", "zap", tmp_path / "got", at=fleet)
    assert (done.code, done.out) == (1, "zap/1: 1 file in x\n")
    assert "2 of 3 trials of zap have no result and were not copied: zap/2 (lr=2) is failed, zap/3" in done.err
    assert "hint: stoker logs zap/2; stoker jobs wait zap, then `stoker get` again with --force" in done.err
    told = stoker("get", "zap", tmp_path / "again", "--json", at=fleet).objects()
    assert [one.get("state") for one in told] == ["completed", "failed", "pending", None]
    assert told[-1]["error"] == "not_found"
    archive = stoker("get", "zap", "--bundle", tmp_path / "one.tar.zst", at=fleet)
    assert (archive.code, "zap is a sweep of 3 points" in archive.err) == (2, True)
    third = hand.start()
    hand.finish(third)
    hand.client.requeue_jobs([second.job])
    hand.finish(hand.start())
    whole = stoker("get", "zap", tmp_path / "whole", at=fleet)
    assert (whole.code, whole.err) == (0, "")


def test_a_label_names_one_point_of_a_sweep_in_every_command(fleet: Fleet, stoker: Stoker, submit):
    submit("zap/1", "zap/2", "zap/3")
    moved = stoker("jobs", "priority", "zap/lr=2", "5", at=fleet)
    assert (moved.code, moved.out) == (0, "zap/2: priority 5, was 0\n"), moved.err
    (shown,) = stoker("jobs", "show", "zap/lr=3", "--json", at=fleet).objects()
    assert shown["job"]["name"] == "zap/3"
    unknown = stoker("jobs", "requeue", "zap/lr=9", at=fleet)
    assert (unknown.code, "job zap has no trial 'lr=9'" in unknown.err) == (1, True)


@pytest.mark.slow
def test_all_points_of_a_large_sweep_are_compared(fleet: Fleet, stoker: Stoker, submit):
    count = 501
    submit(*(f"sweep/{number}" for number in range(1, count + 1)))
    hand = Hand(fleet.client())
    for _ in range(count):
        grant = hand.start()
        hand.put_story(grant)
        hand.client.write(grant.job, Fail(**said(grant), cause="user", message="no"))
    done = stoker("compare", "sweep", "--no-plots", "--json", at=fleet)
    assert done.code == 0
    assert len(done.objects()) == count


def test_a_report_of_a_fleets_sweep_names_its_points_and_how_to_repeat_it(
    fleet: Fleet, stoker: Stoker, submit, tmp_path
):
    submit("sweep/1", "sweep/2")
    hand = Hand(fleet.client())
    for _ in range(2):
        grant = hand.start()
        hand.put_story(grant)
        hand.client.write(grant.job, Fail(**said(grant), cause="user", message="<b>no</b>"))
    for name, file in (("sweep", "sweep.html"), ("sweep/2", "point.md")):
        done = stoker("report", name, "-o", str(tmp_path / file), at=fleet)
        assert done.code == 0, done.err
    page, text = (tmp_path / "sweep.html").read_text(), (tmp_path / "point.md").read_text()
    assert "stoker jobs requeue sweep\n" in page
    assert "<b>no" not in page + text
    assert "stoker jobs requeue sweep/2" in text


def test_an_unknown_name_gets_the_nearest_one(fleet: Fleet, stoker: Stoker, submit):
    submit("resnet")
    done = stoker("jobs", "show", "restnet", at=fleet)
    assert done.code == 1
    assert "did you mean 'resnet'" in done.err


def test_logs_show_what_an_attempt_printed(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    hand = Hand(fleet.client())
    assert "stoker explain gbt" in stoker("logs", "gbt", at=fleet).err
    grant = hand.start()
    assert "nothing of attempt 1 has arrived yet" in stoker("logs", "gbt", at=fleet).err
    hand.put_story(grant, "epoch 1", "epoch 2")
    assert stoker("logs", "gbt", at=fleet).out.splitlines() == ["==> run <==", "epoch 1", "epoch 2"]
    assert stoker("logs", "gbt/run", at=fleet).out.splitlines() == ["epoch 1", "epoch 2"]
    assert stoker("logs", "gbt", "--json", at=fleet).objects()[1] == {"node": "run", "line": "epoch 2"}
    assert "had no attempt 4" in stoker("logs", "gbt", "--attempt", 4, at=fleet).err


def test_logs_of_a_sweep_are_those_of_all_its_points_as_on_this_machine(fleet: Fleet, stoker: Stoker, submit):
    submit("zap/1", "zap/2", "zap/3")
    hand = Hand(fleet.client())
    for line in ("one", "two"):
        grant = hand.start()
        hand.put_story(grant, line)
        hand.finish(grant)
    both = ["==> 1.run (lr=1) <==", "one", "", "==> 2.run (lr=2) <==", "two"]
    for name in ("zap", "last"):
        done = stoker("logs", name, at=fleet)
        assert (done.out.splitlines(), done.err) == (both, "note: nothing has run of zap/3 yet\n")
    assert stoker("logs", "zap", "--json", at=fleet).objects()[1] == {"node": "2.run", "line": "two"}
    assert stoker("logs", "zap/2.run", at=fleet).out == "two\n"
    assert stoker("compare", "last", "--no-plots", at=fleet).out.startswith("zap: 3 trials (2 completed, 1 pending)")


def test_following_a_sweep_shows_every_point_until_the_last_has_ended(fleet: Fleet, stoker: Stoker, submit):
    submit("zap/1", "zap/2")
    hand = Hand(fleet.client())
    first = hand.start()
    hand.put_story(first, "one")

    def live() -> None:
        hand.finish(first)
        second = hand.start()
        hand.put_story(second, "two")
        hand.client.write(second.job, Fail(**said(second), cause="user", message="no"))

    thread = threading.Thread(target=live)
    thread.start()
    done = stoker("logs", "zap", "-f", at=fleet)
    thread.join()
    assert done.out.splitlines() == ["==> 1.run (lr=1) <==", "one", "", "==> 2.run (lr=2) <==", "two"]
    assert done.err.splitlines() == ["zap/1 completed", "zap/2 failed: no"]


def test_explain_shows_a_setting_and_a_stage_of_a_job_of_the_fleet(fleet: Fleet, stoker: Stoker):
    orders = []
    for number in (1, 2):
        args = {"name": "zap", "number": number, "lr": number, "k": 7}
        orders.append(order("zap", number, label=f"lr={number}", point={"lr": number}, args=args))
    fleet.client().submit(Submission(jobs=tuple(orders)))
    (lr,) = stoker("explain", "zap", "lr", "--json", at=fleet).objects()
    assert lr == {
        "key": "lr",
        "layers": [{"from": "trial 1 (lr=1)", "value": 1}, {"from": "trial 2 (lr=2)", "value": 2}],
    }
    (one,) = stoker("explain", "zap/2", "lr", "--json", at=fleet).objects()
    assert [layer["value"] for layer in one["layers"]] == [2]
    (same,) = stoker("explain", "last", "k", "--json", at=fleet).objects()
    assert same["layers"] == [{"from": "as submitted", "value": 7}]
    assert "no setting 'm'" in stoker("explain", "zap", "m", at=fleet).err
    hand = Hand(fleet.client())
    grant = hand.start()
    hand.put_story(grant, "x")
    hand.finish(grant)
    assert stoker("explain", "zap/1/run", at=fleet).out.startswith("zap/1/run")
    assert "job zap/1 has no stage 'none'" in stoker("explain", "zap/1/none", at=fleet).err


@pytest.mark.parametrize(
    "words", ["jobs requeue gbt/run", "jobs priority gbt/run 3", "store pin gbt/run", "get gbt/run"]
)
def test_what_acts_on_whole_jobs_refuses_a_stage(words: str, fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    done = stoker(*words.split(), at=fleet)
    assert (done.code, "hint: " in done.err) == (2, True)
    assert fleet.client().job("gbt").job.priority == 0


@pytest.mark.parametrize("words", ["jobs", "status", "machines"])
def test_without_the_libraries_of_the_fleet_this_machine_is_shown_and_a_note_names_the_extra(
    words: str, fleet: Fleet, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
):
    def open_client(*_args: object, **_more: object) -> None:
        raise ModuleNotFoundError("No module named 'pydantic'", name="pydantic")

    monkeypatch.setattr("stoker.api.job_lookup.open_client", open_client)
    here = stoker(words)
    done = stoker(words, at=fleet)
    assert (done.code, done.out.splitlines()[0]) == (0, here.out.splitlines()[0])
    assert "pydantic is not installed; showing this machine only; to see the fleet: " in done.err
    assert "pip install 'stoker[fleet]'" in done.err
    named = stoker("logs", "gbt", at=fleet)
    assert (named.code, "pip install 'stoker[fleet]'" in named.err) == (29, True)


def test_logs_of_an_attempt_that_only_prepares_do_not_say_that_there_is_nothing(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    hand = Hand(fleet.client())
    hand.put(hand.start(), "logs/preparing.log", "builds uv.lock\n")
    done = stoker("logs", "gbt", at=fleet)
    assert (done.out, done.err) == ("==> preparing <==\nbuilds uv.lock\n", "")


def test_following_goes_on_with_the_next_attempt_until_the_job_ends(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    hand = Hand(fleet.client())
    first = hand.start()
    hand.put_story(first, "one")

    def live() -> None:
        hand.put(first, "logs/run.log", "two\n", offset=4)
        hand.client.write(first.job, Release(**said(first), why="wanted"))
        second = hand.start()
        hand.put_story(second, "three")
        hand.put(second, "logs/run.log", "four\n", offset=6)
        hand.finish(second, loss=0.5)

    thread = threading.Thread(target=live)
    thread.start()
    done = stoker("logs", "gbt", "-f", at=fleet)
    thread.join()
    assert done.code == 0, done.err
    printed = [line for line in done.out.splitlines() if line and not line.startswith("==>")]
    assert printed in (["one", "two", "three", "four"], ["three", "four"])
    assert done.err.splitlines()[-1] == "gbt completed"


def test_explain_tells_where_it_stands_and_what_happened(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    hand = Hand(fleet.client())
    grant = hand.start()
    hand.put_story(grant, "x")
    hand.client.write(grant.job, Fail(**said(grant), cause="user", message="loss is nan", hint="smaller lr"))
    done = stoker("explain", "gbt", at=fleet)
    assert done.code == 0
    assert done.out.startswith("gbt: ")
    assert "loss is nan" in done.out
    assert "gbt started on desk" in done.out
    (told,) = stoker("explain", "gbt", "--json", at=fleet).objects()
    assert told["job"]["state"] == "failed"
    assert [stage["node"] for stage in told["stages"]] == ["run"]


def test_waiting_ends_with_the_job_and_its_end_is_the_answer(fleet: Fleet, stoker: Stoker, submit):
    submit("good", "bad")
    hand = Hand(fleet.client())
    good, bad = sorted((hand.start(), hand.start()), key=lambda grant: grant.spec.name, reverse=True)
    assert stoker("jobs", "wait", "good", "--timeout", "0.05s", at=fleet).code == 1
    thread = threading.Thread(target=lambda: hand.finish(good, loss=0.25))
    thread.start()
    done = stoker("jobs", "wait", "good", "--timeout", "30s", at=fleet)
    thread.join()
    assert (done.code, "loss 0.25" in done.out) == (0, True)
    hand.client.write(bad.job, Fail(**said(bad), cause="user", message="exit 1"))
    assert stoker("jobs", "wait", "bad", at=fleet).code == 1


def test_a_job_that_waits_is_cancelled_at_once_and_queued_again(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    done = stoker("cancel", "gbt", at=fleet)
    assert (done.code, done.out.startswith("cancelled gbt")) == (0, True)
    assert stoker("cancel", "gbt", at=fleet).code == 30
    assert stoker("jobs", "priority", "gbt", 1, at=fleet).code == 30
    assert "requeued" in stoker("jobs", "requeue", "gbt", at=fleet).out
    assert stoker("jobs", "requeue", "gbt", at=fleet).code == 30


def test_a_running_job_is_cancelled_when_its_worker_says_so_and_not_before(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    hand = Hand(fleet.client())
    grant = hand.start()
    asked = stoker("cancel", "gbt", "--no-wait", "--json", at=fleet).objects()
    assert asked[0]["is_cancelling"] is True
    assert hand.client.job("gbt").job.is_cancelling
    assert "cancelling" in stoker("jobs", at=fleet).out
    # The command has asked by then; of a job that has ended it would say so.
    confirm = threading.Timer(2.0, lambda: hand.client.write(grant.job, CancelConfirmed(**said(grant))))
    confirm.start()
    done = stoker("cancel", "gbt", at=fleet)
    confirm.join()
    assert done.code == 0
    assert "cancelled gbt on desk" in done.out
    assert hand.client.job("gbt").job.state == "cancelled"


def test_a_job_that_completed_meanwhile_is_not_called_cancelled(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    hand = Hand(fleet.client())
    grant = hand.start()
    finish = threading.Thread(
        target=lambda: (wait_until(lambda: hand.client.job("gbt").job.is_cancelling), hand.finish(grant))
    )
    finish.start()
    done = stoker("cancel", "gbt", at=fleet)
    finish.join()
    assert done.code == 1
    assert "gbt: already completed" in done.out


def test_machines_are_listed_closed_opened_and_forgotten(fleet: Fleet, stoker: Stoker, submit):
    hand = Hand(fleet.client())
    done = stoker("machines", "drain", "desk", "--for", "2h", "--why", "new fan", at=fleet)
    assert (done.code, "desk is drained" in done.out) == (0, True)
    listed = stoker("machines", "--json", at=fleet).objects()
    assert [(one["name"], one["state"], one["why"]) for one in listed if not one["is_here"]] == [
        ("desk", "drained", "new fan")
    ]
    shown = stoker("machines", "show", "desk", at=fleet).out
    assert "drained for" in shown
    assert "new fan" in shown
    assert stoker("machines", "open", "desk", at=fleet).code == 0
    assert hand.client.machine("desk").state == "ready"
    paused = stoker("machines", "pause", "desk", "--for", "1h", at=fleet)
    assert "desk is paused: running jobs return to the queue, no more start for 1h" in paused.out
    assert hand.client.machine("desk").state == "paused"
    assert stoker("machines", "cordon", "desk", at=fleet).code == 0
    refused = stoker("machines", "forget", "desk", at=fleet)
    assert (refused.code, "--force" in refused.err) == (1, True)
    assert stoker("machines", "forget", "--force", "desk", at=fleet).code == 0
    assert hand.client.machines() == ()
    gone = stoker("machines", "show", "desk", at=fleet)
    assert (gone.code, "desk" in gone.err) == (1, True)


def test_opening_says_what_stays_closed_and_nothing_against_it(fleet: Fleet, stoker: Stoker, submit):
    Hand(fleet.client())
    stoker("machines", "cordon", "desk", "--device", "GPU-1", at=fleet)
    done = stoker("machines", "open", "desk", at=fleet)
    assert (done.out, "desk is open already" in done.err, "still closed: GPU-1" in done.err) == ("", True, True)
    stoker("machines", "drain", "desk", at=fleet)
    done = stoker("machines", "open", "desk", at=fleet)
    assert (done.out, "note: still closed: GPU-1" in done.err) == ("desk is open\n", True)
    stoker("machines", "open", "desk", "--device", "GPU-1", at=fleet)
    stoker("machines", "drain", "desk", at=fleet)
    assert stoker("machines", "open", "desk", at=fleet).out == "desk is open: jobs may start\n"


def test_what_can_not_be_of_a_job_names_its_state(fleet: Fleet, stoker: Stoker, submit):
    submit("waits", "ended")
    stoker("cancel", "ended", at=fleet)
    assert "waits is pending: there is no result yet" in stoker("get", "waits", at=fleet).err
    assert "ended is cancelled: there is no result of it" in stoker("get", "ended", at=fleet).err
    done = stoker("jobs", "priority", "ended", "5", at=fleet)
    assert "ended is cancelled: not in the queue" in done.err
    assert "stoker jobs requeue ended" in done.err


def test_reading_again_without_files_says_that_there_are_none(fleet: Fleet, stoker: Stoker):
    assert "nothing to reload" in stoker("admin", "reload", at=fleet).out


def test_a_machine_that_holds_something_is_not_forgotten(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    Hand(fleet.client()).start()
    done = stoker("machines", "forget", "desk", at=fleet)
    assert done.code == 1
    assert "lease" in done.err


def test_status_tells_of_the_fleet(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt", "knn", "mlp")
    hand = Hand(fleet.client())
    hand.finish(hand.start(), loss=0.5)
    hand.start()
    done = stoker("status", at=fleet)
    assert "jobs: 1 pending, 1 running, 1 completed" in done.out
    assert "desk" in done.out
    assert "nothing runs here" not in done.out
    (told,) = stoker("status", "--json", at=fleet).objects()
    assert told["fleet"]["jobs"]["running"] == 1
    assert [row["value"] for row in told["fleet"]["leaderboard"]["rows"]] == [0.5]
    assert stoker("status", "--json").objects()[0]["fleet"] is None


def test_the_coordinators_own_user_needs_no_token_on_its_machine(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    assert stoker("cancel", "gbt", "--at", fleet.url).code == 0
    assert fleet.client().job("gbt").job.state == "cancelled"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("job", "cancel", "--help"), "usage: stoker cancel"),
        (("job", "show", "--help"), "usage: stoker jobs show"),
        (("requeue", "--help"), "usage: stoker jobs requeue"),
        (("reload", "--help"), "usage: stoker admin reload"),
        (("workers", "--help"), "usage: stoker machines"),
        (("worker", "--help"), "usage: stoker machines"),
        (("worker", "start", "--help"), "usage: stoker work"),
    ],
    ids=" ".join,
)
def test_earlier_words_keep_working(stoker: Stoker, old, new):
    assert new in stoker(*old).out


def test_a_job_of_the_fleet_is_never_removed(fleet: Fleet, stoker: Stoker, submit):
    submit("gbt")
    refused = stoker("jobs", "rm", "gbt", at=fleet)
    assert refused.code == 30
    assert "fleet jobs can't be deleted" in refused.err
    assert "stoker cancel gbt" in refused.err
    stoker("cancel", "gbt", at=fleet)
    assert "stoker cancel" not in stoker("jobs", "rm", "gbt", at=fleet).err
