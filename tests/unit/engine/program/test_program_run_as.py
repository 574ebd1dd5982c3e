"""Programs as another user, by the real engine: what they may, and what none of their tricks gets them. As root."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import Cancelled
from stoker.core.retry import RetryPolicy
from stoker.engine.runners.program.launch import ProgramContext
from stoker.engine.runners.program.program_runner import ProgramRunner
from stoker.host.user_switch import processes_of
from stoker.host.users import OtherUser, why_not_allowed
from tests.unit.engine.lab import TRAINER, Lab, containment, message_of
from tests.unit.engine.programs import Project
from tests.unit.host.real_processes import wait_until

SYSTEM_PYTHON = "/usr/bin/python3"
# Of this process alone: whoever runs as a user is ended with its program, and tests run beside each other.
NUMBER = 10_000_000 + 2 * os.getpid()
USER = OtherUser(name=str(NUMBER), uid=NUMBER, gid=NUMBER)
OTHER = OtherUser(name=str(NUMBER + 1), uid=NUMBER + 1, gid=NUMBER + 1)

pytestmark = pytest.mark.skipif(
    bool(why_not_allowed()) or not os.path.exists(SYSTEM_PYTHON),
    reason=f"programs of other users: {why_not_allowed() or 'no Python that everybody may use'}",
)


def run_as(lab: Lab, user: OtherUser, **granted: str) -> None:
    around = ProgramContext(
        environment={"PATH": "/root-only:/usr/bin:/bin", "SECRET": "the worker's", "LANG": "C.UTF-8"},
        own_prefix="/nowhere",
        trainer_folder=str(TRAINER),
        has_gpus=False,
        user=user,
        granted=granted,
    )
    lab.programs = ProgramRunner(around, containment, lab.clock)


@pytest.fixture
def project(open_path: Path) -> Iterator[Project]:
    """A project where everybody may write."""
    with Lab(open_path / "lab") as lab:
        for name in ("store", "metrics", "logs"):
            (open_path / "lab" / name).mkdir(exist_ok=True)
            (open_path / "lab" / name).chmod(0o700)
        made = Project(lab, open_path / "project")
        made.folder.chmod(0o777)
        run_as(lab, USER, GRANTED="yes")
        yield made
    assert not processes_of(USER.uid)


def test_it_is_that_user_and_its_result_and_metrics_are_kept(project: Project):
    script = """
        import os, stoker_trainer as t
        t.step(1, loss=0.5)
        open(os.environ["STOKER_OUT"] + "/who", "w").write(f"{os.getuid()} {os.getgid()} {os.getgroups()}")
        os.symlink("who", os.environ["STOKER_OUT"] + "/inner")
        os.chmod(os.environ["STOKER_OUT"] + "/who", 0o4777)
    """
    ran = project.lab.run(project.plan(SYSTEM_PYTHON, project.script("train.py", script)))
    assert ran.result.error is None
    assert project.files(ran) == {"who": f"{NUMBER} {NUMBER} []", "inner": "-> who"}
    assert list((project.lab.folder / "scratch" / ".quarters").iterdir()) == []
    metrics = list((project.lab.folder / "metrics").glob("*.program.*"))
    assert len(metrics) == 1
    assert (metrics[0].stat().st_uid, metrics[0].stat().st_size > 0) == (0, True)


def test_metrics_in_its_files_are_read_with_its_own_rights(project: Project):
    secret = project.lab.folder / "store" / "metrics.csv"
    secret.write_text("step,secret_loss\n1,0.5\n")
    body = f"""
        umask 077
        printf 'step,loss\\n3,0.25\\n' > $STOKER_OUT/metrics.csv
        ln -s {secret.parent} store
    """
    ran = project.lab.run(project.shell(body, metrics=(str(secret), "store")))
    assert message_of(ran.result.error) == ""
    assert [row for row in project.rows() if "secret" in row[1]] == []
    assert (3, "loss", 0.25) in project.rows()


def test_it_gets_little_of_the_workers_environment_and_a_home_of_its_own(project: Project):
    ran = project.lab.run(project.shell("env > $STOKER_OUT/env; echo $HOME $TMPDIR; touch $HOME/mine $TMPDIR/mine"))
    seen = dict(line.partition("=")[::2] for line in project.files(ran)["env"].splitlines())
    assert "SECRET" not in seen
    assert seen["GRANTED"] == "yes"
    assert (seen["USER"], seen["LOGNAME"], seen["PATH"]) == (USER.name, USER.name, "/usr/bin:/bin")
    assert not os.path.exists(seen["HOME"])


def test_a_library_that_a_job_names_is_not_loaded_before_the_switch(project: Project):
    plan = project.plan("/bin/sh", "-c", "id -u", env={"LD_PRELOAD": "/nowhere/evil.so"})
    project.lab.run(plan)
    # Once by the shell, once by id: not by the shell and the interpreter that run as root before it.
    assert project.lab.log("run").count("evil.so") == 2


def test_a_planted_link_in_the_result_leads_nowhere(project: Project):
    ran = project.lab.run(project.shell("ln -s /etc/shadow $STOKER_OUT/planted"))
    assert "leads out of the folder" in message_of(ran.result.error)


def test_the_result_folder_itself_can_not_be_replaced(project: Project):
    ran = project.lab.run(project.shell("rm -rf $STOKER_OUT; ln -s /etc $STOKER_OUT 2>&1; true"))
    assert "Permission denied" in project.lab.log("run")
    assert os.path.isdir("/etc")
    assert ran["run"] is not None


def test_a_declared_output_behind_a_planted_link_is_read_with_the_jobs_own_rights(project: Project):
    secret = project.lab.folder / "store" / "secret"
    secret.write_text("the worker's")
    ran = project.lab.run(project.shell(f"ln -s {secret.parent} results", outputs=("results/secret",)))
    assert ran.result.error is not None
    assert "results/secret" in message_of(ran.result.error)


def test_a_reported_checkpoint_is_read_with_the_jobs_own_rights(project: Project):
    secret = project.lab.folder / "store" / "secret"
    secret.write_text("the worker's")
    line = json.dumps({"kind": "saved", "path": str(secret), "step": 1})
    ran = project.lab.run(project.shell(f"echo '{line}'; exit 3"))
    assert ran.result.error is not None
    assert f"checkpoint {secret} is not kept" in project.told(ran)
    assert [path for path in (project.lab.folder / "scratch").rglob("*secret*") if path.is_file()] == []


def test_whoever_gets_away_is_ended(project: Project):
    script = "env -i setsid sh -c 'sleep 300 & sleep 300' > /dev/null 2>&1 & echo started"
    ran = project.lab.run(project.shell(script))
    assert ran.result.error is None
    assert not processes_of(USER.uid)


def test_nothing_is_left_for_the_users_next_job_where_everybody_may_write(project: Project):
    place = f"/tmp/stoker-left-{NUMBER}"
    ran = project.lab.run(project.shell(f"mkdir {place}; echo x > {place}/secret; ln -s /etc {place}/link"))
    assert ran.result.error is None
    assert not os.path.exists(place)
    assert os.path.isdir("/etc")


def test_a_checkpoint_is_gone_on_from_by_another_user(project: Project):
    script = """
        import os, stoker_trainer as t
        if t.resume():
            open(os.environ["STOKER_OUT"] + "/from", "w").write(open(t.resume()).read())
        else:
            open("ckpt", "w").write("step 7")
            t.saved("ckpt", step=7)
            raise SystemExit(3)
    """
    plan = project.plan(SYSTEM_PYTHON, project.script("train.py", script))
    first = project.lab.run(plan)
    assert first.result.error is not None
    (scratch,) = [path for path in (project.lab.folder / "scratch").iterdir() if not path.name.startswith(".")]
    assert {path.stat().st_uid for path in (scratch, *scratch.rglob("*"))} == {0}
    run_as(project.lab, OTHER)
    assert project.files(project.lab.run(plan)) == {"from": "step 7"}


def test_it_is_stopped_when_it_is_cancelled(project: Project):
    script = "echo $$ > pid; trap '' TERM; while :; do sleep 0.05; done"
    flight = project.lab.start(project.shell(script), grace_s=0.1)
    wait_until(lambda: (project.folder / "pid").exists() and bool(processes_of(USER.uid)))
    flight.executor.cancel(Cancelled("enough"))
    assert flight.land().endings == {"run": "cancelled"}
    assert not processes_of(USER.uid)


def test_a_folder_that_it_may_not_enter_is_told(project: Project):
    project.folder.chmod(0o700)
    ran = project.lab.run(project.shell("true", how={"retry": RetryPolicy(attempts=1)}))
    assert f"can't enter {project.folder}: Permission denied" in project.lab.log("run")
    assert ran.result.error is not None
