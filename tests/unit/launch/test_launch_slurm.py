"""Slurm: the scripts that are sent, what its commands print and what that means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.core.errors import InternalError, LaunchDoubtful, LaunchRefused, NoBackend, StokerError
from stoker.core.frozen import changed
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, PoolBackend, PoolGpu, PoolShape
from stoker.devices.checkup import CheckStatus
from stoker.host.command_runner import LIMIT_S, ProbeFailure, ProbeOutput, Reply, SubprocessRunner
from stoker.launch.commands import WITHOUT_OPTIONS, HostCommands
from stoker.launch.launchers import MOST_TOGETHER
from stoker.launch.slurm import SlurmLauncher, limit_s, read_queue
from tests.unit.launch.golden_scripts import same_as_golden

POOL = Pool(
    name="a100",
    backend=PoolBackend.SLURM,
    via="login.example.org",
    each=PoolShape(cpu_cores=8, ram_mb=65_536, gpus=(PoolGpu(type="a100", vram_mb=40_960),) * 2),
    options={"partition": "gpu", "account": "lab7", "exclusive": ""},
    setup=("module load python/3.11", "export X='a \"b\" $c'"),
    folder="/shared/lab7/stoker",
    python="/shared/lab7/venv/bin/python",
)
ONE = Allocation(id="7f3a2c", pool="a100")
THREE = [ONE, Allocation(id="000001", pool="a100"), Allocation(id="abcdef", pool="a100")]


class Scripted:
    """Replies by the command's name; what was sent is in `sent`."""

    def __init__(self, **replies: Reply) -> None:
        self._replies = replies
        self.sent: list[tuple[str, str]] = []

    def ask(self, argv: Sequence[str], *, limit_s: float = LIMIT_S, stdin: str = "") -> Reply:
        argv = argv[len(WITHOUT_OPTIONS) :] if tuple(argv[: len(WITHOUT_OPTIONS)]) == WITHOUT_OPTIONS else argv
        self.sent.append((" ".join(argv), stdin))
        program = next(word for word in argv if word != "env" and "=" not in word)
        return self._replies.get(program, ProbeOutput(out=""))

    def ask_all(self, commands: Sequence[Sequence[str]], *, limit_s: float = LIMIT_S) -> tuple[Reply, ...]:
        return tuple(self.ask(argv) for argv in commands)


def launcher(**replies: Reply) -> tuple[SlurmLauncher, Scripted]:
    runner = Scripted(**replies)
    return SlurmLauncher(HostCommands(runner, control_folder="/none"), folder="/run", python="/p"), runner


def here() -> Pool:
    return changed(POOL, via="")


@pytest.mark.parametrize(("name", "allocations"), [("slurm_one.sh", [ONE]), ("slurm_array.sh", THREE)])
def test_the_script_is_the_golden_one(name: str, allocations: list[Allocation]) -> None:
    rendered = launcher()[0].render(POOL, allocations, fleet="4c1d")
    assert (rendered.where, rendered.argv) == ("login.example.org", ("sbatch", "--parsable"))
    assert dict(rendered.files) == {
        f"/shared/lab7/stoker/4c1d/{one.id}.ticket": f"{{ticket:{one.id}}}" for one in allocations
    }
    same_as_golden(name, rendered.stdin)


def test_without_a_folder_the_login_hosts_home_has_tickets_and_logs() -> None:
    rendered = launcher()[0].render(changed(POOL, folder=""), THREE, fleet="4c1d")
    base = ".local/state/stoker/slurm/4c1d"
    assert list(rendered.files) == [f"~/{base}/{one.id}.ticket" for one in THREE]
    assert f"--output={base}/%A_%a.log" in rendered.stdin
    assert f'"$HOME"/{base}/"${{ids[$SLURM_ARRAY_TASK_ID]}}.ticket"' in rendered.stdin


def test_what_is_rendered_is_what_is_sent_and_tickets_go_by_standard_input() -> None:
    slurm, runner = launcher(sbatch=ProbeOutput(out="12;cluster\n"))
    rendered = slurm.render(here(), THREE, fleet="4c1d")
    ids = slurm.submit(rendered, {one.id: f"secret {one.id}\n" for one in THREE})
    assert ids == {"7f3a2c": "12_0", "000001": "12_1", "abcdef": "12_2"}
    (write, tickets), (submit, script) = runner.sent
    assert (write, submit, script) == ("sh -s", "sbatch --parsable", rendered.stdin)
    assert "umask 077" in tickets
    assert tickets.count("secret") == 3
    assert "secret" not in script


