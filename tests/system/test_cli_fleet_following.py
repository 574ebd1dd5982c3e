"""One machine as a whole fleet, real processes: a job is followed across a restart of its coordinator, then fetched."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from stoker.core.errors import Refused
from tests.system.shell import PATIENCE_S, Shell, finish

PROGRAM = """
import os, sys, time
print("first", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("second", flush=True)
with open(os.path.join(os.environ["STOKER_OUT"], "model.txt"), "w") as file:
    file.write("weights")
"""


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Have a process end in order, whatever happens."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def _read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    message = f"{text!r} was never said: {lines}"
    raise AssertionError(message)


def test_a_job_is_followed_across_a_restart_of_its_coordinator_and_its_result_fetched(shell: Shell):
    (shell.folder / "train.py").write_text(PROGRAM)
    with ExitStack() as running:
        serving = running.enter_context(ended(shell.start("serve", "--listen", "127.0.0.1:0", "--json")))
        url = json.loads(_read_until(serving, "url")[-1])["url"]
        running.enter_context(ended(shell.start("work", "--name", "desk")))
        # It runs in a copy of this folder.
        sign = shell.folder / "go on"
        submitted = shell.stoker("submit", "-y", "--name", "train", "memory=256M", "--", "python3", "train.py", sign)
        assert submitted.code == 0, submitted.err
        following = running.enter_context(ended(shell.start("logs", "-f", "train")))
        printed = _read_until(following, "first")
        serving.send_signal(signal.SIGTERM)
        finish(serving)
        again = running.enter_context(ended(shell.start("serve", "--listen", url.removeprefix("http://"), "--json")))
        _read_until(again, "url")
        sign.touch()
        rest = finish(following)
        assert rest.code == 0, rest.err
        assert [*printed, *rest.out.splitlines()] == ["==> run <==", "first", "second"]
        assert "train completed" in rest.err
        (told,) = shell.stoker("jobs", "wait", "train", "--json").objects()
        assert (told["state"], told["machine"]) == ("completed", "desk")
        fetched = shell.stoker("get", "train", "here")
        assert fetched.code == 0, fetched.err
        shown = shell.stoker("receipt", "show", "train", "--out", "train.receipt.json")
        assert shown.code == 0, shown.err
        assert "the coordinator recorded its sha256" in shown.out
        (stored,) = (shell.home / "fleet").rglob("receipt.json")
        stored.write_bytes(stored.read_bytes() + b" ")
        replaced = shell.stoker("receipt", "show", "train")
        assert replaced.code != 0
        assert "is not the one that its worker sent with the result" in replaced.err
        # The attempt of this home's own worker is none that `run` started.
        refused = shell.stoker("run", "--failed", "train")
        assert refused.code == Refused.exit_code
        assert "train is a job of the fleet" in refused.err
        assert "hint: run it again there: stoker jobs requeue train" in refused.err
    assert (shell.folder / "here" / "model.txt").read_text() == "weights"
    verified = shell.stoker("receipt", "verify", "train.receipt.json", "--dir", "here")
    assert verified.out.endswith("job of train: completed, not signed, 1 file verified\n"), verified.err
