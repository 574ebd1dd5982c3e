from __future__ import annotations

import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import Needs, PlanBuilder
from stoker.cookbooks.command.cookbook import OpenProgramArgs, run
from stoker.core.errors import (
    BadInput,
    Cancelled,
    LocalFile,
    OutOfMemory,
    ProcessLost,
    ProgramNotFound,
    ScratchBusy,
    StageFailed,
    StageTimeout,
)
from stoker.core.retry import RetryPolicy
from stoker.devices import admission
from stoker.engine.runners.program.launch import ProgramContext
from stoker.engine.runners.program.program_runner import ProgramRunner
from tests.unit.engine.lab import TRAINER as TRAINER_FOLDER
from tests.unit.engine.lab import Lab, containment, message_of
from tests.unit.engine.programs import PYTHON, Project
from tests.unit.engine.stages import NumberArgs, number
from tests.unit.host.real_processes import is_running, wait_until

# Not for ever: a test that fails must end.
UNTIL_GATE = "import os, time\nfor _ in range(6000):\n  if os.path.exists('gate'): break\n  time.sleep(0.01)\n"
AT_ONCE = RetryPolicy(attempts=3, backoff_s=0.0)


@pytest.fixture
def project(lab: Lab, tmp_path: Path) -> Project:
    return Project(lab, tmp_path / "project")


def test_what_it_writes_is_the_result_and_what_it_says_is_in_its_log(project: Project) -> None:
    plan = project.shell(
        "echo hello; echo oops >&2; mkdir $STOKER_OUT/deep; echo 1 > $STOKER_OUT/deep/a; ln -s a $STOKER_OUT/deep/b"
    )
    ran = project.lab.run(plan)
    assert ran.result.error is None
    assert project.files(ran) == {"deep/a": "1\n", "deep/b": "-> a"}
    assert sorted(project.lab.log("run").splitlines()) == ["hello", "oops"]
    assert project.lab.staged() == []
    assert project.scratches() == []


def test_a_program_that_writes_nothing_has_an_empty_result(project: Project) -> None:
    ran = project.lab.run(project.plan("/bin/true"))
    assert ran.endings == {"run": "ran"}
    assert project.files(ran) == {}


def test_it_runs_every_time_because_nobody_knows_what_it_reads(project: Project) -> None:
    plan = project.shell("echo x >> count")
    project.lab.run(plan)
    ran = project.lab.run(plan)
    assert ran.endings == {"run": "ran"}
    assert (project.folder / "count").read_text() == "x\nx\n"


def test_the_same_words_in_another_folder_are_another_program(lab: Lab, tmp_path: Path) -> None:
    keys = set()
    for name in ("one", "two"):
        project = Project(lab, tmp_path / name)
        ran = lab.run(project.shell(f"echo {'x'} > $STOKER_OUT/a"))
        keys.add(ran["run"].key)
    assert len(keys) == 2


def test_places_parameters_and_variables_reach_it(project: Project) -> None:
    plan = project.plan(
        "/bin/sh",
        "-c",
        'echo "$0 $1 $DEBUG $STOKER_PARAMS ${{STOKER_ATTEMPT}}" > {out}/said; pwd >> {out}/said; touch {scratch}/x',
        "{{a}}",
        "b c",
        params={"lr": 0.1},
        env={"DEBUG": "1 2"},
    )
    ran = project.lab.run(plan)
    assert message_of(ran.result.error) == ""
    assert project.files(ran)["said"] == f'{{a}} b c 1 2 {{"lr":0.1}} 1\n{project.folder}\n'
    assert project.scratches() == []


def test_its_standard_input_is_empty(project: Project) -> None:
    ran = project.lab.run(project.shell("cat > $STOKER_OUT/read"))
    assert project.files(ran) == {"read": ""}


