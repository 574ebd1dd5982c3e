"""A warm command is what `python -m stoker` is, and differs in nothing but how it begins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.shell import Shell, alive, wait_until
from tests.system.warm import WarmCommand, make_warm_programs, may_start_warm


@pytest.mark.parametrize("words", [["--version"], ["recipes", "--json"], ["fetch"], ["jobs", "show", "nóne\udcff"]])
def test_it_says_and_answers_the_same(shell: Shell, words: list[str]) -> None:
    anew = [sys.executable, "-P", "-m", "stoker", *words]
    asked = subprocess.run(anew, cwd=shell.folder, env=shell.env, capture_output=True, text=True, check=False)
    warm = WarmCommand(words, folder=shell.folder, env=shell.env)
    assert (*warm.communicate(), warm.returncode) == (asked.stdout, asked.stderr, asked.returncode)


def test_it_runs_until_it_is_killed(shell: Shell) -> None:
    with WarmCommand(["serve", "--listen", "127.0.0.1:0", "--json"], folder=shell.folder, env=shell.env) as warm:
        assert warm.stdout is not None
        assert "url" in warm.stdout.readline()
        assert warm.poll() is None
        warm.kill()
        assert warm.wait(30) == -signal.SIGKILL


def test_what_an_interpreter_reads_as_it_starts_makes_it_start_anew(shell: Shell) -> None:
    assert may_start_warm(shell.env)
    assert not may_start_warm({**shell.env, "PYTHONUTF8": "0"})
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not may_start_warm(shell.env)
    finally:
        signal.signal(signal.SIGINT, before)


# What a shell starts.


@pytest.fixture(scope="module")
def warm_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_warm_programs(tmp_path_factory.mktemp("warm"))


@pytest.mark.parametrize("line", ["stoker recipes --json", "echo '[[jobs' | stoker submit - --dry-run", "stoker fetch"])
def test_a_shell_gets_the_same_from_a_warm_program(shell: Shell, warm_programs: Path, line: str) -> None:
    asked, warm = (_in_a_shell(shell, programs, line) for programs in (Path(sys.executable).parent, warm_programs))
    assert (warm.stdout, warm.stderr, warm.returncode) == (asked.stdout, asked.stderr, asked.returncode)


def _in_a_shell(shell: Shell, programs: Path, line: str) -> subprocess.CompletedProcess[str]:
    env = {**shell.env, "PATH": f"{programs}{os.pathsep}{shell.env['PATH']}"}
    words = ["bash", "-c", line]
    return subprocess.run(words, cwd=shell.folder, env=env, capture_output=True, text=True, check=False)


_SERVES_INSIDE = """
ip link set lo up
readlink /proc/self/ns/net /proc/self/ns/pid
stoker serve --listen 127.0.0.1:0 --json > served & program=$!
until [ -s served ]; do sleep 0.05; done
served=$(python3 -c 'import json; print(json.load(open("served"))["pid"])')
readlink "/proc/$served/ns/net" "/proc/$served/ns/pid"
kill "$program"
wait "$program"
echo "$?"
[ -e "/proc/$served" ] || echo gone
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of their own need root")
def test_a_warm_program_runs_in_the_namespaces_of_its_shell(shell: Shell, warm_programs: Path) -> None:
    env = {**shell.env, "PATH": f"{warm_programs}{os.pathsep}{shell.env['PATH']}"}
    words = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", _SERVES_INSIDE]
    ended = subprocess.run(words, cwd=shell.folder, env=env, capture_output=True, text=True, check=False)
    lines = ended.stdout.split()
    assert len(lines) == 6, ended.stdout + ended.stderr
    assert lines[:2] == lines[2:4]
    assert lines[0] != os.readlink("/proc/self/ns/net")
    assert lines[4:] == ["143", "gone"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_signal_to_a_warm_program_reaches_the_command(
    shell: Shell, warm_programs: Path, number: signal.Signals, code: int
) -> None:
    words = [str(warm_programs / "stoker"), "serve", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(words, cwd=shell.folder, env=shell.env, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        served = json.loads(program.stdout.readline())["pid"]
        assert served != program.pid
        assert alive({served})
        program.send_signal(number)
        assert program.wait(30) == code
        wait_until(lambda: not alive({served}))


def test_a_warm_program_keeps_what_its_shell_ignores(shell: Shell, warm_programs: Path) -> None:
    env = {**shell.env, "PATH": f"{warm_programs}{os.pathsep}{shell.env['PATH']}"}
    line = "stoker serve --listen 127.0.0.1:0 --json & wait"
    with subprocess.Popen(["bash", "-c", line], cwd=shell.folder, env=env, stdout=subprocess.PIPE, text=True) as bash:
        assert bash.stdout is not None
        served = json.loads(bash.stdout.readline())["pid"]
        status = Path(f"/proc/{served}/status").read_text()
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        os.kill(served, signal.SIGTERM)
        assert bash.wait(30) in (0, 143)
    assert ignored >> (signal.SIGQUIT - 1) & 1


def test_an_environment_that_an_interpreter_reads_makes_a_warm_program_start_anew(
    shell: Shell, warm_programs: Path
) -> None:
    words = [str(warm_programs / "stoker"), "serve", "--listen", "127.0.0.1:0", "--json"]
    env = {**shell.env, "PYTHONUTF8": "1"}
    with subprocess.Popen(words, cwd=shell.folder, env=env, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["pid"] == program.pid
        program.terminate()


def test_the_python_beside_a_warm_program_has_the_same_packages(warm_programs: Path) -> None:
    code = "import stoker, numpy; print(stoker.__file__, numpy.__version__)"
    asked, beside = (
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
        for python in (sys.executable, warm_programs / "python")
    )
    assert beside == asked
