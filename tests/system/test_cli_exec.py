"""`stoker exec` into a running job of another home: real processes, pipes and a terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.host.identity import rows
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, wait_until

SECRET = "hunter2/for+real=42"
TRAIN = "import os, time\nopen('up', 'w').close()\nwhile not os.path.exists('enough'): time.sleep(0.05)\n"
MANIFEST = """
[[jobs]]
name = "long"
command = ["python", "train.py"]
data = { DATA = "set" }
secrets = ["MY_TOKEN"]
min_ram_gib = 0.1
"""


class Town:
    """A coordinator, a worker with another home, and a job that runs there."""

    def __init__(self, folder: Path, index: Path) -> None:
        self.desk = Shell(folder / "desk", index=index)
        self.lab = Shell(folder / "lab", index=index)
        for shell in (self.desk, self.lab):
            shell.env["STOKER_LEDGER"] = str(folder / "ledger")
            shell.env.pop("MY_TOKEN", None)
        state = self.lab.home / "state"
        (state / "secrets.env").write_text(f"MY_TOKEN='{SECRET}'\n")
        (state / "secrets.env").chmod(0o600)
        self.processes: list[subprocess.Popen[str]] = []
        serving = self._started(self.desk.start("serve", "--listen", "127.0.0.1:0", "--json"))
        assert serving.stdout is not None
        self.url = str(json.loads(serving.stdout.readline())["url"])
        self._started(self.lab.start("work", "--join", self.url, "--name", "lab", "--slots", "1"))

    def submit(self) -> None:
        (self.desk.folder / "train.py").write_text(TRAIN)
        (self.desk.folder / "set").mkdir()
        (self.desk.folder / "set" / "a.txt").write_text("one")
        (self.desk.folder / "m.toml").write_text(MANIFEST)
        submitted = self.desk.stoker("submit", "m.toml", "-y")
        assert submitted.code == 0, submitted.err

    def close(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired, ValueError):
                process.communicate(timeout=PATIENCE_S)
            process.kill()

    def _started(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self.processes.append(process)
        return process


@pytest.fixture
def town(tmp_path: Path, index: Path) -> Iterator[Town]:
    town = Town(tmp_path, index)
    yield town
    town.close()


def running(words: str) -> list[int]:
    found = []
    for row in rows():
        with suppress(OSError):
            title = Path(f"/proc/{row.pid}/cmdline").read_text().replace("\0", " ").strip()
            if not row.is_gone and title.endswith(f"/{words}"):
                found.append(row.pid)
    return found


def test_an_operator_looks_inside_a_running_job_and_nothing_of_that_outlives_it(town: Town):
    desk = town.desk
    town.submit()
    with FleetDesk(town.url, desk.home) as fleet:
        wait_until(lambda: fleet.states()["long"][0] == "running")
        wait_until(lambda: list(town.lab.home.glob("workspaces/*/up")))

        script = (
            "import os, sys; print(os.getcwd()); print(open(os.environ['DATA'] + '/a.txt').read());"
            "print(os.environ['MY_TOKEN'], os.environ.get('STOKER_CONTROL')); print(sys.stdin.read().upper());"
            "print('aside', file=sys.stderr); sys.exit(7)"
        )
        told = subprocess.run(
            [sys.executable, "-P", "-m", "stoker", "exec", "long", "--", "python", "-c", script],
            cwd=desk.folder,
            env=desk.env,
            input="typed",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert told.stdout, told
        folder, *rest = told.stdout.splitlines()
        assert (told.returncode, rest) == (7, ["one", "*** None", "TYPED"]), told
        assert folder.startswith(str(town.lab.home / "workspaces"))
        assert told.stderr == "aside\n"

        killed = desk.stoker("exec", "long", "--json", "--", "sh", "-c", "echo x; kill -9 $$")
        assert killed.code == 128 + 9
        assert [line["kind"] for line in killed.objects()] == ["exec_begun", "exec_output", "exec_ended"]
        assert desk.stoker("exec", "long").code == 2, "a shell needs a terminal"

        at_shell = desk.at_a_terminal("exec", "long", when=_types)
        assert at_shell.code == 5, at_shell.out
        assert "it is 42" in at_shell.out
        assert "24 80" in at_shell.out, "as large as a terminal is that does not say"

        _ends_with_whoever_began_it_and_with_the_job(desk, fleet)
        wait_until(lambda: len(_events(fleet, "exec_ended")) == len(_events(fleet, "exec_begun")))
        begun, ends = _events(fleet, "exec_begun"), _events(fleet, "exec_ended")
    assert [one["program"] for one in begun] == ["python", "sh", "a shell", "sleep", "sleep"]
    assert all(one["by"] for one in (*begun, *ends))
    assert ends[0]["exit_code"] == 7
    assert SECRET not in json.dumps((begun, ends))
    assert "import os" not in json.dumps(begun), "only the first word is written down"


def _ends_with_whoever_began_it_and_with_the_job(desk: Shell, fleet: FleetDesk) -> None:
    leaver = desk.start("exec", "long", "--", "sleep", "876543")
    wait_until(lambda: running("sleep 876543"))
    leaver.send_signal(signal.SIGINT)
    leaver.communicate(timeout=PATIENCE_S)
    assert leaver.returncode == 130
    wait_until(lambda: not running("sleep 876543"))
    assert fleet.states()["long"][0] == "running", "who leaves takes the command along, and nothing else"

    sleeper = desk.start("exec", "long", "--", "sleep", "987654")
    wait_until(lambda: running("sleep 987654"))
    assert desk.stoker("cancel", "long").code == 0
    out, err = sleeper.communicate(timeout=PATIENCE_S)
    assert sleeper.returncode != 0
    assert "ended" in err, (out, err)
    assert not running("sleep 987654")


def _types(seen: bytes) -> bytes | None:
    # A prompt stands there.
    return b"stty size; echo it is $((40 + 2)); exit 5\n" if seen.rstrip()[-1:] in (b"$", b"#") else None


def _events(fleet: FleetDesk, kind: str) -> list[dict[str, object]]:
    return [event for event in fleet.client.job("long").events if event["kind"] == kind]
