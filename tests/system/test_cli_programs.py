"""Any program, through the command line: found, run by the user's own Python, named when it fails, and never left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from stoker.host.resources import own_group
from tests.system.shell import Done, Shell, alive, descendants, finish, wait_until

# Started quickly, and by a name that means no environment.
PYTHON = ("/usr/bin/env", sys.executable, "-S")


@pytest.fixture
def work(shell: Shell) -> Shell:
    """A shell whose `python` is ours, as that of a user's project would be."""
    venv = shell.folder / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    _script(venv / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    shell.env.pop("VIRTUAL_ENV", None)
    shell.env.pop("PYTHONPATH", None)
    return shell


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)


def run(shell: Shell, *words: str, **env: str) -> Done:
    return shell.stoker("run", *words, **env)


def test_a_program_is_run_unchanged_and_its_result_is_laid_out(work: Shell) -> None:
    _script(
        work.folder / "train.py",
        """
        import os, sys
        lr = float(sys.argv[sys.argv.index("--lr") + 1])
        for step in range(10):
            print(f"step={step} loss={lr * (10 - step):.4f}")
        open(os.environ["STOKER_OUT"] + "/model.txt", "w").write(str(lr))
        """,
    )
    done = run(work, "lr=1e-2", "--", "python", "train.py", "--lr", "{lr}")
    assert done.code == 0, done.err
    assert "loss 0.01" in done.out
    assert (work.folder / "stoker-out/train/model.txt").read_text() == "0.01"
    assert work.stoker("logs", "train").out.count("loss=") == 10
    assert work.staged() == []
    assert not (work.home / "scratch").exists() or not any((work.home / "scratch").iterdir())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-program"], 16, "there is no program no-such-program"),
        (["python", "none.py"], 16, "there is no script none.py"),
        (["python3", "-u", "none.py"], 16, "there is no script none.py"),
        (["sh", "-c", "echo broken >&2; exit 3"], 1, "exit 3: broken"),
        (["sh", "-c", "kill -KILL $$"], 45, "died by signal 9 (SIGKILL)"),
        (["sh", "-c", "echo 'cp: No space left on device' >&2; exit 1"], 10, "No space left on device"),
        (["python", "-c", "raise ValueError('loss is nan')"], 1, "exit 1: ValueError: loss is nan (<string>:1)"),
    ],
)
def test_every_bad_end_has_its_message_and_its_exit_code(work: Shell, words: list[str], code: int, said: str) -> None:
    done = run(work, "--", *words)
    assert done.code == code, done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert work.staged() == []


def test_what_is_not_there_is_refused_before_any_trial_starts(work: Shell) -> None:
    done = run(work, "tool=./first,./none", "--", "{tool}")
    assert done.code == 16
    _script(work.folder / "first", "#!/bin/sh\ntouch started\n")
    done = run(work, "tool=./first,./none", "--", "{tool}")
    assert done.code == 16
    assert "there is no program ./none" in done.err
    assert not (work.folder / "started").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["memory=lots", "--", "true"], "memory: 'lots' is not a size"),
        (["timeout=0s", "silence=0s", "--", "true"], "timeout: '0s' is not a positive time"),
        (["--", "echo", "{lr}"], "{lr}: nothing gives it a value"),
        (["python=nowhere", "--", "python", "-V"], "there is no Python at nowhere"),
    ],
)
def test_settings_that_make_no_sense_are_refused(work: Shell, words: list[str], said: str) -> None:
    done = run(work, *words)
    assert done.code not in (0, 1, 70), done.err
    assert said in done.err


def test_settings_reach_the_program_as_they_were_typed(work: Shell) -> None:
    _script(work.folder / "say", '#!/bin/sh\nprintf "%s\\n" "$@" "$DEBUG" "$STOKER_PARAMS" > $STOKER_OUT/said\n')
    words = ["--lr={lr}", '{"optim":{"lr":{lr},"name":"{opt}"}}', "{{lr}}", "${HOME}", "{empty}|", "{text}"]
    done = run(work, "lr=1e-3", "opt=adam", "empty=''", "text=007", "env.DEBUG=1", "--", "./say", *words)
    assert done.code == 0, done.err
    *said, params = (work.folder / "stoker-out/say/said").read_text().splitlines()
    assert said == ["--lr=1e-3", '{"optim":{"lr":1e-3,"name":"adam"}}', "{lr}", "${HOME}", "|", "007", "1"]
    assert json.loads(params)["lr"] == 0.001