def test_declared_outputs_belong_to_the_result(project: Project) -> None:
    (project.folder / "runs").mkdir()
    (project.folder / "runs" / "old").touch()
    plan = project.shell("echo 2 > runs/new; echo 1 > $STOKER_OUT/a", outputs=("runs",))
    assert project.files(project.lab.run(plan)) == {"a": "1\n", "runs/new": "2\n"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("true", "wrote nothing to runs"),
        ("echo > runs; echo > $STOKER_OUT/runs", "it wrote runs both to $STOKER_OUT and to a declared output"),
        ("ln -s /etc runs", "runs: symlink leads out of the folder, to /etc"),
        ("echo > runs; ln -s /etc/passwd $STOKER_OUT/p", "p: symlink leads out of the folder"),
        ("echo > runs; rm -rf $STOKER_OUT", "the output folder was removed"),
        ("echo > runs; rm -rf $STOKER_OUT; ln -s /etc $STOKER_OUT", "or replaced"),
        ("echo > runs; chmod 0 $STOKER_OUT; exit 1", "exit 1"),
    ],
)
def test_outputs_that_can_not_be_kept_fail_it_and_leave_nothing(project: Project, body: str, said: str) -> None:
    ran = project.lab.run(project.shell(body, outputs=("runs",)))
    assert said in message_of(ran.result.error)
    assert project.lab.staged() == []
    assert project.scratches() == []
    assert os.listdir("/etc")


def test_links_by_the_full_name_of_its_result_and_left_over_pipes_do_not_cost_it_the_result(project: Project) -> None:
    body = "cd $STOKER_OUT; mkdir ckpt-9; echo 9 > ckpt-9/model; ln -s $STOKER_OUT/ckpt-9 latest; mkfifo pipe"
    ran = project.lab.run(project.shell(body))
    assert message_of(ran.result.error) == ""
    assert project.files(ran) == {"ckpt-9/model": "9\n", "latest": "-> ckpt-9"}
    assert "pipe is not part of the result" in project.told(ran)


def test_pairs_on_its_output_are_progress_curves_and_its_last_values(project: Project) -> None:
    ran = project.lab.run(project.python('for i in range(5): print(f"step={i}/5 loss={5 - i}, acc=nan")'))
    assert project.record(ran).body["metrics"] == {"loss": 1.0, "acc": pytest.approx(math.nan, nan_ok=True)}
    assert [row for row in project.rows() if row[1] == "loss"] == [(i, "loss", 5.0 - i) for i in range(5)]
    last = ran.of_kind("stage_step")[-1]
    assert (last["step"], last["of"]) == (4, 5)


WRITES_CSV = """
    import os
    for name, place in {"out": os.environ["STOKER_OUT"], "runs": "runs", "named": "named"}.items():
        os.makedirs(place, exist_ok=True)
        with open(f"{place}/metrics.csv", "a") as file:
            print(f"step,{name}_loss", "7,0.125", sep="\\n", file=file)
    print("step 3: runs loss 0.1, named loss 0.1, test loss 0.25")
"""


def test_files_that_it_writes_are_curves_and_go_before_its_output(project: Project) -> None:
    (project.folder / "runs").mkdir()
    (project.folder / "runs" / "results.csv").write_text("step,old_loss\n1,2\n")
    ran = project.lab.run(project.python(WRITES_CSV, outputs=("runs",), metrics=("named",)))
    assert message_of(ran.result.error) == ""
    of_files = dict.fromkeys(("out_loss", "runs_loss", "named_loss"), 0.125)
    assert project.record(ran).body["metrics"] == {**of_files, "test_loss": 0.25}
    assert {(7, name, 0.125) for name in of_files} < set(project.rows())
    assert project.told(ran) == ""


def test_nothing_is_read_from_files_if_metrics_are_off(project: Project) -> None:
    ran = project.lab.run(project.python(WRITES_CSV, outputs=("runs",), metrics=("off",)))
    assert message_of(ran.result.error) == ""
    assert "metrics" not in project.record(ran).body
    assert project.rows() == []


def test_progress_is_live(project: Project) -> None:
    flight = project.lab.start(project.trainer(f'print("step=3 loss=2")\n{UNTIL_GATE}'))
    wait_until(lambda: bool(flight.events("stage_step")))
    (project.folder / "gate").touch()
    assert flight.land().result.error is None


def test_how_much_memory_it_took_is_kept(project: Project) -> None:
    ran = project.lab.run(project.python("x = b'x' * (64 << 20)"))
    assert 60 << 20 < project.record(ran).body["peak_rss_bytes"] < 120 << 20