@pytest.mark.parametrize("is_far", [False, True])
def test_no_command_of_slurm_sees_options_in_variables(is_far: bool, tmp_path: Path) -> None:
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "me"}
    options = {
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_JOB_NAME": "x",
        "SBATCH_WAIT": "",
        "SBATCH_REQUEUE": "1",
        "SQUEUE_PARTITION": "p",
        "SQUEUE_FORMAT": "a b\nSQUEUE_X=1;id",
        "SCANCEL_STATE": "PENDING",
        "SACCT_LOCAL": "1",
        "SLURM_CLUSTERS": "c2",
        "SLURM_TIMELIMIT": "1",
        "SLURM_JOB_ID": "7",
    }
    for program in ("sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo"):
        (tmp_path / program).write_text('#!/bin/sh\necho "$0" "$@"\nenv\ncat\n')
        (tmp_path / program).chmod(0o755)
    # As sshd: a shell of the user reads the command, with the variables of that host.
    far = '#!/bin/sh\n[ "$1" != -G ] || exit 0\nfor last; do :; done\nexec /bin/sh -c "$last"\n'
    (tmp_path / "ssh").write_text(far)
    (tmp_path / "ssh").chmod(0o755)
    runner = SubprocessRunner({"PATH": f"{tmp_path}:/usr/bin:/bin", **kept, **options}, language=None)
    commands = HostCommands(runner, control_folder=str(tmp_path / "c"))
    for program in ("sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo"):
        argv = ["env", "SLURM_TIME_FORMAT=%s", program, "--a b", "$c"]
        printed = commands.read("login" if is_far else "", argv, stdin="the script").out
        assert printed.startswith(f"{tmp_path / program} --a b $c\n")
        assert printed.endswith("the script")
        found = {line.partition("=")[0] for line in printed.splitlines()}
        assert found & (kept.keys() | options.keys()) == kept.keys()
        assert "SLURM_TIME_FORMAT=%s" in printed
    # Other programs see them.
    assert commands.read("login" if is_far else "", ["sh", "-c", "env"]).out.count("\nSBATCH_") == 4


def test_tickets_are_written_in_the_folder_that_was_checked(tmp_path: Path) -> None:
    folder = tmp_path / "pool/4c1d"
    tools = tmp_path / "tools"
    tools.mkdir()
    # Another user replaces the folder while it is checked.
    swap = f"[ -e {folder}.checked ] || {{ mv {folder} {folder}.checked; mkdir {folder}; }}"
    (tools / "id").write_text(f'#!/bin/sh\n{swap}\nexec /usr/bin/id "$@"\n')
    (tools / "id").chmod(0o755)
    (tools / "sbatch").write_text("#!/bin/sh\necho 5\n")
    (tools / "sbatch").chmod(0o755)
    runner = SubprocessRunner({"PATH": f"{tools}:/usr/bin:/bin"})
    made = SlurmLauncher(HostCommands(runner, control_folder="/none"), folder=str(folder.parent), python="/p")
    rendered = made.render(changed(POOL, via="", folder=""), [ONE], fleet="4c1d")
    made.submit(rendered, {ONE.id: "secret"})
    assert [one.name for one in folder.iterdir()] == []
    assert (tmp_path / f"pool/4c1d.checked/{ONE.id}.ticket").read_text() == "secret\n"