def test_a_program_knows_its_job(work: Shell) -> None:
    say = ["--name", "mine", "--json", "--", "sh", "-c", 'echo "$STOKER_JOB $STOKER_JOB_NAME" > $STOKER_OUT/job']
    done = run(work, *say)
    assert done.code == 0, done.err
    (shown,) = work.stoker("jobs", "show", "mine", "--json").objects()
    assert (work.folder / "stoker-out/mine/job").read_text() == f"{shown['job_id']} mine\n"
    done = run(work, "lr=1,2", *say)
    assert done.code == 0, done.err
    jobs = [(work.folder / f"stoker-out/mine/lr={lr}/job").read_text().split() for lr in (1, 2)]
    lines = work.stoker("jobs", "show", "mine", "--json").objects()[0]["journal"]
    trials = (Path(lines).parent / "trials.jsonl").read_text().splitlines()
    assert [job for job, _ in jobs] == [json.loads(trial)["job_id"] for trial in trials]
    assert {name for _, name in jobs} == {"mine"}


def test_python_is_the_users_and_the_one_that_was_asked_for(work: Shell, tmp_path: Path) -> None:
    for name in ("on-path", "named", "active"):
        _script(tmp_path / name / "bin" / "python", f'#!/bin/sh\necho "{name}" > $STOKER_OUT/which\n')
    path = os.pathsep.join([str(tmp_path / "on-path/bin"), work.env["PATH"]])

    def which(*words: str, **env: str) -> str:
        done = run(work, *words, "--", "python", "x", **env)
        assert done.code == 0, done.err
        return (work.folder / "stoker-out/python/which").read_text().strip()

    assert which(VIRTUAL_ENV=str(tmp_path / "active"), PATH=path) == "active"
    assert which(f"python={tmp_path}/named/bin/python", PATH=path) == "named"
    (work.folder / ".venv").rename(work.folder / "elsewhere")
    assert which(PATH=path) == "on-path"
    done = run(work, "--", "python", "x", PATH="/nowhere")
    assert done.code == 16
    assert "there is no program python" in done.err
    assert f"Stoker's own is {sys.executable}" in done.err


SAYS_WHICH = "import os, sys\nopen(os.environ['STOKER_OUT'] + '/which', 'w').write(sys.executable)\n"


def _interpreter_shown(done: Done) -> str:
    """Return what the first line of a run says of the interpreter."""
    assert done.code == 0, done.err
    return done.out.splitlines()[0].partition("; python = ")[2]


@pytest.mark.parametrize("word", ["python", "python3", "venv/bin/python", "./venv/bin/python3"])
def test_the_first_line_names_the_interpreter_that_runs(shell: Shell, word: str) -> None:
    venv = shell.folder / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to(os.path.realpath(sys.executable))
    shell.env.pop("VIRTUAL_ENV", None)
    (shell.folder / "train.py").write_text(SAYS_WHICH)
    shown, _, why = _interpreter_shown(run(shell, "--", word, "train.py")).partition(" (")
    assert why == ("" if "/" in word else "venv of this folder)")
    which = (shell.folder / "stoker-out/train/which").read_text()
    assert os.path.normpath(shell.folder / shown) == os.path.normpath(which)


def test_the_first_line_names_the_interpreter_of_a_script(work: Shell, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))
    path = os.pathsep.join([str(tmp_path / "bin"), work.env["PATH"]])
    _script(work.folder / "train.py", "#!/usr/bin/env python3\n" + SAYS_WHICH)
    shown = _interpreter_shown(run(work, "--", "./train.py", PATH=path))
    assert shown == f"{(work.folder / 'stoker-out/train/which').read_text()} (first line of train.py)"


@pytest.mark.parametrize("launcher", ["uv run", "poetry run", "conda run", "accelerate launch", "torchrun", "env"])
def test_the_first_line_names_no_interpreter_that_a_launcher_would_choose(work: Shell, launcher: str) -> None:
    word, *rest = launcher.split()
    _script(work.folder / ".venv/bin" / word, f"#!{sys.executable}\n")
    done = run(work, "--", word, *rest, "python", "train.py")
    assert done.code == 0, done.err
    assert "python =" not in done.out


