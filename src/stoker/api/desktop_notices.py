"""Notifications on the desktop of this machine, while the cockpit or `stoker ui` runs here.

Which events are shown is a file of this user; there is none until `stoker admin notify add --desktop` wrote it. A
thread asks the monitor of the screen every five seconds what changed, and shows it in one notification.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.api.monitor import Monitor
from stoker.core.clock import Clock
from stoker.core.errors import LocalFile, StokerError
from stoker.core.events import FleetKinds
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import counted, first_line, one_line, some_of
from stoker.host.desktop import Desktop
from stoker.host.durable import read_regular, write_file
from stoker.protocol.screen_messages import ChangedRows, Overview
from stoker.protocol.view_messages import JobView, MachineView
from stoker.views.notice_text import NoticeText, NoticeTone, notice_text

DESKTOP_WORDS = ("completed", "failed", "cancelled", "symptom", "lost")
"""Events that a desktop can show: ends of jobs, symptoms of machines and devices, and machines that are lost."""
USUAL_DESKTOP_WORDS = ("completed", "failed", "symptom", "lost")
EVERY_S = 5.0
_RETRY_S = 30.0
_FILE = "desktop-notices.json"
_MOST_BYTES = 64 * 1024
_NAMED = 5
_MOST_ENDED = 10_000
_LOST = frozenset({"silent", "gone"})


@frozen
class DesktopChoice:
    """Which events are shown."""

    on: tuple[str, ...] = USUAL_DESKTOP_WORDS
    user: str = ""
    """Only jobs of this submitter; empty: of all."""


def read_choice(state: str) -> DesktopChoice | None:
    """Return what this user chose; None: nothing is shown. Raises `LocalFile` if the file can't be read."""
    path = os.path.join(state, _FILE)
    try:
        raw = loads(read_regular(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        hint = "write it again: stoker admin notify add --desktop"
        raise LocalFile(f"{path} can't be read: {first_line(error)}", hint=hint) from None
    found = raw if isinstance(raw, dict) else {}
    words = [word for word in found.get("on") or () if word in DESKTOP_WORDS]
    return DesktopChoice(on=tuple(words) or USUAL_DESKTOP_WORDS, user=one_line(str(found.get("user") or ""), 200))


def write_choice(state: str, choice: DesktopChoice) -> None:
    """Store what is shown from now on."""
    text = dumps({"v": 1, "on": list(choice.on), "user": choice.user})
    write_file(os.path.join(state, _FILE), text.encode(), mode=0o600)


def remove_choice(state: str) -> bool:
    """Show nothing any more; return False if nothing was shown."""
    try:
        os.unlink(os.path.join(state, _FILE))
    except FileNotFoundError:
        return False
    return True


class ChangeNotices:
    """Tells which changed rows are worth a notification. Not thread-safe."""

    def __init__(self, choice: DesktopChoice, overview: Overview, machines: Iterable[MachineView]) -> None:
        """`overview` and `machines` are as they are now: only what happens later is news."""
        self._choice = choice
        self._since_s = overview.server_s
        self._ended: dict[tuple[str, int, str], None] = {}
        self._states: dict[str, str] = {}
        self._symptoms: dict[str, frozenset[tuple[str, str]]] = {}
        for machine in machines:
            self._note(machine)

    def of(self, change: ChangedRows) -> list[NoticeText]:
        """Return what happened, the jobs first."""
        jobs = [notice for view in change.jobs if (notice := self._job(view)) is not None]
        return [*jobs, *(notice for machine in change.machines for notice in self._machine(machine))]

    def _job(self, view: JobView) -> NoticeText | None:
        key = (view.id, view.epoch, view.state)
        is_news = view.state in self._choice.on and view.ended_s is not None and view.ended_s > self._since_s
        if not is_news or key in self._ended or self._choice.user not in ("", view.submitter):
            return None
        self._ended[key] = None
        while len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        event = {"kind": "job_ended", "to": view.state, "name": view.name, "label": view.label}
        return notice_text({**event, "machine": view.machine, "metrics": view.metrics, "message": view.why})

    def _machine(self, machine: MachineView) -> list[NoticeText]:
        was_lost = self._states.get(machine.name) in _LOST
        known = self._symptoms.get(machine.name, frozenset())
        self._note(machine)
        events: list[Mapping[str, Any]] = []
        if "lost" in self._choice.on and machine.state in _LOST and not was_lost:
            events.append({"kind": FleetKinds.MACHINE_LOST, "machine": machine.name})
        if "symptom" in self._choice.on:
            events += [
                {"kind": FleetKinds.SYMPTOM, **one.model_dump(include={"machine", "symptom", "message", "hint"})}
                for one in machine.symptoms
                if (one.symptom, one.device) not in known
            ]
        return [notice_text(event) for event in events]

    def _note(self, machine: MachineView) -> None:
        self._states[machine.name] = machine.state
        self._symptoms[machine.name] = frozenset((one.symptom, one.device) for one in machine.symptoms)


def in_one(notices: Sequence[NoticeText]) -> NoticeText:
    """Return several messages as one; a single one stays as it is. The worst of them decides the tone."""
    if len(notices) == 1:
        return notices[0]
    tones = Counter(one.tone for one in notices)
    tone = NoticeTone.BAD if tones[NoticeTone.BAD] else max(tones, key=lambda one: tones[one])
    first = sorted(notices, key=lambda one: one.tone is not NoticeTone.BAD)
    bad = f", {tones[NoticeTone.BAD]:,} bad" if 0 < tones[NoticeTone.BAD] < len(notices) else ""
    text = some_of([one.title for one in first], _NAMED)
    return NoticeText(title=f"{counted(len(notices), 'event')}{bad}", text=text, tone=tone)


class DesktopNotifier:
    """Shows in a thread what happens while a screen is open."""

    def __init__(self, monitor: Monitor, desktop: Desktop, choice: DesktopChoice, clock: Clock) -> None:
        self._monitor = monitor
        self._desktop = desktop
        self._choice = choice
        self._clock = clock
        self._seq: int | None = None
        self._notices: ChangeNotices | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Show what happens until `close`."""
        threading.Thread(target=self._work, name="desktop-notices", daemon=True).start()

    def close(self) -> None:
        """Stop. Does not wait: a request may be under way."""
        self._stop.set()

    def step(self) -> float:
        """Look once, show what happened since; return after how many seconds to look again."""
        try:
            found = self._look()
        except StokerError:
            # The screen says so.
            return _RETRY_S
        if found:
            shown = in_one(found)
            self._desktop.notify(shown.title, shown.text, is_urgent=shown.tone is NoticeTone.BAD)
        return EVERY_S

    def _look(self) -> list[NoticeText]:
        if self._seq is None or self._notices is None:
            overview = self._monitor.overview()
            if self._notices is None:
                self._notices = ChangeNotices(self._choice, overview, self._monitor.machines())
            self._seq = overview.seq
            return []
        change = self._monitor.changes(self._seq, 0.0)
        self._seq = None if change.resync else max(self._seq, change.seq)
        return self._notices.of(change)

    def _work(self) -> None:
        while not self._stop.wait(self.step()):
            pass
