"""`stoker admin`: what operators need, one line each."""

from __future__ import annotations

from typing import Any

from stoker.cli.commands import verbs_of
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar
from stoker.views.text_tables import table

GRAMMAR = Grammar(
    "admin",
    about="List what operators need now and then.",
    examples=("stoker admin", "stoker admin simulate"),
)


def perform(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "admin")
    return 0


def list_verbs(call: CommandContext, words: str) -> None:
    """Show the commands that are some words and one more."""
    verbs = [(f"stoker {verb.words}", verb.summary) for verb in verbs_of(words)]
    for command, summary in verbs:
        call.out.object({"command": command, "summary": summary})
    for line in table([list(verb) for verb in verbs], columns=call.out.columns):
        call.out.line(line)