@pytest.mark.parametrize("word", ["python", "python3"])
def test_our_own_environment_is_python_only_if_there_is_no_other_and_the_first_line_says_so(
    work: Shell, tmp_path: Path, word: str
) -> None:
    """As on Debian, where there is a `python3` and no `python`."""
    (work.folder / ".venv").rename(work.folder / "elsewhere")
    (work.folder / "train.py").write_text(SAYS_WHICH)
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "python3").symlink_to(os.path.realpath(sys.executable))
    own = os.path.join(sys.prefix, "bin")
    shown = _interpreter_shown(run(work, "--", word, "train.py", PATH=f"{tmp_path}/usr:{own}"))
    assert shown == f"{tmp_path}/usr/python3 (PATH)"
    shown = _interpreter_shown(run(work, "--", word, "train.py", PATH=f"{tmp_path}:{own}"))
    assert shown == f"{own}/{word} (PATH, Stoker's own environment)"


@pytest.mark.parametrize("ranks", [[], ["--ranks", "2"]])
def test_a_misspelt_script_is_refused_before_anything_starts(work: Shell, ranks: list[str]) -> None:
    (work.folder / "train.py").write_text("open('started', 'w')\n")
    done = run(work, "lr=1,2", *ranks, "--", "python", "trian.py", "--lr", "{lr}")
    assert done.code == 16
    assert "there is no script trian.py\nhint: did you mean 'train.py'?" in done.err
    done = run(work, "name=train,trian", *ranks, "--", "python", "{name}.py")
    assert done.code == 16
    assert not (work.folder / "started").exists()


def test_a_script_that_the_program_is_given_in_its_own_folders_is_no_missing_one(work: Shell) -> None:
    done = run(work, "--", "python", "{scratch}/resume.py")
    assert done.code == 1
    assert "there is no script" not in done.err


@pytest.mark.parametrize("more", [[], ["lr=1,2"]])
def test_a_misspelt_input_is_refused_with_the_nearest_name(work: Shell, more: list[str]) -> None:
    (work.folder / "data").mkdir()
    done = run(work, "inputs=dat/", *more, "--", "sh", "-c", "touch started {lr}" if more else "touch started")
    assert done.code == 16
    assert "dat: no such file or folder\nhint: did you mean 'data'?" in done.err
    assert not (work.folder / "started").exists()


def test_wrappers_and_modules_find_the_same_python_and_the_trainer(work: Shell) -> None:
    body = """
        import os, stoker_trainer as t
        t.step(1, of=1, loss=0.5)
        open(os.path.join(t.out(), "seen"), "w").write(os.environ.get("VIRTUAL_ENV", "none"))
        t.done()
        """
    _script(work.folder / "pkg/tool/__main__.py", body)
    _script(work.folder / "train.py", body)
    _script(work.folder / "train.sh", '#!/bin/sh\nset -e\npython train.py "$@"\n')
    for words in (["python", "-m", "pkg.tool"], ["./train.sh", "x"], ["env", "python", "train.py"]):
        done = run(work, "--name", "it", "--", *words)
        assert done.code == 0, done.err
        assert "loss 0.5" in done.out
        assert (work.folder / "stoker-out/it/seen").read_text() == str(work.folder / ".venv")


