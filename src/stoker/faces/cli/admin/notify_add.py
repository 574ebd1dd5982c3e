"""`stoker admin notify add`: tell an address of events."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.worker.submitting.person import who_asks


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


GRAMMAR = Grammar(
    "admin notify add",
    about=(
        "Tell an address of what happens from now on, by POST requests of JSON, at least once each, in order. What "
        "signs them is printed, once. An address that can't be told anything is tried again after pauses of up to an "
        "hour, and closed after a day. Words: submitted, started, completed, failed, cancelled, retrying, symptom, "
        "machine, trust; completed, failed, cancelled and symptom unless told."
    ),
    positionals=(Positional("URL", help="https://…; link-local addresses are never told"),),
    options=(Option("--on", value="WORDS", read=_words, help="of what, with commas: failed,symptom"), AT),
    examples=(
        "stoker admin notify add https://example.org/stoker",
        "stoker admin notify add http://10.0.0.5:8080/ --on failed,symptom",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Make it."""
    from stoker.wire.health import HookAsk

    by = who_asks(call.parts.settings.environment)
    made = reach(call, given["at"]).make_hook(HookAsk(url=given["url"], on=given["on"] or (), by=by))
    call.out.object(made.model_dump(mode="json"))
    call.out.line(made.secret)
    call.out.note(f"hook {made.hook.id}: {made.hook.url}; what signs its messages is above, and is not shown again")
    call.out.note(f"try it: stoker admin notify test {made.hook.id}")
    return 0
