"""What a desktop shows while a screen is open: what ended, got lost or went wrong since, once, and not in floods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.api.desktop_notices import (
    DesktopChoice,
    DesktopNotifier,
    in_one,
    read_choice,
    remove_choice,
    write_choice,
)
from stoker.core.clock import FakeClock
from stoker.core.errors import LocalFile, NoCoordinator
from stoker.host.command_runner import ProbeOutput, Reply
from stoker.host.desktop import Desktop
from stoker.protocol.view_messages import JobView, SymptomView
from stoker.views.notice_text import NoticeText, NoticeTone
from tests.fakes.monitor import NOON_S, MemoryMonitor, job, machine


class Shown:
    """A desktop that keeps what it was asked to show."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []

    def ask(self, argv: Sequence[str], *, limit_s: float = 5.0, stdin: str = "") -> Reply:
        self.commands.append(tuple(argv))
        return ProbeOutput(out="")

    def ask_all(self, commands: Sequence[Sequence[str]], *, limit_s: float = 5.0) -> tuple[Reply, ...]:
        return tuple(map(self.ask, commands))

    def take(self) -> list[tuple[str, str]]:
        found = [(title, text) for *_, title, text in self.commands]
        self.commands.clear()
        return found


@pytest.fixture
def shown() -> Shown:
    return Shown()


def notifier(monitor: MemoryMonitor, shown: Shown, choice: DesktopChoice | None = None) -> DesktopNotifier:
    desktop = Desktop({"DISPLAY": ":0", "PATH": "/bin:/usr/bin"}, runner=shown, system="linux")
    desktop._program = "/usr/bin/notify-send"
    made = DesktopNotifier(monitor, desktop, choice or DesktopChoice(), FakeClock(NOON_S))
    made.step()
    return made


def ended(number: int, state: str, **fields: Any) -> JobView:
    return job(number, state, ended_s=NOON_S + 2000, **fields)


def test_a_job_that_ends_is_shown_once_and_what_ended_before_never(shown: Shown) -> None:
    monitor = MemoryMonitor([job(1), job(2, "failed", ended_s=NOON_S)])
    found = notifier(monitor, shown)
    monitor.change(ended(1, "completed", metrics={"loss": 0.25}), job(2, "failed", ended_s=NOON_S))
    found.step()
    assert shown.take() == [("resnet/1 completed", "on desk; loss 0.25")]
    monitor.change(ended(1, "completed"))
    found.step()
    assert shown.take() == []
    # Started again, and failed this time.
    monitor.change(ended(1, "failed", epoch=2, why="exit 1"))
    found.step()
    assert shown.take() == [("resnet/1 failed", "on desk; exit 1")]


def test_many_at_once_are_one_notification_the_bad_ones_first(shown: Shown) -> None:
    monitor = MemoryMonitor([job(number) for number in range(1, 30)])
    found = notifier(monitor, shown)
    monitor.change(*(ended(number, "failed" if number == 9 else "completed") for number in range(1, 30)))
    found.step()
    ((title, text),) = shown.take()
    assert title == "29 events, 1 bad"
    assert text.startswith("resnet/9 failed, resnet/1 completed, ")
    assert text.endswith(" and 24 more")


def test_events_and_submitters_are_chosen(shown: Shown) -> None:
    monitor = MemoryMonitor([job(1), job(2), job(3)])
    found = notifier(monitor, shown, DesktopChoice(on=("failed",), user="anna"))
    monitor.change(ended(1, "completed"), ended(2, "failed"), ended(3, "failed", submitter="bob"))
    found.step()
    assert [title for title, _ in shown.take()] == ["resnet/2 failed"]


def test_a_machine_that_is_lost_and_a_new_symptom_are_shown_once(shown: Shown) -> None:
    known = SymptomView(machine="desk", symptom="disk", since_s=NOON_S, message="3 GiB free")
    monitor = MemoryMonitor([], [machine("desk", symptoms=(known,)), machine("lab1")])
    found = notifier(monitor, shown)
    hot = SymptomView(machine="desk", device="GPU-1", symptom="hot", since_s=NOON_S, message="91 °C", hint="look")
    for _ in range(2):
        monitor.change_machine(machine("desk", symptoms=(known, hot)))
        found.step()
    assert shown.take() == [("hot on desk", "91 °C; look")]
    for state in ("silent", "silent", "busy"):
        monitor.change_machine(machine("lab1", state))
        found.step()
    assert [title for title, _ in shown.take()] == ["machine lab1 is lost"]


def test_a_coordinator_that_is_away_is_asked_again_and_nothing_is_forgotten(shown: Shown) -> None:
    monitor = MemoryMonitor([job(1)])
    found = notifier(monitor, shown)
    monitor.trouble = NoCoordinator("connection refused")
    monitor.change(ended(1, "failed"))
    assert found.step() > 5
    monitor.trouble = None
    assert found.step() == 5
    assert [title for title, _ in shown.take()] == ["resnet/1 failed"]


def test_one_message_stays_as_it_is() -> None:
    one = NoticeText(title="a", text="b", tone=NoticeTone.GOOD)
    assert in_one([one]) is one
    assert in_one([one, one]).tone is NoticeTone.GOOD


def test_the_choice_is_a_private_file_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    state = str(tmp_path)
    assert read_choice(state) is None
    write_choice(state, DesktopChoice(on=("failed",), user="anna"))
    assert read_choice(state) == DesktopChoice(on=("failed",), user="anna")
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_text("{")
    with pytest.raises(LocalFile, match="can't be read"):
        read_choice(state)
    assert remove_choice(state)
    assert not remove_choice(state)