def test_a_cap_that_a_kill_has_raised_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    if containment().mechanism not in ("cgroup1", "cgroup2", "systemd"):
        pytest.skip("nobody is killed by the kernel")
    monkeypatch.setattr(admission, "_SLACK_BYTES", 0)
    plan = project.python("x = b'x' * (64 << 20)", how={"needs": Needs(cpu=1, memory_gib=1 / 16)})
    killed = project.lab.run(plan)
    assert isinstance(killed.result.error, OutOfMemory)
    assert project.told(killed) == ""
    ran = project.lab.run(plan)
    assert message_of(ran.result.error) == ""
    assert "its cap is 96.0 MiB: 1.5 × the 64.0 MiB at which it was killed" in project.told(ran)


def test_files_that_it_writes_later_do_not_hide_the_memory_that_it_took(project: Project) -> None:
    # Not below pytest's folder, which may be in memory.
    with tempfile.TemporaryDirectory() as folder:
        body = f"""
        import os, time
        x = b"x" * (48 << 20)
        time.sleep(1.0)
        del x
        with open({folder!r} + "/big", "wb") as file:
            for _ in range(96): file.write(b"y" * (1 << 20))
        """
        ran = project.lab.run(project.python(body))
    assert 44 << 20 < project.record(ran).body["peak_rss_bytes"] < 90 << 20


@pytest.mark.parametrize(
    ("argv", "refusal"),
    [
        (("no-such-program",), ProgramNotFound),
        (("./none",), ProgramNotFound),
        (("",), ProgramNotFound),
        (("/bin/echo", "x" * 200_000), BadInput),
    ],
)
def test_what_can_not_be_started_is_refused_before_anything_runs(
    project: Project, ledger: str, argv: Any, refusal: type
) -> None:
    builder = PlanBuilder("two")
    first = project.plan(*argv).nodes[0]
    builder.start(first.stage, first.stage.args.make(first.args), id="run")
    builder.start(number, NumberArgs(value=1, ledger=ledger))
    with pytest.raises(refusal):
        project.lab.run(builder.finish())
    assert not os.path.exists(ledger)


def test_a_folder_or_an_interpreter_that_is_not_there_is_refused(project: Project) -> None:
    with pytest.raises(LocalFile, match="there is no Python at"):
        project.lab.run(project.shell("true", python="nowhere"))
    project.folder.rmdir()
    with pytest.raises(LocalFile, match="there is no folder"):
        project.lab.run(project.shell("true"))


def test_a_failure_leaves_its_log_and_nothing_else(project: Project) -> None:
    ran = project.lab.run(project.python('print("so far"); raise ValueError("no")'))
    assert isinstance(ran.result.error, StageFailed)
    assert message_of(ran.result.error) == "run: exit 1: ValueError: no (<string>:1)"
    assert "so far\n" in project.lab.log("run")
    assert project.lab.staged() == []
    assert project.scratches() == []


def test_what_its_scratch_holds_is_there_for_the_next_run_until_it_succeeds(project: Project) -> None:
    body = "cd $STOKER_SCRATCH; echo x >> tries; test $(wc -l < tries) -ge 3 && cp tries $STOKER_OUT"
    assert project.lab.run(project.shell(body)).result.error is not None
    assert len(project.scratches()) == 1
    assert project.lab.run(project.shell(body)).result.error is not None
    ran = project.lab.run(project.shell(body))
    assert project.files(ran) == {"tries": "x\nx\nx\n"}
    assert project.scratches() == []


TRAIN = """
import sys, os, signal, stoker_trainer as t
start = int(open(t.resume()).read()) if t.resume() else 0
print("starts at", start, flush=True)
for i in range(start, 6):
    t.step(i, of=6, loss=6 - i)
    open("ckpt", "w").write(str(i + 1))
    t.saved("ckpt", step=i)
    if i == int(sys.argv[1]) and start == 0:
        os.kill(os.getpid(), signal.SIGKILL)
open(os.path.join(t.out(), "model"), "w").write(f"started at {start}")
t.done(loss=0.5)
"""


def test_an_attempt_goes_on_from_the_checkpoint_of_the_one_before(project: Project) -> None:
    ran = project.lab.run(project.trainer(TRAIN, "2", how={"retry": AT_ONCE}))
    assert ran.result.error is None, project.lab.log("run")
    assert project.files(ran) == {"model": "started at 3"}
    assert "resumes from 000003-ckpt (step 2): an earlier attempt of this run" in project.told(ran)
    assert len(ran.of_kind("stage_retrying")) == 1
    assert project.record(ran).body["metrics"]["loss"] == 0.5
    assert project.scratches() == []


