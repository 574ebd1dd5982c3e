"""`stoker gang run`, in the place of `torchrun --standalone`; with torch only where torch is what is tested."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.host.identity import rows
from tests.system.shell import PATIENCE_S, Shell

PYTHON = sys.executable
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks are started otherwise, untested")


def write(shell: Shell, source: str, name: str = "train.py") -> str:
    (shell.folder / name).write_text(source)
    return name


def living(mark: str) -> list[int]:
    """Return the processes that were handed a mark in their environment."""
    found = []
    for row in rows():
        try:
            environ = Path(f"/proc/{row.pid}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environ and row.pid != os.getpid() and not row.is_gone:
            found.append(row.pid)
    return found


def wait_until(holds, what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


def test_every_rank_runs_the_script_as_python_would_with_the_variables_of_torchrun(shell):
    script = write(
        shell,
        "import json, os, sys\n"
        "names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'OMP_NUM_THREADS', 'MASTER_ADDR')\n"
        "print(json.dumps([[os.environ[n] for n in names], sys.argv, sys.path[0], __file__, os.getcwd()]))\n"
        "print('oh', file=sys.stderr)\n",
    )
    done = shell.stoker("gang", "run", "--ranks", "2", "--log-dir", "logs", "--", PYTHON, script, "--lr", "3")
    assert (done.code, sorted(done.err.splitlines())) == (0, ["[rank 0] oh", "[rank 1] oh"])
    folder = str(shell.folder)
    for rank, line in enumerate(sorted(done.out.splitlines())):
        assert line.startswith(f"[rank {rank}] ")
        variables, argv, path, file, cwd = json.loads(line.partition("] ")[2])
        assert variables == [str(rank), str(rank), "2", "2", "1", "127.0.0.1"]
        assert (argv, path, cwd) == (["train.py", "--lr", "3"], folder, folder)
        assert file == f"{folder}/train.py"
        assert (shell.folder / f"logs/rank-{rank}.out").read_text() == line.partition("] ")[2] + "\n"


def test_the_first_rank_that_fails_is_named_with_its_cause_and_the_others_are_ended(shell):
    script = write(
        shell,
        # The last one is at work before another fails, at which it is ended.
        "import os, sys, threading, time\nif os.environ['RANK'] == '1':\n"
        "    while not os.path.exists('up'): time.sleep(0.01)\n    raise RuntimeError('no luck')\n"
        "if os.environ['RANK'] == '2': open('up', 'w').close()\n"
        "threading.Event().wait()\n",
    )
    done = shell.stoker("gang", "run", "--ranks", "3", "--quiet-others", "--", PYTHON, script)
    lines = done.err.splitlines()
    assert done.code == 54
    assert lines[0].startswith("stoker: rank 1 (device 1) failed in RUN after ")
    assert lines[0].endswith(": RuntimeError: no luck")
    assert lines[1] == "Traceback (most recent call last):"
    assert "still pending:" in lines
    assert "  rank 2 (device 2) in RUN" in lines


def test_a_status_that_a_script_asks_for_is_the_cause(shell):
    script = write(shell, "import os, sys\nsys.exit(3 if os.environ['RANK'] == '1' else 0)\n")
    done = shell.stoker("gang", "run", "--ranks", "2", "--json", "--", PYTHON, script)
    assert done.code == 54
    events = done.objects()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["kind"] == "gang_started"
    assert {(event["rank"], event["phase"]) for event in events if event["kind"] == "rank_phase"} >= {(1, "RUN")}
    last = events[-1]
    assert (last["kind"], last["exit_code"], last["data"]["rank"]) == ("gang_failed", 54, 1)
    assert last["message"].endswith(": exit 3")


def test_a_program_that_is_no_script_gets_its_rank_and_its_last_words_are_the_report(shell):
    # The first one speaks before the second one fails, at which it is ended.
    command = (
        "echo from $RANK of $WORLD_SIZE; test $RANK = 0 && { touch said; exec sleep 60; }; "
        "until test -e said; do sleep 0.01; done; echo sorry >&2; exit 9"
    )
    done = shell.stoker("gang", "run", "--ranks", "2", "--no-prefix", "--", "sh", "-c", command)
    assert done.code == 54
    assert sorted(done.out.splitlines()) == ["from 0 of 2", "from 1 of 2"]
    assert "rank 1 (device 1) failed in RUN" in done.err
    assert "exit status 9" in done.err
    assert "last output of rank 1 on standard error:\n  sorry" in done.err


def test_an_interpreter_that_is_not_ours_runs_the_script_and_tells_of_it_too(shell):
    script = write(shell, "import os\nassert __debug__, 'optimised'\nprint(1 / int(os.environ['RANK']))\n")
    # With options it is started for each rank, as a foreign one is.
    done = shell.stoker("gang", "run", "--ranks", "2", "--", PYTHON, "-W", "error", script)
    assert done.code == 54
    assert "rank 0 (device 0) failed in RUN" in done.err
    assert "ZeroDivisionError: division by zero" in done.err
    assert "script_boot" not in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--ranks", "0", "--", "python", "train.py"], 2, "'0' is neither a number from 1 to 1,024 nor auto"),
        (["--ranks=-2", "--", "python", "train.py"], 2, "neither a number"),
        (["--ranks", "10000", "--", "python", "train.py"], 2, "1,024"),
        (["--ranks", "2", "--", PYTHON, "nowhere.py"], None, "there is no script nowhere.py"),
        (["--ranks", "2", "--", "no-such-program"], None, "there is no program no-such-program"),
        (["--ranks", "2"], 2, "no program after --"),
        (["--ranks", "2", "train.py"], 2, "-- python train.py"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_starts(shell, words, code, said):
    done = shell.stoker("gang", "run", *words)
    assert said in done.err
    assert done.code == code if code is not None else done.code not in (0, 54, 70)


def test_the_run_that_started_it_is_told_why_nothing_could_start(shell):
    control = shell.folder / "control"
    shell.stoker("gang", "run", "--ranks", "2", "--", PYTHON, "nowhere.py", STOKER_CONTROL=str(control))
    assert json.loads(control.read_text()) == {"kind": "failed", "message": "there is no script nowhere.py"}


def test_output_that_can_not_be_written_is_told_and_the_ranks_go_on(shell):
    words = [PYTHON, "-P", "-m", "stoker", "gang", "run", "--ranks", "2", "--", "sh", "-c", "echo a; sleep .1; echo b"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            words, cwd=shell.folder, env=shell.env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "stoker: can't write to standard output: No space left on device\n")


def test_unless_told_there_is_a_rank_for_each_gpu(shell):
    done = shell.stoker("gang", "run", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE", STOKER_GPU_FAKE="cuda:2x24GiB")
    assert sorted(done.out.splitlines()) == ["[rank 0] 0 of 2", "[rank 1] 1 of 2"]


def test_gang_alone_lists_what_there_is_and_help_has_examples(shell):
    assert "stoker gang run" in shell.stoker("gang").out
    assert "stoker gang run --ranks 8 -- python train.py" in shell.stoker("gang", "run", "--help").out


def test_a_run_of_a_program_as_ranks_is_a_run_like_any_other(shell):
    script = write(
        shell,
        "import os, pathlib\nrank = int(os.environ['RANK'])\nprint(f'step=1 loss={rank}.5')\n"
        "pathlib.Path(os.environ['STOKER_OUT'], f'{rank}.txt').write_text('mine')\n",
    )
    done = shell.stoker("run", "--ranks", "2", "--name", "both", "--", PYTHON, script)
    assert done.code == 0, done.err
    assert "loss 0.5" in done.out
    assert sorted(path.name for path in (shell.folder / "stoker-out/both").glob("*.txt")) == ["0.txt", "1.txt"]
    assert "[rank 1] step=1 loss=1.5" in shell.stoker("logs", "both").out


def test_a_run_whose_rank_fails_names_it(shell):
    script = write(shell, "import os\nassert os.environ['RANK'] == '0', 'not mine'\n")
    done = shell.stoker("run", "--ranks", "2", "--", PYTHON, script)
    assert done.code == 1
    assert "rank 1 (device 1) failed in RUN" in done.err
    assert "AssertionError: not mine" in done.err


WAITS = (
    "import os, sys, time\n"
    "rank = os.environ['RANK']\n"
    "try:\n    print('up', rank, flush=True)\n    for _ in range(1200): time.sleep(0.05)\n"
    "except KeyboardInterrupt:\n    print('bye', rank, flush=True)\n    sys.exit(7)\n"
)


def begin(shell: Shell, mark: str, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [PYTHON, "-P", "-m", "stoker", "gang", "run", "--ranks", "2", *words],
        cwd=shell.folder,
        env={**shell.env, "MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert {process.stdout.readline(), process.stdout.readline()} == {"[rank 0] up 0\n", "[rank 1] up 1\n"}
    return process


def test_an_interrupt_reaches_every_rank_once_and_is_the_answer(shell, tmp_path):
    with begin(shell, str(tmp_path), "--", PYTHON, write(shell, WAITS)) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert sorted(out.splitlines()) == ["[rank 0] bye 0", "[rank 1] bye 1"]
    assert "Traceback" not in err
    assert not living(str(tmp_path))


@pytest.mark.timing
def test_a_second_interrupt_ends_ranks_that_do_not_listen_at_once(shell, tmp_path):
    stubborn = "import signal\nsignal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n" + WAITS
    with begin(shell, str(tmp_path), "--", PYTHON, write(shell, stubborn)) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().endswith("no\n")
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert time.monotonic() - began_s < 5
    wait_until(lambda: not living(str(tmp_path)), "ranks are left")


def test_a_request_to_end_is_passed_on_and_is_the_answer(shell, tmp_path):
    with begin(shell, str(tmp_path), "--", PYTHON, write(shell, WAITS)) as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert not living(str(tmp_path))


@pytest.mark.parametrize("program", [[PYTHON, "train.py"], ["sh", "-c", "echo up $RANK; sleep 60 & wait"]])
def test_ranks_and_what_they_started_go_with_a_launcher_that_is_killed(shell, tmp_path, program):
    write(shell, WAITS)
    with begin(shell, str(tmp_path), "--", *program) as process:
        assert len(living(str(tmp_path))) >= 3
        process.kill()
    wait_until(lambda: not living(str(tmp_path)), "ranks are left")


GROUP = (
    "import os\nimport torch\nfrom torch import distributed\n"
    "distributed.init_process_group('gloo')\n"
    "rank = distributed.get_rank()\n"
    "x = torch.tensor([rank + 1])\ndistributed.all_reduce(x)\nprint('sum', int(x), torch.get_num_threads())\n"
    "distributed.destroy_process_group()\n"
    "distributed.init_process_group('gloo', init_method='env://')\ndistributed.barrier()\n"
    "distributed.destroy_process_group()\n"
    # Who meets by address has the port to himself.
    "place = 'tcp://127.0.0.1:' + os.environ['MASTER_PORT']\n"
    "distributed.init_process_group('gloo', init_method=place, rank=rank, world_size=2)\ndistributed.barrier()\n"
    "raise SystemExit(rank and 'rank 1 is through')\n"
)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_group_of_torch_meets_without_a_port_or_by_one_and_its_phases_are_seen(shell):
    done = shell.stoker("gang", "run", "--ranks", "2", "--json", "--", PYTHON, write(shell, GROUP))
    events = done.objects()
    said = sorted(event["text"] for event in events if event["kind"] == "rank_said" and event["stream"] == "stdout")
    assert said == ["sum 3 1", "sum 3 1"], done.err
    phases = {(event["rank"], event["phase"]) for event in events if event["kind"] == "rank_phase"}
    assert phases >= {(rank, phase) for rank in (0, 1) for phase in ("COMM", "READY", "RUN")}
    assert events[-1]["data"]["text"] == "rank 1 is through"


def test_a_rank_that_does_not_come_to_the_group_is_named_when_the_time_is_over(shell):
    # As torch is laid out, and as long in joining as anybody likes.
    package = shell.folder / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("from .distributed_c10d import *\n")
    (package / "distributed_c10d.py").write_text(
        "import threading\ndef init_process_group(backend=None, init_method=None):\n    threading.Event().wait()\n"
    )
    # The first one joins once the other one's script has begun: opening such a pipe waits for the other end.
    os.mkfifo(shell.folder / "begun")
    script = write(
        shell,
        "import os, threading\nfrom torch import distributed\n"
        "if os.environ['RANK'] == '1':\n    open('begun', 'w')\n    threading.Event().wait()\n"
        "open('begun')\n"
        "distributed.init_process_group('gloo', init_method='tcp://nowhere')\n",
    )
    done = shell.stoker("gang", "run", "--ranks", "2", "--timeout", "0.1s", "--", PYTHON, "-B", script)
    assert done.code == 55
    assert "rank 1 (device 1) is silent in RUN" in done.err
    assert "rank 0 (device 0) in COMM" in done.err
