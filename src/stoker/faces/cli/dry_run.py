"""`stoker run --dry-run`: hit or miss with the reason for every stage, and what the misses may cost. Runs nothing."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.view.tables import table
from stoker.faces.view.times import span
from stoker.plan.preview import Forecast, Preview, Verdict, preview
from stoker.plan.resolve import changes_as_json
from stoker.worker.ordering import Order


def show_forecast(call: Call, order: Order, rerun: frozenset[str]) -> int:
    """Write what a run would do."""
    parts, out = call.parts, call.out
    seen = preview(order.plan, cache=parts.cache, history=parts.history, rerun=rerun)
    rows = []
    for forecast in seen.forecasts:
        out.object(forecast_as_json(forecast))
        rows.append([forecast.node, str(forecast.verdict), _cost(forecast), forecast.why])
    for line in table(rows, header=("stage", "", "cost", "why"), columns=out.columns):
        out.line(line)
    out.line(f"\n{_headline(seen)}; nothing was run")
    return 0


def forecast_as_json(forecast: Forecast) -> dict[str, Any]:
    """Give a forecast as plain data."""
    return {
        "node": forecast.node,
        "stage": forecast.stage,
        "verdict": str(forecast.verdict),
        "why": forecast.why,
        "changes": changes_as_json(forecast.changes),
        "key": forecast.key,
        "estimate_s": forecast.estimate_s,
    }


def _cost(forecast: Forecast) -> str:
    if forecast.verdict is Verdict.HIT:
        return ""
    return f"~{span(forecast.estimate_s)}" if forecast.estimate_s is not None else "?"


def _headline(seen: Preview) -> str:
    misses, unknown = seen.count(Verdict.MISS), seen.count(Verdict.UNKNOWN)
    total = len(seen.forecasts)
    if not misses and not unknown:
        return f"all {total} stages are known"
    told = [f"{seen.count(Verdict.HIT)} of {total} stages are known", f"{misses} would run"]
    if unknown:
        told.append(f"{unknown} may follow")
    if seen.estimate_s is not None:
        told.append(f"about {span(seen.estimate_s)} of work, as far as history tells")
    return ", ".join(told)
