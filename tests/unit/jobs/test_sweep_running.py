from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.core.digests import digest_value
from stoker.core.errors import Cancelled, LocalFile, StageFailed, StokerError, SweepGivenUp
from stoker.core.events import Event, Kinds
from stoker.core.frozen import changed
from stoker.core.job import JobState, TrialNodes
from stoker.core.jsontext import dumps
from stoker.engine.journal import StatusWriter, read_status
from stoker.engine.preview import preview
from stoker.engine.types import RunOptions
from stoker.jobs.comparison import JobFacts
from stoker.jobs.execution import JobResult
from stoker.jobs.job_diff import side_of
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import tell
from stoker.jobs.sweeps import TrialCode
from tests.fakes.jobs import made_trial
from tests.unit.engine.lab import lines_of
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.sweeping import WORK, Sweeps, counts, renamed, states

# At n=2 it waits for a file, at n=6 it fails.
WAIT = "echo > waits; until [ -e gate ]; do sleep 0.01; done"
WAITING = ("sh", "-c", f'case {{n}} in 2) {WAIT};; 6) exit 3;; esac; echo {{n}} > "$STOKER_OUT/made"')


@pytest.fixture
def sweeps(office: Office) -> Sweeps:
    return Sweeps(office)


def told(folder: JobFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_status(folder.status_path) if event["kind"] == kind]


def branches(sweeps: Sweeps, factors: str, **more: Any) -> JobResult:
    order = sweeps.order(f"factor={factors}", f"ledger={sweeps.folder / 'stages'}", target="test/branches")
    return sweeps.run(order, **more)


def test_what_trials_share_runs_once_and_what_is_their_own_once_each(sweeps: Sweeps) -> None:
    job = branches(sweeps, "2,3,4")
    assert job.error is None
    lines = lines_of(sweeps.folder / "stages")
    assert len(lines) == 4
    assert [line for line in lines if line.startswith("scale")] == ["scale 2", "scale 3", "scale 4"]
    end = job.folder.ended()
    assert end is not None
    assert (end.ran, end.hits) == (5, 0)
    values = [json.loads(sweeps.out(job, f"factor={n}/value.json").read_text()) for n in (2, 3, 4)]
    assert values == [12, 18, 24]


def test_what_a_plan_keeps_lies_in_every_trials_folder(sweeps: Sweeps) -> None:
    job = branches(sweeps, "2,3")
    for n in (2, 3):
        assert json.loads(sweeps.out(job, f"factor={n}/double/value.json").read_text()) == 6
    assert os.readlink(sweeps.folder / "stoker-out" / "last") == "branches"


def test_a_widened_recipe_runs_only_the_new_points(sweeps: Sweeps) -> None:
    branches(sweeps, "2,3")
    job = branches(sweeps, "1,2,3,4")
    assert states(job) == {"factor=1": "completed", "factor=2": "kept", "factor=3": "kept", "factor=4": "completed"}
    assert lines_of(sweeps.folder / "stages")[3:] == ["scale 1", "scale 4"]


def test_each_result_lies_there_before_its_end_is_told(sweeps: Sweeps) -> None:
    seen: list[tuple[str, bool]] = []

    def listen(event: Event, _at_s: float, _seq: int) -> None:
        if event.kind == Kinds.TRIAL_END:
            seen.append((str(event.fields["label"]), Path(str(event.fields["out"]), "made").exists()))

    sweeps.run(sweeps.order("n=1,2"), listeners=(listen,))
    assert seen == [("n=1", True), ("n=2", True)]