def test_tickets_are_not_written_below_a_folder_that_others_may_write(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    commands = HostCommands(SubprocessRunner({"PATH": "/usr/bin:/bin"}), control_folder="/none")
    made = SlurmLauncher(commands, folder=str(shared / "pool"), python="/p")
    rendered = made.render(changed(POOL, via="", folder=""), THREE, fleet="4c1d")
    with pytest.raises(LaunchRefused, match=rf"others may write in {shared} \(mode 777\)"):
        made.submit(rendered, {one.id: "secret" for one in THREE})
    assert list((shared / "pool/4c1d").iterdir()) == []


def test_one_request_holds_a_bounded_number() -> None:
    many = [Allocation(id=f"{number:06x}", pool="a100") for number in range(MOST_TOGETHER + 1)]
    for wrong in (many, []):
        with pytest.raises(InternalError):
            launcher()[0].render(POOL, wrong, fleet="4c1d")


def failed(text: str, exit_code: int = 1) -> ProbeOutput:
    return ProbeOutput(out="", err=f"sbatch: error: Batch job submission failed: {text}\n", exit_code=exit_code)


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        (failed("Socket timed out on send/recv operation"), LaunchDoubtful, "Socket timed out"),
        (ProbeFailure(why="sbatch timed out after 90 s", code="probe_timeout"), LaunchDoubtful, "90 s"),
        (ProbeOutput(out="maintenance today\n"), LaunchDoubtful, "maintenance"),
        (failed("Unable to contact slurm controller (connect failure)"), NoBackend, "connect failure"),
        (failed("Invalid partition name specified"), LaunchRefused, "Invalid partition name"),
        (failed("not found", 127), NoBackend, "not found"),
        (ProbeFailure(why="sbatch: no such file", code="probe_missing"), NoBackend, "sbatch not found"),
    ],
)
def test_a_refusal_and_a_lost_answer_are_told_apart(reply: Reply, kind: type[StokerError], text: str) -> None:
    slurm, _ = launcher(sbatch=reply)
    with pytest.raises(kind, match=text) as raised:
        slurm.submit(slurm.render(here(), [ONE], fleet="4c1d"), {ONE.id: "t"})
    assert type(raised.value) is kind
    if kind is LaunchRefused:
        assert "sinfo" in raised.value.hint


HEADING = "JOBID|STATE|START_TIME|END_TIME|REASON|NAME|COMMENT\n"
QUEUE = f"""\
Welcome to login1
{HEADING}\
7|PENDING|1794991500|N/A|Priority|stoker-a100-7f3a2c|stoker:4c1d:7f3a2c
8_0|RUNNING|1794991300|1795005700|None|stoker-a100-000001|stoker:4c1d:000001,000002
8_1|CANCELLED|1794991300|1794991306|None|stoker-a100-000001|stoker:4c1d:000001,000002
9|OUT_OF_MEMORY|1794991300|1794991306|OutOfMemory|stoker-a100-000003|stoker:4c1d:000003
10|FAILED|1794991300|1794991306|NonZeroExitCode|stoker-a100-000004|stoker:4c1d:000004
11|PREEMPTED|1794991300|1794991306|None|stoker-a100-000005|stoker:4c1d:000005
12|SOMETHING_NEW|1794991300|N/A|None|stoker-a100-000006|stoker:4c1d:000006
13|COMPLETING|1794991300|1794991306|None|stoker-a100-00000a|stoker:4c1d:00000a
20|RUNNING|1|2|None|stoker-a100-b-000007|stoker:4c1d:000007
21|RUNNING|1|2|None|stoker-a100-000008|stoker:ffff:000008
22|RUNNING|1|2|None|mine|a|b|c
23_9|RUNNING|1|2|None|stoker-a100-000009|stoker:4c1d:000009
the second line of a comment
"""


def test_the_queue_is_read_by_label_name_and_place_in_the_array() -> None:
    seen = {one.id: one for one in read_queue(QUEUE, POOL, fleet="4c1d")}
    assert {id: (one.backend_id, one.state, one.cause) for id, one in seen.items()} == {
        "7f3a2c": ("7", AllocationState.WAITING, None),
        "000001": ("8_0", AllocationState.STARTED, None),
        "000002": ("8_1", AllocationState.ENDED, AllocationCause.CANCELLED_THERE),
        "000003": ("9", AllocationState.ENDED, AllocationCause.OUT_OF_MEMORY),
        "000004": ("10", AllocationState.ENDED, AllocationCause.FAILED),
        "000005": ("11", AllocationState.ENDED, AllocationCause.PREEMPTED),
        "000006": ("12", AllocationState.STARTED, None),
        "00000a": ("13", AllocationState.DRAINING, None),
    }
    assert (seen["7f3a2c"].reason, seen["7f3a2c"].may_start_s) == ("Priority", 1794991500)
    assert (seen["000001"].ends_s, seen["000002"].ends_s) == (1795005700, None)
    assert seen["000004"].reason == "FAILED NonZeroExitCode"
    assert seen["000006"].reason == "SOMETHING_NEW"