def test_a_later_run_of_the_same_line_goes_on_and_one_with_other_words_does_not(project: Project) -> None:
    assert isinstance(project.lab.run(project.trainer(TRAIN, "2")).result.error, ProcessLost)
    other = project.lab.run(project.trainer(TRAIN, "4"))
    assert isinstance(other.result.error, ProcessLost)
    assert "resumes" not in project.told(other)
    other = project.lab.run(project.trainer(TRAIN, "2", params={"lr": 1}))
    assert isinstance(other.result.error, ProcessLost)
    again = project.lab.run(project.trainer(TRAIN, "2"))
    assert project.files(again) == {"model": "started at 3"}
    assert (
        "run-1 is gone" in project.told(again) or "silent" in project.told(again) or "run run-1" in project.told(again)
    )


def test_the_same_line_elsewhere_does_not_go_on_from_it(project: Project, tmp_path: Path) -> None:
    assert isinstance(project.lab.run(project.trainer(TRAIN, "2")).result.error, ProcessLost)
    elsewhere = Project(project.lab, tmp_path / "elsewhere")
    assert isinstance(project.lab.run(elsewhere.trainer(TRAIN, "2")).result.error, ProcessLost)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(project: Project) -> None:
    assert isinstance(project.lab.run(project.trainer(TRAIN, "2")).result.error, ProcessLost)
    (scratch,) = project.scratches()
    (scratch / "checkpoints" / "000003-ckpt").write_text("9")
    ran = project.lab.run(project.trainer(TRAIN, "2"))
    assert project.files(ran) == {"model": "started at 2"}
    assert "checkpoint skipped: checkpoints/000003-ckpt is not what was saved" in project.told(ran)


def test_a_program_that_reports_in_lines_has_its_checkpoints_kept_too(project: Project) -> None:
    body = """
    import json, os
    start = int(open(os.environ["STOKER_RESUME"]).read()) if "STOKER_RESUME" in os.environ else 0
    open("ckpt", "w").write("5")
    print(json.dumps({"kind": "saved", "path": "ckpt", "step": 4}), flush=True)
    if not start:
        raise SystemExit(1)
    open(os.environ["STOKER_OUT"] + "/a", "w").write(str(start))
    """
    assert project.lab.run(project.python(body)).result.error is not None
    assert project.files(project.lab.run(project.python(body))) == {"a": "5"}


def test_another_run_in_the_same_scratch_folder_keeps_it_out(project: Project, tmp_path: Path) -> None:
    (project.folder / "data").write_text("1")
    (project.folder / "code.py").write_text("1")
    words = (*PYTHON, "-c", f"open('started', 'w')\n{UNTIL_GATE}")
    flight = project.lab.start(project.known_plan(*words, inputs=("data",), code=("code.py",)))
    wait_until((project.folder / "started").exists)
    (project.folder / "code.py").write_text("2")
    with Lab(project.lab.folder) as other:
        ran = other.run(project.known_plan(*words, inputs=("data",), code=("code.py",)))
    assert isinstance(ran.result.error, ScratchBusy)
    assert ran.result.error.exit_code == 16
    (project.folder / "gate").touch()
    assert flight.land().result.error is None


def test_one_that_says_nothing_for_too_long_is_stopped(project: Project) -> None:
    ran = project.lab.run(project.shell("echo $$ > pid; exec sleep 60", silence_s=0.3))
    assert isinstance(ran.result.error, StageTimeout)
    assert "no output for" in message_of(ran.result.error)
    assert not is_running(int((project.folder / "pid").read_text()))


def test_a_trainer_that_beats_for_a_program_that_hangs_does_not_count(project: Project) -> None:
    body = """
    import time, stoker_trainer as t
    t._BEAT_S = 0.1
    t._FLUSH_S = 0.05
    t.step(1, loss=1)
    time.sleep(60)
    """
    ran = project.lab.run(project.trainer(body, silence_s=1.0))
    assert isinstance(ran.result.error, StageTimeout)


def test_one_that_speaks_in_any_way_is_not_silent(project: Project) -> None:
    body = """
    import time, sys, stoker_trainer as t
    t._FLUSH_S = 0.05
    for say in (lambda i: sys.stderr.write("x"), lambda i: t.step(i, loss=1)):
        for i in range(18):
            time.sleep(0.1)
            say(i)
    """
    assert project.lab.run(project.trainer(body, silence_s=1.5)).result.error is None