def test_with_its_inputs_declared_a_known_result_is_not_made_again_until_something_changes(work: Shell) -> None:
    _script(work.folder / "train.py", "import lib.model\nprint(open('conf.yaml').read())\n")
    _script(work.folder / "lib/__init__.py", "")
    _script(work.folder / "lib/model.py", "from . import layers\n")
    _script(work.folder / "lib/layers.py", "SIZE = 3\n")
    _script(work.folder / "run.sh", "#!/bin/sh\npython train.py --config conf.yaml\n")
    (work.folder / "data.csv").write_text("1,2\n")
    (work.folder / "conf.yaml").write_text("lr: 1\n")

    def outcome(*words: str) -> str:
        done = run(work, "inputs=data.csv", "--", *words)
        assert done.code == 0, done.err
        return "ran" if "1 stage: 1 ran" in done.out else "known" if "nothing ran" in done.out else done.out

    words = ["python", "train.py", "--config", "conf.yaml"]
    assert [outcome(*words), outcome(*words)] == ["ran", "known"]
    for name in ("data.csv", "lib/layers.py", "conf.yaml"):
        path = work.folder / name
        path.write_text(f"{path.read_text()}\n")
        assert (name, outcome(*words)) == (name, "ran")
    assert [outcome("./run.sh"), outcome("./run.sh")] == ["ran", "known"]
    (work.folder / "lib/layers.py").write_text("SIZE = 4\n")
    assert outcome("./run.sh") == "ran"


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pass
open("pids", "a").write(f"{os.getpid()} ")
time.sleep(120)
"""


def start_stubborn(shell: Shell, *words: str) -> tuple[subprocess.Popen[str], set[int]]:
    """Start a program that does not listen and has children that left its session; gives all their numbers."""
    _script(shell.folder / "stubborn.py", STUBBORN)
    pids = shell.folder / "pids"
    process = shell.start("run", "--no-out", *words, "--", *PYTHON, "stubborn.py")
    wait_until(lambda: process.poll() is not None or (pids.exists() and len(pids.read_text().split()) == 3))
    assert process.poll() is None, process.communicate()
    return process, set(map(int, pids.read_text().split())) | descendants(process.pid)


def boxes() -> set[str]:
    """The control groups of Stoker that there are."""
    places = [place for place in (own_group("memory", 1), own_group("", 2)) if place]
    return {name for place in places for name in os.listdir(place) if name.startswith("stoker-")}


def boxes_of(pids: set[int]) -> set[str]:
    """Those of them that these processes are in: other programs of this machine have theirs."""
    groups = "".join(Path(f"/proc/{pid}/cgroup").read_text() for pid in alive(pids))
    return {name for name in boxes() if f"/{name}" in groups}


@pytest.mark.parametrize("mechanism", ["auto", "bare"])
def test_kill_9_of_stoker_takes_the_program_and_all_its_children_along(work: Shell, mechanism: str) -> None:
    process, family = start_stubborn(work, "--contain", mechanism)
    theirs = boxes_of(family)
    process.kill()
    finish(process)
    wait_until(lambda: not alive(family))
    wait_until(lambda: not theirs & boxes())
    (job,) = work.stoker("jobs", "--json").objects()
    assert job["state"] == "failed"


def test_ctrl_c_twice_ends_one_that_does_not_listen_at_once(work: Shell) -> None:
    process, family = start_stubborn(work)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert alive(family) == set()
    assert work.staged() == []


SAVES = """
    import os, signal, sys, time, zipfile
    init, *rest = sys.argv[1:]
    step = 0
    if init == "resume":
        with zipfile.ZipFile("runs/ckpt.pt") as file:
            step = int(file.read("step"))
    print("begins at", step, rest, os.environ.get("STOKER_RESUME", "none"), flush=True)
    while step < 9:
        step += 1
        os.makedirs("runs", exist_ok=True)
        with zipfile.ZipFile("runs/ckpt.pt", "w") as file:
            file.writestr("step", str(step))
        if init == "scratch" and step == 5:
            # Long enough to be seen; then it dies while it writes the next one.
            time.sleep(5)
            open("runs/ckpt.pt", "wb").write(b"PK")
            os.kill(os.getpid(), signal.SIGKILL)
    """


def test_a_program_that_reports_nothing_resumes_from_its_newest_whole_checkpoint(work: Shell) -> None:
    _script(work.folder / "train.py", SAVES)
    words = ("outputs=runs/", "--", "python", "train.py", "{resume?resume:scratch}", "--from", "{resume}", "end")
    assert run(work, *words).code != 0
    assert work.stoker("logs", "last").out == "==> run <==\nbegins at 0 ['end'] none\n"
    assert (work.folder / "runs/ckpt.pt").read_bytes() == b"PK"
    assert run(work, *words).code == 0
    path = work.folder / "runs/ckpt.pt"
    log = work.stoker("logs", "last").out.splitlines()
    assert log[1].startswith("resumes from runs/ckpt.pt: ")
    assert log[2] == f"begins at 5 ['--from', '{path}', 'end'] {path}"
    assert run(work, *words).code != 0, "its work is done, so it begins again"


def test_trials_that_share_a_folder_resume_from_their_own_checkpoints(work: Shell) -> None:
    _script(
        work.folder / "train.py",
        """
        import os, sys, zipfile
        resume = os.environ.get("STOKER_RESUME")
        print("from", zipfile.ZipFile(resume).read("lr").decode() if resume else "nothing")
        os.makedirs("runs", exist_ok=True)
        if not resume:
            open("runs/first", "w").close()
        with zipfile.ZipFile("runs/ckpt.pt", "w") as file:
            file.writestr("lr", "trial " + sys.argv[1])
        sys.exit(0 if resume else 1)
        """,
    )
    words = ("lr=1,2", "outputs=runs/", "--", "python", "train.py", "{lr}")
    assert run(work, *words).code != 0
    assert run(work, *words).code == 0
    log = work.stoker("logs", "last").out
    assert "from trial 1" in log
    assert "from trial 2" in log
    assert "another runs/ckpt.pt was there: it is now ckpt.pt.before-resume" in log
    assert [path.name for path in (work.folder / "stoker-out/train/lr=1/runs").iterdir()] == ["ckpt.pt"]
    assert zipfile.ZipFile(work.folder / "runs/ckpt.pt.before-resume").read("lr") == b"trial 2"


def test_what_an_interrupted_run_wrote_is_in_the_result_of_the_one_that_continues_it(work: Shell) -> None:
    _script(
        work.folder / "train.py",
        """
        import os, sys, zipfile
        os.makedirs("runs", exist_ok=True)
        if not os.environ.get("STOKER_RESUME"):
            open("runs/history", "w").close()
            with zipfile.ZipFile("runs/ckpt.pt", "w") as file:
                file.writestr("step", "1")
            sys.exit(1)
        """,
    )
    (work.folder / "runs").mkdir()
    (work.folder / "runs/old").touch()
    words = ("outputs=runs/", "--", "python", "train.py")
    assert run(work, *words).code != 0
    assert run(work, *words).code == 0
    kept = work.folder / "stoker-out/train/runs"
    assert sorted(path.name for path in kept.iterdir()) == ["ckpt.pt", "history"]
    assert not list((work.home / "scratch" / ".locks").glob("*.json"))


def test_after_kill_9_the_same_line_goes_on_from_the_last_checkpoint(work: Shell) -> None:
    _script(
        work.folder / "train.py",
        """
        import os, time, stoker_trainer as t
        start = int(open(t.resume()).read()) if t.resume() else 0
        for i in range(start, 5):
            open("ckpt", "w").write(str(i + 1))
            t.saved("ckpt", step=i)
            if i == 2 and not start:
                open("ready", "w").close()
                time.sleep(120)
        open(os.path.join(t.out(), "from"), "w").write(str(start))
        """,
    )
    process = work.start("run", "--", "python", "train.py")
    wait_until((work.folder / "ready").exists)
    process.kill()
    finish(process)
    done = run(work, "--", "python", "train.py")
    assert done.code == 0, done.err
    assert (work.folder / "stoker-out/train/from").read_text() == "3"
    assert not any((work.home / "scratch").iterdir())


def test_a_log_is_live(work: Shell) -> None:
    _script(
        work.folder / "talk.py",
        """
        import os, time
        print("first")
        for _ in range(3000):
            if os.path.exists("gate"): break
            time.sleep(0.01)
        """,
    )
    process = work.start("run", "--no-out", "--", "python", "talk.py")
    wait_until(lambda: any("first" in path.read_text() for path in work.home.glob("runs/*/logs/run.log")))
    (work.folder / "gate").touch()
    assert finish(process).code == 0


def test_a_second_run_in_the_same_folder_waits_and_both_run(work: Shell) -> None:
    _script(
        work.folder / "slow.py",
        """
        import os, time
        print(os.getpid(), file=open("ran", "a"))
        for _ in range(3000):
            if os.path.exists("gate"): break
            time.sleep(0.01)
        """,
    )
    first = work.start("run", "--no-out", "--", "python", "slow.py")
    wait_until((work.folder / "ran").exists)
    second = work.start("run", "--no-out", "--json", "--", "python", "slow.py")
    assert second.stdout is not None
    wait_until(lambda: '"stage_waiting"' in second.stdout.readline())  # type: ignore[union-attr]
    (work.folder / "gate").touch()
    assert finish(first).code == 0
    assert finish(second).code == 0
    assert len((work.folder / "ran").read_text().split()) == 2
