"""`stoker pools`: list, show, check, pause, resume and stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional
from stoker.core.text import counted, outside

if TYPE_CHECKING:
    from stoker.api.pools import FleetPools
    from stoker.protocol.view_messages import DoneView

POOL = Positional("NAME", help="a pool's name, from `stoker pools`")
WHY = Option("--why", value="TEXT", help="reason, shown by pools and explain")

POOLS_GRAMMAR = Grammar(
    "pools",
    about=(
        "List the pools of the fleet: kinds of machines that are started when jobs wait, and stopped when they are "
        "idle. Pools are declared in the coordinator's cluster file; `stoker launch watch` starts their workers."
    ),
    options=(AT,),
    examples=("stoker pools", "stoker pools show a100", "stoker pools check", "stoker pools pause a100"),
)


def perform_pools(call: CommandContext, given: dict[str, Any]) -> int:
    """List pools."""
    from stoker.views.pool_lines import POOL_HEADER

    pools = pools_of(call, given).list()
    for pool in pools:
        call.out.object(pool.to_dict())
    if not pools:
        call.out.line("no pools")
        call.out.note("hint: declare them in the cluster file (pools:), then stoker admin reload")
        return 0
    call.out.table([pool.row() for pool in pools], header=POOL_HEADER)
    return 0


SHOW_GRAMMAR = Grammar(
    "pools show",
    about=(
        "Show a pool with its allocations: those that have not ended, and those of the last 24 hours. Requests of "
        "operators that are not carried out yet follow."
    ),
    positionals=(POOL,),
    options=(AT,),
    examples=("stoker pools show a100", "stoker pools show a100 --json"),
)


def perform_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a pool."""
    from stoker.views.pool_lines import ALLOCATION_HEADER, POOL_HEADER, allocation_row, open_request_lines

    (pool,) = pools_of(call, given).list((given["name"],))
    call.out.object(pool.to_dict())
    call.out.table([pool.row()], header=POOL_HEADER)
    if pool.allocations:
        call.out.line()
        rows = [
            allocation_row(one, pool.now_s, stays=one.id in pool.staying, is_silent=one.id in pool.silent)
            for one in pool.allocations
        ]
        call.out.table(rows, header=ALLOCATION_HEADER)
    if requests := open_request_lines(pool):
        call.out.line()
        call.out.lines(requests)
    return 0


CHECK_GRAMMAR = Grammar(
    "pools check",
    about=(
        "Check from this machine whether pools could start workers: whether the backend is reached and accepts the "
        "request, its host key, version and limits, the Python there, how much of Stoker is to be sent, and whether "
        "that host reaches the coordinator. Nothing is started. Exits 1 if a check fails."
    ),
    positionals=(Positional("NAME", help="pools (default: all)", is_required=False, is_many=True),),
    options=(
        Option("--url", value="URL", help="where workers reach the coordinator (default: its first advertised name)"),
        AT,
    ),
    examples=("stoker pools check", "stoker pools check a100 --json"),
)


def perform_check(call: CommandContext, given: dict[str, Any]) -> int:
    """Check pools."""
    from stoker.cli.screens import busy_between
    from stoker.devices.checkup import CheckStatus

    has_failed = False
    found = pools_of(call, given).check(given["name"], url=given["url"] or "")
    for state, checks in busy_between(call, "checking pools", found):
        has_failed = has_failed or any(one.verdict is CheckStatus.BAD for one in checks)
        call.out.object({"pool": state.pool.name, "checks": [one.to_dict() for one in checks]})
        call.out.line(f"{state.pool.name} ({state.pool.backend})")
        signs = call.out.signs
        marks = {CheckStatus.OK: signs.ran, CheckStatus.WARN: signs.warned, CheckStatus.BAD: signs.failed}
        for one in checks:
            hint = f" (hint: {one.hint})" if one.hint else ""
            call.out.line(outside(f"  {marks[one.verdict]} {one.name}: {one.message}{hint}"))
    return 1 if has_failed else 0


PAUSE_GRAMMAR = Grammar(
    "pools pause",
    about="Start no more workers of a pool. Those that run stay.",
    positionals=(POOL,),
    options=(WHY, AT),
    examples=("stoker pools pause a100 --why maintenance",),
)


def perform_pause(call: CommandContext, given: dict[str, Any]) -> int:
    """Pause a pool."""
    return _done(call, given, pools_of(call, given).pause(given["name"], given["why"] or ""), "is paused")


RESUME_GRAMMAR = Grammar(
    "pools resume",
    about="Start workers of a paused pool again. What paused it no longer counts.",
    positionals=(POOL,),
    options=(AT,),
    examples=("stoker pools resume a100",),
)


def perform_resume(call: CommandContext, given: dict[str, Any]) -> int:
    """Resume a pool."""
    return _done(call, given, pools_of(call, given).resume(given["name"]), "starts workers again")


STOP_GRAMMAR = Grammar(
    "pools stop",
    about=(
        "Stop allocations of a pool: all, or those named. Their jobs save a checkpoint and return to the queue. The "
        "pool's watcher cancels them at the backend; if no process watches the pool, this command does. Pause the pool "
        "first if no others should be started."
    ),
    positionals=(
        POOL,
        Positional("ID", help="allocations, from `stoker pools show` (default: all)", is_required=False, is_many=True),
    ),
    options=(AT,),
    examples=("stoker pools stop a100", "stoker pools stop a100 7f3a2c"),
)


def perform_stop(call: CommandContext, given: dict[str, Any]) -> int:
    """Stop allocations."""
    done = pools_of(call, given).stop(given["name"], given["id"])
    if not done.changed and not done.notes:
        call.out.note(f"{given['name']}: nothing to stop: no allocation is live")
    return _done(call, given, done, f": {counted(len(done.changed), 'allocation')} will stop")


def _done(call: CommandContext, given: dict[str, Any], done: DoneView, effect: str) -> int:
    call.out.object({"pool": given["name"], **done.model_dump(mode="json")})
    if done.changed:
        gap = "" if effect.startswith(":") else " "
        call.out.line(f"{given['name']}{gap}{effect}")
    for note in done.notes:
        call.out.note(note)
    return 0


def pools_of(call: CommandContext, given: dict[str, Any]) -> FleetPools:
    """Return the pools of the coordinator that is meant."""
    from stoker.api.pools import FleetPools

    return FleetPools(call.lookup.client(given["at"]), call.parts)
