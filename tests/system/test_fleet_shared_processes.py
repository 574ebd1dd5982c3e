"""Jobs of a fleet that share a base, in one process on their machine: joined, cancelled, killed, gone on with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.fleet_desk import FleetDesk
from tests.system.shell import Shell, alive, finish, wait_until

TRAINING_S = 120.0
"""Torch is imported in it, on a machine that may have other things to do."""
CHOIR = Path(__file__).parents[1] / "cookbooks" / "choir"


class Choir:
    """Voices of one song, on one worker with room for four."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.gate = shell.folder / "gate"
        self.gate.mkdir()
        (shell.folder / "song.txt").write_text("la la la")

    def submit(self, *voices: int) -> None:
        which = ",".join(map(str, voices))
        done = self.shell.stoker("submit", "choir/voice", f"voice={which}", "song=song.txt", f"gate={self.gate}", "-y")
        assert done.code == 0, done.err

    def verse(self, voice: int) -> tuple[int, int]:
        """Return the process that a voice sings in, and how far it is."""
        try:
            process, verse = (self.gate / f"{voice}.singing").read_text().split()
        except (OSError, ValueError):
            return 0, 0
        return int(process), int(verse)

    def processes(self, *voices: int) -> set[int]:
        """Wait until all of these sing, each further than it is now; give where."""
        before = {voice: self.verse(voice) for voice in voices}
        wait_until(lambda: all(self.verse(voice) > before[voice] for voice in voices))
        return {self.verse(voice)[0] for voice in voices}

    def end(self, *voices: int) -> None:
        for voice in voices:
            (self.gate / str(voice)).touch()

    def attempt(self, voice: int) -> int:
        """Return the process of a voice's attempt, which only waits for its shared process."""
        for spec in (self.shell.home / "runs").glob("*/job.json"):
            if json.loads(spec.read_text())["options"]["fleet"]["number"] == voice:
                return int(json.loads((spec.parent / "owner.json").read_text())["pid"])
        raise AssertionError(voice)


@contextmanager
def singing(folder: Path, *words: str, **env: str) -> Iterator[Choir]:
    """Serve, and work with these words."""
    shell = Shell(folder, cookbook=CHOIR)
    shell.env |= {"STOKER_RUNTIME": str(folder / "run"), **env}
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    url = json.loads(serving.stdout.readline())["url"]
    working = shell.start("work", "--name", "desk", "--join", url, *words)
    try:
        yield Choir(shell)
    finally:
        for process in (working, serving):
            process.send_signal(signal.SIGTERM)
            finish(process)


@pytest.fixture
def choir(tmp_path: Path) -> Iterator[Choir]:
    with singing(tmp_path, "--slots", "4") as choir:
        yield choir


def desk_of(choir: Choir) -> FleetDesk:
    served = json.loads((choir.shell.home / "state" / "serve.json").read_text())
    return FleetDesk(served["url"], choir.shell.home)


def test_jobs_over_one_base_run_in_one_process_and_each_is_its_own(choir: Choir):
    choir.submit(1, 2, 3, 4)
    (first,) = choir.processes(1, 2, 3, 4)
    told = choir.shell.stoker("explain", "voice/2").out
    assert "runs on desk, in one process with voice/1, voice/3, voice/4: same base " in told

    assert choir.shell.stoker("cancel", "voice/1").code == 0
    assert choir.processes(2, 3, 4) == {first}
    os.kill(choir.attempt(2), signal.SIGKILL)
    assert choir.processes(3, 4) == {first}

    with desk_of(choir) as desk:
        # It is tried again by another attempt, which joins the others.
        wait_until(lambda: [one.ending for one in desk.client.job("voice/2").attempts] == ["failed", ""])
        assert choir.processes(2, 3, 4) == {first}
        before = {voice: choir.verse(voice)[1] for voice in (2, 3, 4)}
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: all(choir.verse(voice)[0] not in (0, first) for voice in before))
        (second,) = choir.processes(2, 3, 4)
        assert all(choir.verse(voice)[1] > verse for voice, verse in before.items())

        choir.end(2, 3, 4)
        wait_until(lambda: [desk.states()[f"voice/{voice}"][0] for voice in before] == ["completed"] * 3)
        assert desk.states()["voice/1"][0] == "cancelled"
        assert [len(desk.client.job(f"voice/{voice}").attempts) for voice in before] == [2, 1, 1]
    wait_until(lambda: not alive({first, second}))
    told = choir.shell.stoker("explain", "voice/3").out
    assert "in one process with 2 others, 3 at once: voice/" in told
    assert choir.shell.stoker("get", "voice/3", "got").code == 0
    assert json.loads((choir.shell.folder / "got" / "value.json").read_text()) == {
        "voice": 3,
        "song": "la la la",
        "devices": 0,
    }