def test_one_that_runs_too_long_is_stopped_with_all_that_it_started(project: Project) -> None:
    plan = project.shell("sleep 60 & echo $! > pid; wait", how={"timeout_s": 0.3})
    ran = project.lab.run(plan)
    assert isinstance(ran.result.error, StageTimeout)
    assert not is_running(int((project.folder / "pid").read_text()))


def test_a_cancelled_program_may_save_and_its_result_is_not_kept(project: Project) -> None:
    body = """
    import time, stoker_trainer as t
    open("ready" if not t.should_stop() else "never", "w").close()
    while not t.should_stop():
        time.sleep(0.01)
    open("ckpt", "w").write("7")
    t.saved("ckpt", step=7)
    """
    flight = project.lab.start(project.trainer(body))
    wait_until((project.folder / "ready").exists)
    flight.executor.cancel(Cancelled("enough"))
    ran = flight.land()
    assert ran.endings == {"run": "cancelled"}
    assert project.lab.staged() == []
    (scratch,) = project.scratches()
    assert (scratch / "checkpoints" / "000001-ckpt").read_text() == "7"


def test_a_known_program_is_a_hit_until_its_data_or_its_code_changes(project: Project) -> None:
    for name in ("data", "code.py"):
        (project.folder / name).write_text("1")

    def ending() -> str:
        plan = project.known_plan("/bin/sh", "-c", "cp data $STOKER_OUT", inputs=("data",), code=("code.py",))
        return project.lab.run(plan).endings["run"]

    assert [ending(), ending()] == ["ran", "hit"]
    (project.folder / "data").write_text("22")
    assert [ending(), ending()] == ["ran", "hit"]
    (project.folder / "code.py").write_text("22")
    assert [ending(), ending()] == ["ran", "hit"]


def test_code_may_be_edited_while_it_runs_and_inputs_may_not(project: Project) -> None:
    for name in ("data", "code.py"):
        (project.folder / name).write_text("1")
    words = ("/bin/sh", "-c", 'echo more >> "$0"')
    ran = project.lab.run(project.known_plan(*words, "code.py", inputs=("data",), code=("code.py",)))
    assert ran.result.error is None
    (project.folder / "other").write_text("1")
    ran = project.lab.run(project.known_plan(*words, "data", inputs=("other", "data"), code=("code.py",)))
    assert message_of(ran.result.error).endswith(f"input changed while the stage ran: {project.folder / 'data'}")
    assert project.lab.staged() == []


def test_checkpoints_survive_an_edit_of_the_code_also_of_a_known_program(project: Project) -> None:
    for name in ("data", "code.py"):
        (project.folder / name).write_text("1")
    words = ("/bin/sh", "-c", "test -e $STOKER_SCRATCH/here || (touch $STOKER_SCRATCH/here; exit 1)")

    def attempt() -> bool:
        plan = project.known_plan(*words, inputs=("data",), code=("code.py",))
        return project.lab.run(plan).result.error is None

    assert not attempt()
    (project.folder / "code.py").write_text("mended")
    assert attempt()


def test_programs_that_run_at_once_see_the_device_they_were_given_and_no_other(project: Project) -> None:
    around = ProgramContext(
        environment=dict(os.environ), own_prefix=sys.prefix, trainer_folder=str(TRAINER_FOLDER), has_gpus=True
    )
    project.lab.programs = ProgramRunner(around, containment, project.lab.clock)
    builder = PlanBuilder("devices")
    for name, gpus in (("one", 1), ("two", 1), ("none", 0)):
        # Those with a device wait for each other, so that they hold it at the same time.
        wait = "while [ $(ls seen-* | wc -l) -lt 2 ]; do sleep 0.01; done" if gpus else "true"
        body = f'echo "<$CUDA_VISIBLE_DEVICES>" > seen-{name}; {wait}'
        args = OpenProgramArgs(argv=("/bin/sh", "-c", body), folder=str(project.folder))
        builder.start(run, args, id=name, needs=Needs(cpu=1, gpu=gpus))
    ran = project.lab.run(builder.finish())
    assert message_of(ran.result.error) == ""
    seen = {name: (project.folder / f"seen-{name}").read_text().strip() for name in ("one", "two", "none")}
    assert sorted(seen.values()) == ["<>", "<a>", "<b>"]
    assert seen["none"] == "<>"