def test_what_left_the_queue_is_asked_of_the_accounting_and_else_is_over() -> None:
    known = [changed(ONE, backend_id="7"), changed(THREE[1], backend_id="8_1"), changed(THREE[2], backend_id="9")]
    record = "7|CANCELLED by 1000|0:15\n8_1|OUT_OF_MEMORY|0:125\n"
    empty = ProbeOutput(out=HEADING)
    slurm, runner = launcher(squeue=empty, sacct=ProbeOutput(out=record))
    seen = {one.id: one for one in slurm.look(here(), fleet="4c1d", known=known)}
    assert [seen[one.id].cause for one in known] == [
        AllocationCause.CANCELLED_THERE,
        AllocationCause.OUT_OF_MEMORY,
        None,
    ]
    assert {one.state for one in seen.values()} == {AllocationState.ENDED}
    assert [one.id for one in seen.values() if one.is_lost] == [THREE[2].id]
    assert runner.sent[-1][0].endswith("--jobs=7,8_1,9")
    for reply in (
        ProbeOutput(out="", err="Slurm accounting storage is disabled", exit_code=1),
        ProbeFailure(why="sacct: no such file", code="probe_missing"),
    ):
        seen_without = launcher(squeue=empty, sacct=reply)[0].look(here(), fleet="4c1d", known=known)
        assert [(one.is_lost, one.cause) for one in seen_without] == [(True, None)] * 3


def test_a_look_without_surprises_is_one_command() -> None:
    waiting = "7|PENDING|1794991500|N/A|Priority|stoker-a100-7f3a2c|stoker:4c1d:7f3a2c\n"
    slurm, runner = launcher(squeue=ProbeOutput(out=HEADING + waiting))
    slurm.look(here(), fleet="4c1d", known=[changed(ONE, backend_id="7")])
    assert len(runner.sent) == 1


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("75:0", AllocationCause.FINISHED),
        ("143:0", AllocationCause.PREEMPTED),
        ("0:15", AllocationCause.PREEMPTED),
        ("1:0", AllocationCause.FAILED),
        ("", AllocationCause.FAILED),
    ],
)
def test_a_worker_that_left_when_slurm_told_it_to_has_not_failed(code: str, cause: AllocationCause) -> None:
    line = "10|FAILED|1794991300|1794991306|NonZeroExitCode|stoker-a100-7f3a2c|stoker:4c1d:7f3a2c\n"
    shown = ProbeOutput(out=f"JobId=10 JobState=FAILED ExitCode={code} x=y\n")
    slurm, runner = launcher(squeue=ProbeOutput(out=HEADING + line), scontrol=shown)
    for _ in range(2):
        (seen,) = slurm.look(here(), fleet="4c1d")
        assert seen.cause is cause
    assert [words.split()[0] for words, _ in runner.sent].count("scontrol") == 1
    record = f"10|FAILED|{code}\n"
    (seen,) = launcher(squeue=ProbeOutput(out=HEADING), sacct=ProbeOutput(out=record))[0].look(
        here(), fleet="4c1d", known=[changed(ONE, backend_id="10")]
    )
    assert seen.cause is cause


def test_a_controller_that_does_not_answer_ends_nothing() -> None:
    slurm, _ = launcher(squeue=ProbeOutput(out="", exit_code=1))
    with pytest.raises(NoBackend, match="squeue: exit 1, and no message") as caught:
        slurm.look(here(), fleet="4c1d")
    assert caught.value.hint == "run it yourself: squeue --me"
    slurm, _ = launcher(squeue=ProbeOutput(out="", err="slurm_load_jobs error: Unable to contact", exit_code=1))
    with pytest.raises(NoBackend, match="Unable to contact"):
        slurm.look(here(), fleet="4c1d", known=[changed(ONE, backend_id="7")])
    for garbage in ("", "\n", "\ufffd|\x00|" * 500, "maintenance until noon\n"):
        with pytest.raises(NoBackend, match="no list of jobs"):
            launcher(squeue=ProbeOutput(out=garbage))[0].look(
                here(), fleet="4c1d", known=[changed(ONE, backend_id="7")]
            )


