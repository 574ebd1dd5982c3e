"""Programs that need a GPU, through real processes and invented devices: one job per device on the whole machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.shell import Shell, finish, wait_until

HOLD = """
import os, sys, time
name = sys.argv[1]
for other in sys.argv[2:]:
    with open(f"pid-{other}") as file:
        pid = int(file.read())
    try:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] not in "ZX":
                open("both-at-once", "w").close()
    except OSError:
        pass
with open(f"pid-{name}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"pid-{name}.new", f"pid-{name}")
print("<%s> <%s>" % (os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("STOKER_VRAM_BYTES")), flush=True)
while not os.path.exists(f"go-{name}"):
    time.sleep(0.01)
"""
CARD = r"FAKE-cuda-0-[0-9a-f]{8}"


class Cards:
    """A machine with invented cards, and programs that hold them until they are let go."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.folder = shell.folder
        self.started: list[subprocess.Popen[str]] = []
        (self.folder / "hold.py").write_text(HOLD)
        self.has("cuda:24GiB")

    def has(self, text: str) -> None:
        self.shell.env["STOKER_GPU_FAKE"] = text

    def start(self, name: str, *words: str, after: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = self.shell.start("run", "--name", name, *words, "--", "python3", "hold.py", name, *after)
        self.started.append(process)
        return process

    def hold(self, name: str, *words: str) -> subprocess.Popen[str]:
        """Start a job and see its program run."""
        process = self.start(name, *words)
        wait_until(lambda: self.runs(name) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process

    def runs(self, name: str) -> bool:
        return (self.folder / f"pid-{name}").exists()

    def pid(self, name: str) -> int:
        return int((self.folder / f"pid-{name}").read_text())

    def let_go(self, *names: str) -> None:
        for name in names:
            (self.folder / f"go-{name}").touch()

    def log(self, job: str) -> str:
        return self.shell.stoker("logs", job).out

    @property
    def line(self) -> list[str]:
        return os.listdir(self.shell.env["STOKER_LEDGER"] + "/line")


@pytest.fixture
def cards(shell: Shell):
    made = Cards(shell)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str], text: str) -> str:
    """Read what a command prints until a line has this in it; gives that line."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(process.communicate())


def test_the_second_run_waits_visibly_and_starts_when_the_first_ends(cards: Cards) -> None:
    first = cards.hold("first")
    second = cards.start("second", after=("first",))
    said = heard(second, "waits for")
    assert re.search(rf"waits for {CARD}: held by job first/run \(pid {cards.pid('first')}\) for \d", said), said
    assert not cards.runs("second")
    status = cards.shell.stoker("status").out
    assert re.search(rf"second waiting, .*\n  run +[\d.]+s  waits for {CARD}: held by job first/run", status), status
    assert "first running, " in status
    cards.let_go("first", "second")
    assert finish(first).code == 0
    done = finish(second)
    assert done.code == 0, done
    assert not (cards.folder / "both-at-once").exists()
    assert re.search(rf"<{CARD}> <None>", cards.log("second"))
    assert cards.line == []


@pytest.mark.timing
def test_a_run_that_is_killed_frees_its_device_with_its_program_and_not_before(cards: Cards) -> None:
    first = cards.hold("first")
    second = cards.start("second", after=("first",))
    heard(second, "waits for")
    cards.let_go("second")
    begun_s = time.monotonic()
    first.kill()
    done = finish(second)
    assert done.code == 0, done
    assert time.monotonic() - begun_s < 10
    assert not (cards.folder / "both-at-once").exists()


def test_a_program_that_is_killed_lets_the_next_one_start(cards: Cards) -> None:
    first = cards.hold("first")
    second = cards.start("second")
    heard(second, "waits for")
    cards.let_go("second")
    os.kill(cards.pid("first"), signal.SIGKILL)
    assert finish(second).code == 0
    assert finish(first).code == 45


def test_ctrl_c_while_waiting_leaves_the_line_and_the_next_in_it_moves_up(cards: Cards) -> None:
    first = cards.hold("first")
    second = cards.start("second")
    heard(second, "waits for")
    third = cards.start("third", "--json")
    event = json.loads(heard(third, '"stage_waiting"'))
    assert (event["node"], event["place"]) == ("run", 2)
    assert event["why"].endswith(", queue position 2")
    second.send_signal(signal.SIGINT)
    done = finish(second)
    assert done.code == 130
    assert not cards.runs("second")
    assert json.loads(heard(third, '"stage_waiting"'))["place"] == 1
    cards.let_go("first", "third")
    assert (finish(first).code, finish(third).code) == (0, 0)


def test_those_who_share_run_side_by_side_until_the_card_is_full(cards: Cards) -> None:
    words = ("vram=8G", "shares=true", "cpus=1")
    first, second = cards.hold("first", *words), cards.hold("second", *words)
    third = cards.start("third", *words)
    said = heard(third, "waits for")
    assert re.search(rf"waits for 8\.0 GiB of {CARD}: 4\.4 GiB left to share, held by job first/run", said), said
    cards.let_go("first", "second", "third")
    assert [finish(one).code for one in (first, second, third)] == [0, 0, 0]
    assert re.search(rf"<{CARD}> <{8 * 2**30}>", cards.log("third"))


def test_a_program_that_is_too_large_to_share_has_the_card_alone(cards: Cards) -> None:
    cards.let_go("large")
    done = cards.shell.stoker(
        "run", "--name", "large", "vram=22G", "shares=true", "cpus=1", "--", "python3", "hold.py", "large"
    )
    assert done.code == 0, done.err
    assert re.search(rf"<{CARD}> <None>", cards.log("large")), "all of the card is its own, so it gets no limit"


def test_what_can_never_be_is_refused_at_once_with_numbers(cards: Cards) -> None:
    def refused(*words: str, **env: str) -> tuple[int, str]:
        done = cards.shell.stoker("run", *words, "--", "true", **env)
        return done.code, done.err.splitlines()[0]

    assert refused("gpus=2") == (40, "stoker: run: needs 2 GPUs, this machine offers 1")
    assert refused("gpus=1", CUDA_VISIBLE_DEVICES="") == (40, "stoker: run: needs 1 GPU, this machine offers 0")
    code, said = refused("vram=30G")
    assert (code, re.sub(CARD, "CARD", said)) == (
        40,
        "stoker: run: needs 30.0 GiB of a GPU's memory: CARD has 24.0 GiB, and 30.0 GiB are needed",
    )
    assert re.sub(CARD, "CARD", refused("vram=30G", "shares=true")[1]) == re.sub(CARD, "CARD", said)
    assert refused(STOKER_STRICT="1")[0] == 21
    assert refused(STOKER_VRAM_LIMIT="much")[1].startswith("stoker: STOKER_VRAM_LIMIT='much' is no limit")
    assert not Path(cards.shell.env["STOKER_LEDGER"]).exists()


def test_what_needs_no_device_sees_none_and_asks_nobody(cards: Cards) -> None:
    cards.let_go("quiet", "plain")
    done = cards.shell.stoker("run", "--name", "quiet", "gpus=0", "--", "python3", "hold.py", "quiet")
    assert "1 GPU, not used; " in done.out
    assert "<> <None>" in cards.log("quiet")
    cards.has("none")
    given = ("run", "--name", "plain", "--", "python3", "hold.py", "plain")
    assert "GPU" not in cards.shell.stoker(*given, CUDA_VISIBLE_DEVICES="7").out
    assert "<7> <None>" in cards.log("plain")
    assert not Path(cards.shell.env["STOKER_LEDGER"]).exists()


def test_trials_of_one_run_take_turns_on_the_card(cards: Cards) -> None:
    cards.let_go("a", "b")
    done = cards.shell.stoker("run", "-j", "2", "cpus=1", "who=a,b", "--", "python3", "hold.py", "{who}")
    assert done.code == 0, done
    assert re.match(
        r"\S+: Fake cuda device, 24\.0 of 24\.0 GiB free; .* RAM, .*; python = .*\. 2 trials, one at a time, "
        r"each with a whole GPU\n",
        done.out,
    ), done.out
    # They wait for each other, which is nothing to tell.
    assert "waits" not in done.out


def test_a_machine_of_a_fleet_shares_its_card_as_the_coordinator_granted_it(cards: Cards, tmp_path: Path) -> None:
    shell = cards.shell
    shell.env["STOKER_RUNTIME"] = str(tmp_path / "run")
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    url = json.loads(serving.stdout.readline())["url"]
    cards.started += [shell.start("work", "--name", "desk", "--join", url, "--slots", "2"), serving]
    for name, vram in (("small", "6G"), ("large", "22G")):
        show = f'echo {name} "<$CUDA_VISIBLE_DEVICES> <$STOKER_VRAM_BYTES>"'
        done = shell.stoker("submit", "--name", name, f"vram={vram}", "shares=true", "-y", "--", "sh", "-c", show)
        assert done.code == 0, done.err
    waited = [shell.stoker("jobs", "wait", name) for name in ("small", "large")]
    assert [one.code for one in waited] == [0, 0], waited
    assert re.search(rf"<{CARD}> <{6 * 2**30}>", cards.log("small"))
    # 22 GiB are more than may be shared of 24: it has the card alone, and no limit.
    assert re.search(rf"<{CARD}> <>", cards.log("large"))


@contextmanager
def fleet(shell: Shell) -> Iterator[None]:
    """Serve, and work on a machine with one ROCm device."""
    shell.env |= {"STOKER_RUNTIME": str(shell.folder / "run"), "STOKER_GPU_FAKE": "rocm:1x16GiB"}
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    url = json.loads(serving.stdout.readline())["url"]
    working = shell.start("work", "--name", "desk", "--join", url)
    try:
        yield
    finally:
        for process in (working, serving):
            process.send_signal(signal.SIGTERM)
            finish(process)


def test_a_job_of_the_fleet_names_the_backend_of_its_devices(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (shell.folder / "m.toml").write_text(
        '[[jobs]]\nname = "listed"\ngpu_backend = "rocm"\nmin_ram_gib = 0\n'
        """command = ["sh", "-c", 'echo "listed has <$HIP_VISIBLE_DEVICES>"']\n"""
    )
    typed = ("--", "sh", "-c", 'echo "typed has <$HIP_VISIBLE_DEVICES>"')
    shown = shell.stoker("submit", "gpus=1", "gpu_backend=rocm", "--dry-run", *typed)
    assert "a GPU (rocm)" in shown.out, shown
    with fleet(shell):
        assert shell.stoker("submit", "gpus=1", "--name", "other", "-y", "--", "true").code == 0
        for words in (("gpus=1", "gpu_backend=rocm", "--name", "typed", *typed), ("m.toml",)):
            done = shell.stoker("submit", "--watch", "-y", *words)
            assert done.code == 0, done
        for name in ("typed", "listed"):
            assert f"{name} has <0>" in shell.stoker("logs", name).out
        waiting = shell.stoker("explain", "other")
        hint = "needs a cuda device, no machine has one (there are devices of rocm: set gpu_backend)"
        assert hint in " ".join(waiting.out.split()), waiting
        told = shell.stoker("submit", "gpu_backend=mps", *typed)
        assert (told.code, "gpu_backend: 'mps' is not one of cuda, rocm, metal, oneapi" in told.err) == (21, True), told


def test_a_run_here_takes_only_devices_of_the_backend_that_it_names(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.env["STOKER_GPU_FAKE"] = "cuda:24GiB,rocm:1x16GiB"
    program = ("--no-out", "--", "sh", "-c", 'echo "<$HIP_VISIBLE_DEVICES> <$CUDA_VISIBLE_DEVICES>"')
    done = shell.stoker("run", "gpu_backend=rocm", *program)
    assert (done.code, "Fake cuda" in done.out) == (0, False), done
    assert "<0> <>" in shell.stoker("logs", "last").out
    done = shell.stoker("run", "gpus=2", "gpu_backend=rocm", *program)
    assert (done.code, "needs 2 rocm GPUs, this machine offers 1" in done.err) == (40, True), done
