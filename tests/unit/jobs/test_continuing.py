from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stoker.core.digests import Digest
from stoker.core.frozen import changed
from stoker.core.job import JobState
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.request import JobRequest
from stoker.store.records import Record
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.sweeping import Sweeps, counts, states


@pytest.fixture
def sweeps(office: Office) -> Sweeps:
    return Sweeps(office)


def forget_end(job: JobFolder, sweeps: Sweeps, *, trials: int) -> None:
    """Make a finished job look like one that was killed when it had noted so many trials."""
    Path(job.path, "end.json").unlink()
    (index,) = Path(sweeps.indexes).glob("*.jsonl")
    lines = [line for line in index.read_text().splitlines() if line]
    finished = [line for line in lines if '"finished"' in line]
    kept = [line for line in lines if '"ended"' not in line and line not in finished[trials:]]
    index.write_text("\n".join(kept) + "\n")


def test_the_same_line_again_runs_what_failed_and_keeps_what_did_not(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("2\n")
    assert counts(sweeps.run_line("n=1,2,3")) == {"completed": 2, "failed": 1}
    assert sweeps.ran() == ["1", "2", "3"]
    (sweeps.folder / "bad").write_text("")
    again = sweeps.run_line("n=1,2,3")
    assert states(again) == {"n=1": "kept", "n=2": "completed", "n=3": "kept"}
    assert sweeps.ran() == ["2"]
    assert sweeps.out(again, "n=1/made").read_text() == "1 1\n"


def test_what_has_finished_as_a_whole_runs_again_as_a_whole(sweeps: Sweeps) -> None:
    sweeps.run_line("n=1,2")
    order = sweeps.order("n=1,2")
    assert sweeps.look(order).kept == {}
    assert sweeps.look(order).note == "all of these trials had finished, so all run again"
    sweeps.run(order)
    assert sweeps.ran() == ["1", "2", "1", "2"]


def test_a_second_round_that_was_cut_short_goes_on_from_its_own_trials(sweeps: Sweeps) -> None:
    sweeps.run_line("n=1,2,3")
    job = sweeps.run_line("n=1,2,3")
    sweeps.ran()
    forget_end(job.folder, sweeps, trials=2)
    order = sweeps.order("n=1,2,3")
    # The third one has its result from this round too: its record says who made it.
    assert len(sweeps.look(order).kept) == 3
    (index,) = Path(sweeps.indexes).glob("*.jsonl")
    index.write_text(index.read_text().replace(job.folder.attempt, "20200101-000000-00000000"))
    assert len(sweeps.look(order).kept) == 2


def test_widening_runs_only_the_new_points_whichever_way_it_goes(sweeps: Sweeps) -> None:
    sweeps.run_line("n=1,2")
    sweeps.ran()
    assert counts(sweeps.run_line("n=0,1,2,3")) == {"kept": 2, "completed": 2}
    assert sweeps.ran() == ["0", "3"]
    # Points that were not asked for in between are still known.
    sweeps.run_line("n=7,8")
    assert sweeps.ran() == ["7", "8"]
    assert counts(sweeps.run_line("n=0,7,9")) == {"kept": 2, "completed": 1}
    assert sweeps.ran() == ["9"]


def test_running_some_of_them_again_forgets_only_those(sweeps: Sweeps) -> None:
    sweeps.run_line("n=1,2,3")
    sweeps.run_line("n=1,2")
    sweeps.ran()
    assert counts(sweeps.run_line("n=1,2,3,4")) == {"kept": 3, "completed": 1}


def test_a_changed_program_runs_everything_again_and_that_is_said(sweeps: Sweeps) -> None:
    sweeps.run_line("n=1,2")
    sweeps.ran()
    with open(sweeps.folder / "work.sh", "a", encoding="utf-8") as file:
        file.write("# better\n")
    order = sweeps.order("n=1,2,3")
    assert sweeps.look(order).note == "the program has changed since 2 of these trials finished, so they run again"
    assert counts(sweeps.run(order)) == {"completed": 3}
    assert sweeps.ran() == ["1", "2", "3"]


def test_of_trials_of_two_versions_those_of_this_one_are_kept(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("2\n")
    first = sweeps.run_line("n=1,2")
    (sweeps.folder / "bad").write_text("")
    with open(sweeps.folder / "work.sh", "a", encoding="utf-8") as file:
        file.write("# mended\n")
    order, going_on, _ = sweeps.again(first.folder)
    sweeps.run(order, going_on)
    looked = sweeps.look(sweeps.order("n=1,2"))
    assert set(looked.kept) == {"2.run"}
    assert "it was another one when 1 more finished, so those run again" in looked.note


def test_who_asks_afresh_gets_everything_afresh(sweeps: Sweeps) -> None:
    sweeps.run_line("n=1,2")
    sweeps.ran()
    order = sweeps.order("n=1,2,3")
    sweeps.run(order, sweeps.look(order, afresh=True))
    assert sweeps.ran() == ["1", "2", "3"]


@pytest.mark.parametrize("noted", [0, 1, 3])
def test_a_killed_sweep_keeps_all_that_has_its_name_whatever_was_noted(sweeps: Sweeps, noted: int) -> None:
    job = sweeps.run_line("n=1,2,3")
    forget_end(job.folder, sweeps, trials=noted)
    sweeps.ran()
    assert counts(sweeps.run_line("n=1,2,3,4")) == {"kept": 3, "completed": 1}
    assert sweeps.ran() == ["4"]


def test_a_sweep_that_was_killed_when_all_was_done_runs_nothing_again(sweeps: Sweeps) -> None:
    job = sweeps.run_line("n=1,2,3")
    forget_end(job.folder, sweeps, trials=3)
    sweeps.ran()
    again = sweeps.run_line("n=1,2,3")
    assert counts(again) == {"kept": 3}
    assert sweeps.ran() == []
    assert again.state is JobState.COMPLETED
    # Now it has come to its end, and whoever asks again wants it again.
    sweeps.run_line("n=1,2,3")
    assert sweeps.ran() == ["1", "2", "3"]


def test_a_trial_whose_bytes_are_damaged_or_gone_runs_again(sweeps: Sweeps) -> None:
    program = (
        "sh",
        "-c",
        'echo {n} >> ledger; head -c 9000 /dev/zero > "$STOKER_OUT/big{n}"; echo {n} >> "$STOKER_OUT/big{n}"',
    )
    first = sweeps.run(sweeps.order("n=1,2,3", program=program))
    sweeps.ran()
    blobs = {end.trial.spec.label: _blob(sweeps, end.keys[end.trial.nodes.final]) for end in first.trials}
    os.chmod(blobs["n=1"], 0o644)
    Path(blobs["n=1"]).write_bytes(b"x" * 9002)
    Path(blobs["n=2"]).unlink()
    again = sweeps.run(sweeps.order("n=1,2,3,4", program=program))
    assert states(again) == {"n=1": "completed", "n=2": "completed", "n=3": "kept", "n=4": "completed"}
    assert sorted(sweeps.ran()) == ["1", "2", "4"]


def _blob(sweeps: Sweeps, key: str) -> str:
    store = sweeps.office.lab.store
    record = store.peek(Digest(key))
    assert isinstance(record, Record)
    return store.places.blob(record.blobs()[0].sha256)


def test_a_result_that_another_run_replaced_is_not_taken_for_ones_own(sweeps: Sweeps) -> None:
    sweeps.run_line("n=1,2")
    sweeps.ran()
    (sweeps.folder / "version").write_text("2")
    # The same words by themselves: the result of n=1 is now another one, made by somebody else.
    alone = sweeps.run_line("n=1")
    assert alone.trials == ()
    assert counts(sweeps.run_line("n=1,2,3")) == {"kept": 1, "completed": 2}
    assert sweeps.ran() == ["1", "1", "3"]


def test_programs_of_the_same_words_in_two_folders_do_not_keep_each_others_results(
    sweeps: Sweeps, tmp_path: Path
) -> None:
    sweeps.run_line("n=1,2")
    other = tmp_path / "other"
    other.mkdir()
    there = Sweeps(sweeps.office)
    there.folder = other
    for name in ("work.sh", "version", "bad"):
        (other / name).write_bytes((sweeps.folder / name).read_bytes())
        (other / name).chmod(0o755)
    (other / "version").write_text("other")
    there.office.folder = other
    assert counts(there.run(there.order("n=1,2"))) == {"completed": 2}
    there.office.folder = sweeps.folder
    sweeps.ran()
    again = sweeps.run_line("n=1,2,3")
    assert counts(again) == {"kept": 2, "completed": 1}
    assert sweeps.out(again, "n=1/made").read_text() == "1 1\n"


def test_a_program_by_itself_always_runs_and_has_no_index(sweeps: Sweeps) -> None:
    for _ in range(2):
        order = sweeps.order("n=1")
        assert sweeps.look(order).index is None
        sweeps.run(order)
    assert sweeps.ran() == ["1", "1"]


def test_recipes_and_programs_with_declared_inputs_leave_it_to_the_cache(sweeps: Sweeps) -> None:
    (sweeps.folder / "data").write_text("d")
    assert sweeps.look(sweeps.order("plus=1,2", target="test/sum")).index is None
    assert sweeps.look(sweeps.order("n=1,2", "inputs=[data]")).index is None
    for expected in (["1", "2"], []):
        sweeps.run_line("n=1,2", "inputs=[data]")
        assert sweeps.ran() == expected
    assert counts(sweeps.run_line("n=1,2,3", "inputs=[data]")) == {"kept": 2, "completed": 1}
    assert sweeps.ran() == ["3"]
    (sweeps.folder / "data").write_text("other")
    assert counts(sweeps.run_line("n=1,2,3", "inputs=[data]")) == {"completed": 3}


def test_what_failed_is_run_again_with_the_same_labels_and_the_index_goes_on(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("2\n4\n")
    first = sweeps.run_line("n=1,2,3,4")
    sweeps.ran()
    (sweeps.folder / "bad").write_text("4\n")
    order, going_on, left = sweeps.again(first.folder)
    assert (left, going_on.note) == (2, "2 of 4 trials are kept as they are")
    assert [trial.spec.label for trial in order.trials] == ["n=1", "n=2", "n=3", "n=4"]
    second = sweeps.run(order, going_on)
    assert states(second) == {"n=1": "kept", "n=2": "completed", "n=3": "kept", "n=4": "failed"}
    assert sweeps.ran() == ["2", "4"]
    # The line itself goes on from all of that.
    (sweeps.folder / "bad").write_text("")
    assert counts(sweeps.run_line("n=1,2,3,4")) == {"kept": 3, "completed": 1}
    assert sweeps.ran() == ["4"]


def test_only_what_failed_runs_again_even_if_the_program_was_mended(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("2\n")
    first = sweeps.run_line("n=1,2")
    (sweeps.folder / "bad").write_text("")
    (sweeps.folder / "version").write_text("2")
    with open(sweeps.folder / "work.sh", "a", encoding="utf-8") as file:
        file.write("# mended\n")
    sweeps.ran()
    order, going_on, _ = sweeps.again(first.folder)
    second = sweeps.run(order, going_on)
    assert sweeps.ran() == ["2"]
    assert [sweeps.out(second, f"n={n}/made").read_text() for n in (1, 2)] == ["1 1\n", "2 2\n"]


def test_of_a_killed_job_what_failed_or_was_not_reached_runs_again(sweeps: Sweeps) -> None:
    (sweeps.folder / "bad").write_text("1\n")
    first = sweeps.run_line("n=1,2,3")
    # Killed before the journal told of the third one, and before anything was noted.
    forget_end(first.folder, sweeps, trials=0)
    journal = Path(first.folder.status_path)
    lines = journal.read_text().splitlines()
    cut = next(place for place, line in enumerate(lines) if '"stage_end"' in line and '"3.run"' in line)
    journal.write_text("\n".join(lines[:cut]) + "\n" + lines[cut][:40])
    sweeps.ran()
    _, going_on, left = sweeps.again(first.folder)
    # The third has its result all the same: its record says that this job made it.
    assert (left, set(going_on.kept)) == (1, {"2.run", "3.run"})


def test_of_a_recipe_that_succeeded_as_a_whole_all_is_kept(sweeps: Sweeps) -> None:
    first = sweeps.run(sweeps.order("factor=2,3", target="test/branches"))
    order, going_on, left = sweeps.again(first.folder)
    assert left == 0
    assert set(going_on.kept) == {node.id for node in order.plan.nodes}


def test_results_of_a_recipe_are_kept_for_what_failed_though_their_keys_have_changed(sweeps: Sweeps) -> None:
    first = sweeps.run(sweeps.order("factor=2,13", target="test/branches"))
    order, going_on, _ = sweeps.again(first.folder)
    # As if the code of the last stage had changed: its result would be looked for under another key.
    nodes = tuple(
        changed(node, args={**node.args, "factor": 7}) if node.id == "1.scale" else node for node in order.plan.nodes
    )
    again = sweeps.run(changed(order, plan=changed(order.plan, nodes=nodes)), going_on)
    assert states(again) == {"factor=2": "kept", "factor=13": "failed"}
    assert json.loads(sweeps.out(again, "factor=2/value.json").read_text()) == 12


def test_what_a_trial_that_failed_reads_is_not_kept_for_it(sweeps: Sweeps) -> None:
    first = sweeps.run(sweeps.order("factor=2,13", target="test/branches"))
    assert counts(first) == {"completed": 1, "failed": 1}
    _, going_on, left = sweeps.again(first.folder)
    # What both read is looked up as things are now: it may be what was mended.
    assert (left, set(going_on.kept)) == (1, {"1.scale"})


def test_looking_writes_nothing(sweeps: Sweeps) -> None:
    sweeps.look(sweeps.order("n=1,2"))
    assert not os.path.exists(sweeps.indexes)


def test_a_script_that_a_parameter_names_counts_as_the_program(sweeps: Sweeps) -> None:
    program = ("sh", "{script}")
    for name in ("one", "two"):
        (sweeps.folder / f"{name}.sh").write_text(f'echo {name} >> ledger; echo x > "$STOKER_OUT/made"\n')
    sweeps.run(sweeps.order("script=one.sh,two.sh", program=program))
    (sweeps.folder / "two.sh").write_text('echo new >> ledger; echo y > "$STOKER_OUT/made"\n')
    (sweeps.folder / "three.sh").write_text('echo three >> ledger; echo x > "$STOKER_OUT/made"\n')
    sweeps.ran()
    sweeps.run(sweeps.order("script=one.sh,two.sh,three.sh", program=program))
    assert "new" in sweeps.ran()


def test_a_wanted_of_a_plan_file_has_no_trials(sweeps: Sweeps) -> None:
    (sweeps.folder / "plan.json").write_text(
        '{"stoker_plan": 1, "name": "p", "nodes": {"a": {"stage": "test/number", "args": {"value": 1}}}, "final": "a"}'
    )
    order = sweeps.office.builder.build(JobRequest(target=str(sweeps.folder / "plan.json")))
    assert sweeps.look(order).index is None
