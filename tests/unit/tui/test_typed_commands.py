"""Commands after `:`: what they mean, what they ask, and what they do."""

from __future__ import annotations

import pytest

from stoker.core.errors import Usage
from stoker.tui.typed_commands import CockpitAction, GoTo, Quit, Selected, SetFilter, parse_command
from tests.fakes.monitor import MemoryMonitor

SELECTED = Selected(job="resnet/3", ref="abc", machine="desk")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("q", Quit()),
        ("cancel", CockpitAction(verb="cancel", target="resnet/3", ref="abc")),
        ("cancel other", CockpitAction(verb="cancel", target="other")),
        ("priority 5", CockpitAction(verb="priority", target="resnet/3", ref="abc", priority=5)),
        ("priority other -2", CockpitAction(verb="priority", target="other", priority=-2)),
        ("drain", CockpitAction(verb="drain", target="desk")),
        ("pause lab1 2h", CockpitAction(verb="pause", target="lab1", for_s=7200.0)),
        ("open lab1", CockpitAction(verb="open", target="lab1")),
        ("logs", GoTo(page="job", job="abc", tab="logs")),
        ("explain other", GoTo(page="job", job="other", tab="explain")),
        ("show other", GoTo(page="job", job="other")),
        ("machines", GoTo(page="machines")),
        ("filter state:failed a", SetFilter(text="state:failed a")),
    ],
)
def test_a_command_means_what_it_says(text: str, meaning: object) -> None:
    assert parse_command(text, SELECTED) == meaning


@pytest.mark.parametrize(
    "text", ["", "cancle", "priority", "priority x", "priority 99999999999", "cancel a b", "pause desk soon", "'"]
)
def test_a_wrong_command_is_refused(text: str) -> None:
    with pytest.raises(Usage):
        parse_command(text, SELECTED)


@pytest.mark.parametrize("text", ["cancel", "requeue", "logs", "drain"])
def test_a_command_without_a_name_needs_a_selected_thing(text: str) -> None:
    with pytest.raises(Usage, match="nothing is selected"):
        parse_command(text, Selected())


@pytest.mark.parametrize(
    ("text", "question", "command", "done"),
    [
        ("cancel", "cancel resnet/3?", "stoker cancel resnet/3", ("cancel", "abc")),
        ("requeue", "start resnet/3 again?", "stoker jobs requeue resnet/3", ("requeue", "abc")),
        (
            "priority 5",
            "set the priority of resnet/3 to 5?",
            "stoker jobs priority resnet/3 5",
            ("priority", "abc", 5),
        ),
        (
            "cordon lab1",
            "cordon machine lab1: start no more jobs there?",
            "stoker machines cordon lab1",
            ("cordon", "lab1", None),
        ),
    ],
)
def test_an_action_names_the_thing_and_its_command(text: str, question: str, command: str, done: tuple) -> None:
    action, monitor = parse_command(text, SELECTED), MemoryMonitor()
    assert isinstance(action, CockpitAction)
    assert (action.question, action.command) == (question, command)
    action.perform(monitor)
    assert monitor.done == [done]