def test_cancelling_what_is_over_is_no_error_and_other_trouble_is() -> None:
    gone = "scancel: error: Kill job error on job id 7: Invalid job id specified\n"
    launcher(scancel=ProbeOutput(out="", err=gone, exit_code=1))[0].cancel(here(), ["7"])
    denied = "scancel: error: Kill job error on job id 8: Access/permission denied\n"
    with pytest.raises(NoBackend, match="permission denied"):
        launcher(scancel=ProbeOutput(out="", err=gone + denied, exit_code=1))[0].cancel(here(), ["7", "8"])
    slurm, runner = launcher(squeue=ProbeOutput(out="8_0\n8_1\n9\n"))
    slurm.cancel(here(), ["7", "8_1"], is_gentle=True)
    slurm.cancel(here(), ["7"])
    assert [words for words, _ in runner.sent] == [
        "squeue --me --noheader --array --states=PENDING --format=%i",
        "scancel 8_1",
        "scancel --state=RUNNING --signal=TERM 7 8_1",
        "scancel 7",
    ]
    # It is tried again: a worker that was signalled would stop at once.
    slurm, runner = launcher(squeue=ProbeOutput(out="", err="slurmctld does not answer", exit_code=1))
    with pytest.raises(NoBackend, match="squeue"):
        slurm.cancel(here(), ["7"], is_gentle=True)
    assert [words.split()[0] for words, _ in runner.sent] == ["squeue"]
    for id in ("", "-u root", "7;id", "$(id)"):
        with pytest.raises(InternalError):
            launcher()[0].cancel(here(), [id])


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ("gpu|infinite\nmain*|1:00\n", CheckStatus.OK),
        ("gpu|1-00:00:00\n", CheckStatus.OK),
        ("gpu*|4:00:00\n", CheckStatus.OK),
        ("gpu|3:59:59\nmain*|infinite\n", CheckStatus.BAD),
        ("main*|infinite\n", CheckStatus.BAD),
        ("", CheckStatus.BAD),
    ],
)
def test_a_time_limit_that_the_partition_does_not_allow_is_found_before(limits: str, verdict: CheckStatus) -> None:
    slurm, _ = launcher(sinfo=ProbeOutput(out=limits))
    (found,) = [one for one in slurm.check(here()) if one.name == "limits"]
    assert found.verdict is verdict


def test_a_host_without_slurms_configuration_is_not_reached() -> None:
    error = "sbatch: error: Could not establish a configuration source"
    slurm, _ = launcher(sbatch=ProbeOutput(out="", err=error, exit_code=1))
    (found,) = [one for one in slurm.check(here()) if one.name == "reached"]
    assert (found.verdict, "SLURM_CONF" in found.hint) == (CheckStatus.BAD, True)
    assert "Could not establish a configuration source" in found.message


def test_time_limits_of_slurm_are_read() -> None:
    assert [limit_s(text) for text in ("1:00", "2:00:00", "1-01:00:01", "infinite", "n/a", "")] == [
        *(60.0, 7200.0, 90_001.0),
        *(None, None, None),
    ]


def test_ids_of_another_backend_are_left_out_and_no_id_is_endless() -> None:
    foreign = changed(ONE, backend_id="abcdef")
    slurm, runner = launcher(squeue=ProbeOutput(out=HEADING))
    slurm.clean(here(), [foreign, changed(THREE[1], backend_id="7")])
    assert "abcdef" not in runner.sent[-1][1]
    assert "*/7.log" in runner.sent[-1][1]
    assert slurm.log(here(), foreign) == ""
    assert [one.is_lost for one in slurm.look(here(), fleet="4c1d", known=[foreign])] == [True]
    slurm, _ = launcher(sbatch=ProbeOutput(out="1" * 5000))
    with pytest.raises(LaunchDoubtful, match="no id"):
        slurm.submit(slurm.render(here(), [ONE], fleet="4c1d"), {ONE.id: "t"})


def test_folders_of_the_user_are_not_removed(tmp_path: Path) -> None:
    slurm = SlurmLauncher(
        HostCommands(SubprocessRunner({"PATH": "/usr/bin:/bin"}), control_folder="/none"), folder="/none", python="/p"
    )
    for name in ("0123abcd", "results", "4c1d"):
        (tmp_path / name).mkdir()
    (tmp_path / "0123abcd" / f"{ONE.id}.ticket").touch()
    slurm.clean(changed(here(), folder=str(tmp_path)), [changed(ONE, backend_id="7")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4c1d", "results"]