@pytest.mark.slow
def test_a_machine_whose_slots_nobody_counted_takes_as_many_beside_each_other_as_its_device_holds(tmp_path: Path):
    with singing(tmp_path, STOKER_GPU_FAKE="cuda:1GiB") as choir:
        choir.submit(1, 2, 3)
        (process,) = choir.processes(1, 2, 3)
        with desk_of(choir) as desk:
            machine = desk.client.machine("desk")
            assert (machine.held, machine.slots) == (3, 1)
            (device,) = machine.devices
            assert device["promised_bytes"] == 230 << 20
            choir.end(1, 2, 3)
            wait_until(lambda: [desk.states()[f"voice/{voice}"][0] for voice in (1, 2, 3)] == ["completed"] * 3)
        wait_until(lambda: not alive({process}))
        assert choir.shell.stoker("get", "voice/2", "got").code == 0
    assert json.loads((choir.shell.folder / "got" / "value.json").read_text())["devices"] == 1


def _shared_processes(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("joined shared process")]


def _has_begun(shell: Shell, name: str) -> bool:
    """Return whether a job has taken a step."""
    for spec in (shell.home / "runs").glob("*/job.json"):
        if json.loads(spec.read_text())["name"] == name:
            said = spec.parent / "status.jsonl"
            return said.exists() and '"stage_step"' in said.read_text()
    return False


@pytest.mark.slow
def test_adapters_of_a_fleet_trained_in_shared_process_are_those_trained_alone(choir: Choir, tmp_path: Path):
    from safetensors.numpy import load_file

    from stoker.cookbooks.language.bundled import TinyShape, data_lines, write_base

    shell = choir.shell
    write_base(shell.folder / "base", TinyShape(seed=7))
    (shell.folder / "sums.jsonl").write_text("\n".join(data_lines("sums")))
    same = ("base=./base", "data=sums.jsonl", "batch=2", "lr=0.001", "threads=1")
    assert shell.stoker("submit", "language/lora", *same, "rank=2,4", "steps=12", "-y", "--name", "few").code == 0
    assert shell.stoker("submit", "language/lora", *same, "steps=1000000", "-y", "--name", "endless").code == 0

    with desk_of(choir) as desk:
        wait_until(lambda: desk.states()["endless"][0] == "running" and _has_begun(shell, "endless"), TRAINING_S)
        told = shell.stoker("explain", "endless", "--json").objects()[0]
        assert shell.stoker("cancel", "endless").code == 0
        wait_until(lambda: {desk.states()[f"few/{number}"][0] for number in (1, 2)} == {"completed"}, TRAINING_S)
        assert desk.states()["endless"][0] == "cancelled"
    assert set(told["together"]) <= {"few/1", "few/2"}
    processes = {line for log in (shell.home / "runs").glob("*/logs/train_lora.log") for line in _shared_processes(log)}
    assert len(processes) == 1

    for number, rank in ((1, 2), (2, 4)):
        alone = Shell(tmp_path / f"alone-{rank}")
        paths = (f"base={shell.folder / 'base'}", f"data={shell.folder / 'sums.jsonl'}")
        done = alone.stoker("run", "language/lora", *same[2:], *paths, f"rank={rank}", "steps=12", "--solo", "-y")
        assert done.code == 0, done.err
        assert shell.stoker("get", f"few/{number}", f"got-{number}").code == 0
        mine, theirs = alone.folder / "stoker-out" / "lora", shell.folder / f"got-{number}"
        ours, others = (load_file(folder / "adapter_model.safetensors") for folder in (mine, theirs))
        assert ours.keys() == others.keys()
        for name, values in ours.items():
            assert abs(values - others[name]).max() <= 1e-5 * max(1.0, abs(values).max())


@pytest.mark.slow
def test_a_base_of_the_hub_is_fetched_by_the_machine_that_trains(tmp_path: Path):
    from stoker.cookbooks.language.bundled import TinyShape, write_base
    from tests.servers.hub import FakeHub

    base = write_base(tmp_path / "base", TinyShape(seed=7))
    files = {path.name: path.read_bytes() for path in base.iterdir()}
    with FakeHub() as hub:
        hub.repository("org/tiny").commit(files)
        env = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.endpoint, "NO_PROXY": "*"}
        with singing(tmp_path, "--slots", "2", **env) as choir:
            shell = choir.shell
            done = shell.stoker(
                "submit", "language/lora", "base=org/tiny", "rank=2,4", "steps=4", "--name", "few", "-y"
            )
            assert done.code == 0, done.err
            with desk_of(choir) as desk:
                wait_until(
                    lambda: {desk.states()[f"few/{number}"][0] for number in (1, 2)} == {"completed"}, TRAINING_S
                )
            assert shell.stoker("get", "few/2", "got").code == 0
    told = json.loads((shell.folder / "got" / "adapter_config.json").read_text())
    assert (told["base_model_name_or_path"], told["r"]) == ("org/tiny", 4)
