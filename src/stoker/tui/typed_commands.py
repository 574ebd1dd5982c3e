"""Commands of the cockpit: what a word after `:` or a key means, the question before it acts, and the act itself."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from stoker.api.monitor import Monitor
from stoker.core.errors import Usage
from stoker.core.frozen import frozen
from stoker.core.machine import MOST_PRIORITY
from stoker.core.text import did_you_mean, format_duration, parse_duration
from stoker.protocol.view_messages import DoneView

TABS = ("curves", "logs", "stages", "explain", "config")
MACHINE_VERBS = ("drain", "cordon", "pause", "open")
_JOB_VERBS = ("cancel", "requeue", "priority")
_PAGES = ("jobs", "machines", "help")
_QUIT = ("q", "quit", "exit")
_WORDS = (*_JOB_VERBS, *MACHINE_VERBS, *TABS, "show", "machine", "filter", *_PAGES, "quit")

_QUESTIONS = {
    "cancel": "cancel {target}?",
    "requeue": "start {target} again?",
    "priority": "set the priority of {target} to {priority}?",
    "drain": "drain machine {target}: let its jobs finish and start no more?",
    "cordon": "cordon machine {target}: start no more jobs there?",
    "pause": "pause machine {target}{span}: start no more jobs there?",
    "open": "open machine {target}: start jobs there again?",
}


@frozen
class CockpitAction:
    """Something that changes a job or a machine, after a question."""

    verb: str
    target: str
    ref: str = ""
    """The id of a job that was selected in a list; else it is looked up by its name."""
    priority: int = 0
    for_s: float | None = None

    @property
    def question(self) -> str:
        """The question that names what will be changed."""
        span = f" for {format_duration(self.for_s)}" if self.for_s is not None else ""
        return _QUESTIONS[self.verb].format(target=self.target, priority=self.priority, span=span)

    @property
    def command(self) -> str:
        """The command line that does the same."""
        target = shlex.quote(self.target)
        if self.verb == "cancel":
            return f"stoker cancel {target}"
        if self.verb in _JOB_VERBS:
            return f"stoker jobs {self.verb} {target}{f' {self.priority}' if self.verb == 'priority' else ''}"
        return f"stoker machines {self.verb} {target}"

    def perform(self, monitor: Monitor) -> DoneView:
        """Act. Blocks."""
        ref = self.ref or self.target
        acts: dict[str, Callable[[], DoneView]] = {
            "cancel": lambda: monitor.cancel(ref),
            "requeue": lambda: monitor.requeue(ref),
            "priority": lambda: monitor.set_priority(ref, self.priority),
        }
        act = acts.get(self.verb)
        return act() if act else monitor.set_machine(self.target, self.verb, for_s=self.for_s)


@frozen
class GoTo:
    """Show a page, one job with a tab, or one machine."""

    page: str
    job: str = ""
    """Name or id, with page `job`."""
    tab: str = ""
    machine: str = ""
    """Name, with page `machine`."""


@frozen
class SetFilter:
    """Show the jobs that match."""

    text: str


@frozen
class Quit:
    """Leave the cockpit."""


Typed = CockpitAction | GoTo | SetFilter | Quit


@frozen
class Selected:
    """What a command without a name means."""

    job: str = ""
    ref: str = ""
    machine: str = ""


def parse_command(text: str, selected: Selected) -> Typed:
    """Return what a command line of the cockpit means. Raises `Usage`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Usage(f"{text!r}: {error}") from error
    if not words:
        raise Usage("empty command", hint="? lists the commands")
    verb, *rest = words
    if verb in _QUIT:
        return Quit()
    if verb in _JOB_VERBS:
        return _job_action(verb, rest, selected)
    if verb in MACHINE_VERBS:
        return _machine_action(verb, rest, selected)
    if verb == "filter":
        return SetFilter(text=" ".join(rest))
    if verb in (*_PAGES, *TABS, "log", "show", "machine"):
        return _page(verb, rest, selected)
    raise Usage(f"unknown command {verb!r}: {did_you_mean(verb, _WORDS) or 'press ? for help'}")


def _page(verb: str, rest: list[str], selected: Selected) -> GoTo:
    if verb in _PAGES:
        return GoTo(page=verb)
    if verb == "machine":
        return GoTo(page="machine", machine=rest[0] if rest else _named(selected.machine, verb, "NAME"))
    tab = {"log": "logs", "show": ""}.get(verb, verb)
    return GoTo(page="job", job=rest[0] if rest else selected.ref or _named(selected.job, verb, "NAME"), tab=tab)


def _job_action(verb: str, rest: list[str], selected: Selected) -> CockpitAction:
    priority = 0
    if verb == "priority":
        if not rest:
            raise Usage("priority needs a number", hint="priority [NAME] 5")
        priority = _priority(rest[-1])
        rest = rest[:-1]
    if len(rest) > 1:
        raise Usage(f"{verb} takes one job, not {len(rest)}")
    if rest:
        return CockpitAction(verb=verb, target=rest[0], priority=priority)
    return CockpitAction(verb=verb, target=_named(selected.job, verb, "NAME"), ref=selected.ref, priority=priority)


def _machine_action(verb: str, rest: list[str], selected: Selected) -> CockpitAction:
    for_s = None
    if verb == "pause" and len(rest) == 2:
        try:
            for_s = parse_duration(rest[1])
        except ValueError as error:
            raise Usage(str(error)) from error
        rest = rest[:1]
    if len(rest) > 1:
        raise Usage(f"{verb} takes one machine, not {len(rest)}")
    name = rest[0] if rest else _named(selected.machine, verb, "MACHINE")
    return CockpitAction(verb=verb, target=name, for_s=for_s)


def _priority(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and abs(int(text)) <= MOST_PRIORITY):
        raise Usage(f"priority {text!r} is not a whole number up to {MOST_PRIORITY}")
    return int(text)


def _named(name: str, verb: str, label: str) -> str:
    if not name:
        raise Usage(f"{verb}: nothing is selected", hint=f"{verb} {label}")
    return name
