"""`stoker config show`: show a configuration with the origin of each value."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.run import read_request
from stoker.config.sweep import Sweep, axes_of
from stoker.config.values import NOTHING, text_of
from stoker.jobs.builder import ComposedJob
from stoker.jobs.trial_settings import masked, masked_origin

_CHOICES_SHOWN = 8

GRAMMAR = Grammar(
    "config show",
    about=(
        "Show the configuration that `stoker run` would use with the same arguments: each value with its origin (file "
        "and line, variable or argument). `--why KEY` shows all layers of one value."
    ),
    positionals=(
        Positional(
            "RECIPE",
            key="target",
            help="a recipe; omit it if a program follows --",
            is_required=False,
            completes="recipe",
        ),
        Positional(
            "key=value",
            key="values",
            help="settings, as for `stoker run`",
            is_many=True,
            is_required=False,
            completes="setting",
        ),
    ),
    options=(
        Option("--config", value="FILE", help="YAML or TOML file; may be repeated, later ones win", is_many=True),
        Option("--why", value="KEY", help="show all layers of one value, the winner last"),
        Option("--yaml", help="print as YAML for --config"),
    ),
    examples=(
        "stoker config show tabular/gbt lr=0.05",
        "stoker config show tabular/gbt lr=0.05 --why lr",
        "stoker config show lr=1e-3 -- python train.py --lr {lr}",
    ),
    takes_program=True,
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a configuration."""
    draft = call.builder().compose(read_request(given, GRAMMAR))
    if given["why"]:
        return _show_why(call, draft, given["why"])
    out = call.out
    composed = draft.composed
    if given["yaml"]:
        out.line(composed.to_yaml().rstrip("\n"))
        out.object({"yaml": composed.to_yaml()})
        return 0
    rows, recipe = composed.rows(), draft.recipe.name
    for row in rows:
        out.object(
            {
                "key": row.path,
                "value": masked(recipe, row.path, row.value),
                "from": masked_origin(recipe, row.path, str(row.origin)),
                "layer": row.origin.layer,
                "is_note": row.is_note,
            }
        )
    shown = [
        [
            row.path + (" (note)" if row.is_note else ""),
            text_of(masked(recipe, row.path, row.value)),
            masked_origin(recipe, row.path, str(row.origin)),
        ]
        for row in rows
    ]
    out.table(shown, header=("key", "value", "from"))
    if composed.sweep is not None:
        _show_sweep(call, composed.sweep, draft.size)
    return 0


def _show_sweep(call: CommandContext, sweep: Sweep, size: int) -> None:
    out = call.out
    rows = []
    for axis in axes_of(sweep):
        first = [choice.text for choice in islice(axis.choices, _CHOICES_SHOWN)]
        where = str(axis.origin) if axis.origin else ""
        out.object({"key": axis.path, "choices": first, "count": axis.count, "from": where, "layer": "sweep"})
        more = ", …" if axis.count > len(first) else ""
        rows.append([axis.path, f"{', '.join(first)}{more} ({axis.count:,})", where])
    out.line(f"\nsweep of {size:,} trials over")
    out.table(rows, header=("key", "values", "from"))


def _show_why(call: CommandContext, draft: ComposedJob, key: str) -> int:
    texts = draft.composed.explain(key)
    stacks = [(path, [(str(one.origin), one.value) for one in stack]) for path, stack in texts.items()]
    return show_stacks(call, stacks, key, list(draft.composed.origins), recipe=draft.recipe.name)


def show_stacks(
    call: CommandContext,
    stacks: list[tuple[str, list[tuple[str, Any]]]],
    key: str,
    known: list[str],
    *,
    recipe: str,
    varying: Container[str] = (),
) -> int:
    """Print the layers of some values, the winner last; `varying` paths differ by trial and have no winner."""
    from stoker.core.errors import NotFound
    from stoker.core.text import did_you_mean_path

    if not stacks:
        raise NotFound(f"no setting {key!r}", hint=did_you_mean_path(key, known))
    for path, texts in stacks:
        stack = [(masked_origin(recipe, path, where), masked(recipe, path, value)) for where, value in texts]
        call.out.object({"key": path, "layers": [{"from": where, "value": _plain(value)} for where, value in stack]})
        call.out.line(call.out.paint(path, "bold"))
        rows = [
            [_mark(path, position, stack, varying), "deleted" if value is NOTHING else text_of(value), where]
            for position, (where, value) in enumerate(stack)
        ]
        call.out.table(rows, header=("", "value", "from"), indent="  ")
    return 0


def _mark(path: str, position: int, stack: Sequence[Any], varying: Container[str]) -> str:
    return "→" if position == len(stack) - 1 and path not in varying else ""


def _plain(value: Any) -> Any:
    return None if value is NOTHING else value