def test_the_journal_tells_of_every_trial_and_counts_them_at_the_end(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("2\n")
    job = sweeps.run_line("n=1,2,3")
    good, bad, _ = told(job.folder, "trial_end")
    assert (good["trial"], good["label"], good["state"], good["is_kept"]) == (1, "n=1", "completed", False)
    assert good["metrics"] == {"loss": 1.0}
    assert good["out"] == str(sweeps.out(job, "n=1"))
    assert good["seconds"] > 0
    assert (bad["state"], bad["cause"], bad["out"]) == ("failed", "user", None)
    assert bad["message"] == "exit 3: no way with 2"
    (end,) = told(job.folder, "run_end")
    assert end["trials"] == {"completed": 2, "kept": 0, "failed": 1, "cancelled": 0, "not_run": 0}


def test_the_error_of_a_sweep_names_its_trials(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("2\n")
    job = sweeps.run_line("n=1,2,3")
    assert isinstance(job.error, StageFailed)
    assert (str(job.error), job.state) == ("n=2: exit 3: no way with 2", JobState.FAILED)
    (sweeps.folder / "bad").write_text("2\n4\n")
    job = sweeps.run_line("n=1,2,3,4")
    assert str(job.error) == "2 of 4 trials failed, the first, n=2: exit 3: no way with 2"


def test_a_trial_that_fails_takes_away_what_an_older_one_left_but_not_what_somebody_edited(sweeps: Sweeps) -> None:
    first = sweeps.run_line("n=1,2")
    for n in (1, 2):
        assert sweeps.out(first, f"n={n}/made").exists()
    sweeps.out(first, "n=2/mine.txt").write_text("a note")
    (sweeps.folder / "bad").write_text("1\n2\n")
    sweeps.run_line("n=1,2")
    assert not sweeps.out(first, "n=1").exists()
    assert os.listdir(sweeps.out(first, "n=2")) == ["mine.txt"]


def test_no_link_to_the_best_of_an_older_sweep_is_left(sweeps: Sweeps) -> None:
    best = sweeps.out(sweeps.run_line("n=1,2"), "best")
    best.symlink_to("n=1")
    (sweeps.folder / "bad").write_text("4\n3\n")
    job = sweeps.run_line("n=3,4")
    assert (sweeps.out(job, "best"), job.error is None) == (best, False)
    assert not best.is_symlink()
    assert best.with_name("n=1").is_dir()


def test_a_sweep_keeps_the_results_of_a_single_run_of_its_name_in_another_folder(sweeps: Sweeps) -> None:
    top = sweeps.out(sweeps.run_line("n=1"), "made").parent
    (top / "mine.txt").write_text("a note")
    job = sweeps.run_line("n=1,2")
    assert sorted(os.listdir(top)) == ["n=1", "n=2"]
    older = top.with_name(f"{top.name}~")
    assert sorted(os.listdir(older)) == [".stoker.json", "made", "mine.txt"]
    (warning,) = told(job.folder, "warning")
    assert warning["message"] == f"{top} had the results of a single run: moved to {older}"
    assert os.readlink(top.with_name("last")) == top.name


def test_a_single_run_keeps_the_results_of_a_sweep_of_its_name_in_another_folder(sweeps: Sweeps) -> None:
    top = sweeps.out(sweeps.run_line("n=1,2"), "").resolve()
    sweeps.run_line("n=1")
    job = sweeps.run_line("n=3,4")
    assert sorted(os.listdir(top)) == ["n=3", "n=4"]
    assert sorted(os.listdir(f"{top}~")) == ["n=1", "n=2"]
    assert sorted(os.listdir(f"{top}~2")) == [".stoker.json", "made"]
    assert job.error is None


def test_a_widened_sweep_and_the_same_single_run_use_their_folder_again(sweeps: Sweeps) -> None:
    top = sweeps.out(sweeps.run_line("n=1,2"), "").resolve()
    sweeps.run_line("n=1,2,3")
    assert sorted(os.listdir(top)) == ["n=1", "n=2", "n=3"]
    single = sweeps.run(renamed(sweeps.order("n=1"), "one"))
    sweeps.run(renamed(sweeps.order("n=1"), "one"))
    assert sorted(os.listdir(top.parent)) == ["last", "one", top.name]
    assert not told(single.folder, "warning")


@contextmanager
def held_open(sweeps: Sweeps, *overrides: str) -> Iterator[list[JobResult]]:
    """Run a job in a thread: its program waits for a file at n=2, which is written when the block ends."""
    done: list[JobResult] = []
    execution = sweeps.execution(sweeps.order(*overrides, program=WAITING))
    thread = threading.Thread(target=lambda: done.append(execution.run()))
    thread.start()
    try:
        while not (sweeps.folder / "waits").exists():
            thread.join(0.01)
        yield done
    finally:
        (sweeps.folder / "gate").write_text("")
        thread.join(20)


def test_a_single_run_leaves_the_folder_of_a_sweep_that_still_runs_alone(sweeps: Sweeps) -> None:
    with held_open(sweeps, "n=1,2,3") as done:
        single = sweeps.run_line("n=5", program=WAITING)
    (sweep,) = done
    top = sweeps.out(single, "").resolve()
    own = top.with_name(f"{top.name}~")
    assert sorted(os.listdir(top)) == ["n=1", "n=2", "n=3"]
    assert [end.out for end in sweep.trials] == [str(top / f"n={n}") for n in (1, 2, 3)]
    assert not told(sweep.folder, "warning")
    assert single.laid_out is not None
    assert (single.laid_out.folder, (own / "made").read_text()) == (str(own), "5\n")
    (warning,) = told(single.folder, "warning")
    assert warning["message"] == f"a sweep that is still running writes to {top}: results of this run go to {own}"
    assert sorted(os.listdir(top.parent)) == ["last", top.name, own.name]


def test_a_sweep_leaves_the_folder_of_a_single_run_that_still_runs_alone(sweeps: Sweeps) -> None:
    older = sweeps.out(sweeps.run_line("n=1", program=WAITING), "").resolve()
    with held_open(sweeps, "n=2") as done:
        sweep = sweeps.run_line("n=3,4", program=WAITING)
    (single,) = done
    assert (older / "made").read_text() == "2\n"
    assert single.laid_out is not None
    assert single.laid_out.folder == str(older)
    assert sorted(os.listdir(f"{older}~")) == ["n=3", "n=4"]
    assert [end.out for end in sweep.trials] == [f"{older}~/n={n}" for n in (3, 4)]
    # Nothing runs any more: the next sweep uses the name itself.
    sweeps.run_line("n=3,4", program=WAITING)
    assert sorted(os.listdir(older)) == ["n=3", "n=4"]
    assert sorted(os.listdir(f"{older}~2")) == [".stoker.json", "made"]


def test_a_run_without_results_leaves_no_empty_folder_beside_that_of_a_running_sweep(sweeps: Sweeps) -> None:
    with held_open(sweeps, "n=1,2"):
        single = sweeps.run_line("n=6", program=WAITING)
    assert single.error is not None
    assert sorted(os.listdir(sweeps.folder / "stoker-out")) == ["last", single.folder.spec().name]


def test_a_sweep_in_which_all_fails_alike_is_given_up(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("\n".join(map(str, range(30))))
    job = sweeps.run_line("n=range:0:30:1")
    assert isinstance(job.error, SweepGivenUp)
    assert "failed in the same way: exit 3: no way with 0" in str(job.error)
    assert "--keep-going" in job.error.hint
    assert 3 <= len(sweeps.ran()) < 10
    (end,) = told(job.folder, "run_end")
    assert end["trials"]["not_run"] > 15
    assert end["error"]["error"] == "sweep_given_up"


def test_who_wants_to_go_on_whatever_happens_does(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("1\n2\n3\n4\n5\n")
    job = sweeps.run(sweeps.order("n=1,2,3,4,5"), gives_up=False)
    assert counts(job) == {"failed": 5}
    assert len(sweeps.ran()) == 5


def test_when_a_shared_stage_fails_all_trials_fail_at_once_and_nothing_is_given_up(sweeps: Sweeps) -> None:
    order = sweeps.order("factor=1,2,3,4,5", target="test/branches")
    nodes = tuple(
        changed(node, args={**node.args, "ledger": "/not/there"}) if node.id == "number" else node
        for node in order.plan.nodes
    )
    job = sweeps.run(changed(order, plan=changed(order.plan, nodes=nodes)))
    assert counts(job) == {"failed": 5}
    assert isinstance(job.error, StageFailed)
    assert "5 of 5 trials failed, the first, factor=1" in str(job.error)


def test_a_sweep_that_is_cancelled_says_what_ran_what_was_stopped_and_what_never_began(sweeps: Sweeps) -> None:
    program = ("sh", "-c", 'if [ {n} = 2 ]; then echo go > gate; exec sleep 60; fi; echo {n} > "$STOKER_OUT/made"')
    order = sweeps.order("n=1,2,3,4", program=program)
    execution = sweeps.execution(order)
    done: list[JobResult] = []
    thread = threading.Thread(target=lambda: done.append(execution.run()))
    thread.start()
    while not (sweeps.folder / "gate").exists():
        thread.join(0.01)
    execution.cancel(Cancelled("interrupted"))
    thread.join(20)
    (job,) = done
    assert job.state is JobState.CANCELLED
    assert states(job) == {"n=1": "completed", "n=2": "cancelled"}
    (end,) = told(job.folder, "run_end")
    assert end["trials"] == {"completed": 1, "kept": 0, "failed": 0, "cancelled": 1, "not_run": 2}
    # The same line goes on from there.
    (sweeps.folder / "gate").unlink()
    assert set(sweeps.look(sweeps.order("n=1,2,3,4", program=program)).kept) == {"1.run"}


def test_a_kept_trial_has_the_metrics_of_all_its_stages(sweeps: Sweeps) -> None:
    branches(sweeps, "2,3")
    job = branches(sweeps, "2,3")
    assert counts(job) == {"kept": 2}
    assert [end.metrics for end in job.trials] == [{"loss": 1 / 3}, {"loss": 1 / 4}]


def test_a_sweep_of_one_point_lies_in_the_folder_of_its_label(sweeps: Sweeps) -> None:
    job = sweeps.run_line("n=7,7")
    assert states(job) == {"n=7": "completed"}
    assert sweeps.out(job, "n=7/made").exists()


def test_a_sweep_may_do_without_plain_folders(sweeps: Sweeps) -> None:
    job = sweeps.run(sweeps.order("n=1,2"), out=None)
    assert [end.out for end in job.trials] == [None, None]
    assert not (sweeps.folder / "stoker-out").exists()
    end = job.folder.ended()
    assert end is not None
    assert end.out is None


def test_results_that_can_not_be_laid_out_are_kept_all_the_same(sweeps: Sweeps) -> None:
    (sweeps.folder / "stoker-out").mkdir()
    order = sweeps.order("n=1,2")
    (sweeps.folder / "stoker-out" / order.spec.name).write_text("in the way")
    job = sweeps.run(order)
    assert isinstance(job.error, StokerError)
    assert job.state is JobState.FAILED
    assert counts(job) == {"completed": 2}
    (sweeps.folder / "stoker-out" / order.spec.name).unlink()
    # They need not run again to be laid out.
    again, going_on, left = sweeps.again(job.folder)
    assert left == 0
    sweeps.ran()
    done = sweeps.run(again, going_on)
    assert done.error is None
    assert sweeps.ran() == []
    assert sweeps.out(done, "n=2/made").exists()


def test_programs_run_side_by_side_if_that_is_wanted(sweeps: Sweeps) -> None:
    # Each waits for the other: one at a time would never end.
    program = (
        "sh",
        "-c",
        'touch here{n}; while [ ! -e here1 ] || [ ! -e here2 ]; do sleep 0.01; done; echo x > "$STOKER_OUT/x"',
    )
    order = sweeps.order("n=1,2", "cpus=1", program=program)
    job = sweeps.run(order, options=RunOptions(max_in_flight=2, keep_going=True, deadline_s=20.0))
    assert counts(job) == {"completed": 2}


def test_a_job_that_is_known_as_a_whole_is_told_so(sweeps: Sweeps) -> None:
    branches(sweeps, "2,3")
    job = branches(sweeps, "2,3")
    (end,) = told(job.folder, "run_end")
    assert end["trials"] == {"completed": 2, "kept": 2, "failed": 0, "cancelled": 0, "not_run": 0}
    assert Path(sweeps.out(job, "factor=2")).is_dir()


@pytest.mark.parametrize("declared", [(), ("inputs=version",)], ids=["undeclared", "declared"])
def test_a_sweep_whose_program_is_edited_meanwhile_names_the_trials_that_ran_the_edited_file(
    sweeps: Sweeps, declared: tuple[str, ...]
) -> None:
    program = sweeps.folder / "work.sh"
    program.write_text(f"{WORK}if [ $1 = 2 ]; then echo 'echo acc=1' >> work.sh; fi\n")
    job = sweeps.run_line("n=1,2,3", *declared)
    story = tell(read_status(job.folder.status_path))
    (warning,) = story.warnings
    assert warning == story.edits
    assert warning.startswith("work.sh was edited while this sweep ran; 1 of 3 trials ran edited code: 3;")
    hint = "the same command again runs the trials that ran other code than the current, and keeps the rest"
    assert warning.endswith(f"; {hint}")
    gathering = JobFacts(job.folder, sweeps.office.lab.store)
    sides = [side_of(gathering, trial, label=str(trial.spec.number)) for trial in gathering.wanted()]
    first, second, third = (side.code["work.sh"] for side in sides)
    assert first == second != third
    again = sweeps.run_line("n=1,2,3", *declared)
    assert states(again) == {"n=1": "completed", "n=2": "completed", "n=3": "kept"}


def test_a_warning_of_edited_code_names_each_code_once_however_many_trials_ran_it() -> None:
    trials = [
        made_trial(
            number=number,
            label=f"n={number}",
            point={"n": number},
            args={},
            job_id=digest_value("t", number),
            nodes=TrialNodes(final=f"{number}.run", keep=(), nodes=(f"{number}.run",)),
        )
        for number in range(1, 1001)
    ]
    files = {f"lib/{index}.py": "old" for index in range(10)}
    now = "a" * 64
    code = TrialCode("/", files, lambda _path: now)
    for trial in trials:
        now = ("a" if trial.spec.number % 2 else "b") * 64
        code.begin(trial.nodes.final)
    warning = code.summary(trials, len(trials))
    assert warning is not None
    edited: Any = warning.fields["edited"]
    assert sum(len(one["files"]) for one in edited.values()) == 20
    assert len(dumps(warning.fields)) < 10_000
    story = tell([{"kind": warning.kind, **warning.fields}])
    assert len(story.edited) == 1000
    assert story.edited[999] == dict.fromkeys(files, "a" * 64)
    assert story.edited[1000] == dict.fromkeys(files, "b" * 64)


def test_a_warning_that_cannot_be_written_loses_no_trial(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    emit = StatusWriter.emit

    def fails(writer: StatusWriter, event: Event) -> None:
        if "edited" in event.fields:
            raise LocalFile("no space is left")
        emit(writer, event)

    monkeypatch.setattr(StatusWriter, "emit", fails)
    (sweeps.folder / "work.sh").write_text(f"{WORK}if [ $1 = 1 ]; then echo 'echo acc=1' >> work.sh; fi\n")
    job = sweeps.run_line("n=1,2,3")
    assert (job.error, counts(job)) == (None, {"completed": 3})
    assert sweeps.out(job, "n=2/made").exists()
    assert job.folder.ended() is not None
    assert states(sweeps.run_line("n=1,2,3")) == {"n=1": "completed", "n=2": "kept", "n=3": "kept"}


def test_a_sweep_whose_program_stays_as_it_is_warns_of_nothing(sweeps: Sweeps) -> None:
    job = sweeps.run_line("n=1,2")
    assert tell(read_status(job.folder.status_path)).warnings == []


def test_the_cost_of_a_trial_is_estimated_by_its_values_and_not_by_its_place(sweeps: Sweeps) -> None:
    lab = sweeps.office.lab
    took = {end.trial.spec.label: end.seconds or 0.0 for end in sweeps.run_line("n=1,2").trials}
    order = sweeps.order("n=2,1,3")
    seen = {
        one.node: one.estimate_s for one in preview(order.plan, cache=lab.cache, history=lab.engine.history).forecasts
    }
    estimates = {trial.spec.label: seen[trial.nodes.final] for trial in order.trials}
    assert estimates["n=1"] == pytest.approx(took["n=1"], abs=1e-5)
    assert estimates["n=2"] == pytest.approx(took["n=2"], abs=1e-5)
    assert estimates["n=3"] == pytest.approx((took["n=1"] + took["n=2"]) / 2, abs=1e-5)
