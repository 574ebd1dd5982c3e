"""`stoker admin notify`: who is told of events elsewhere, of which, and how that goes."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Option

GRAMMAR = Grammar(
    "admin notify",
    about=(
        "List who is told of events by signed POST requests: the fleet's hooks and those of `stoker submit --notify "
        "URL`. Each message carries X-Stoker-Event-Id, the same if it comes twice, and X-Stoker-Signature: "
        "t=SECONDS,sha256=HEX, the HMAC-SHA256 of SECONDS, a dot and the body under the hook's secret."
    ),
    options=(Option("--all", help="those that were closed, too"), AT),
    examples=("stoker admin notify", "stoker admin notify --all --json"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """List them."""
    from stoker.faces.view.health import HOOK_HEADER, hook_row
    from stoker.faces.view.tables import table

    out, now_s = call.out, call.parts.clock.wall_s()
    hooks = [hook for hook in reach(call, given["at"]).hooks() if given["all"] or hook.closed_s is None]
    for hook in hooks:
        out.object(hook.model_dump(mode="json"))
    for line in table([hook_row(hook, now_s) for hook in hooks], header=HOOK_HEADER, columns=out.columns):
        out.line(line)
    if not hooks:
        out.note("nobody is told; `stoker admin notify add URL` tells somebody")
    return 0
