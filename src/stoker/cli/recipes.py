"""`stoker recipes`: list recipes from the index, without importing them. `stoker config`: show a configuration."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.core.errors import Usage
from stoker.core.frozen import fields_of
from stoker.core.text import did_you_mean
from stoker.host.install import pip_install
from stoker.views.text_tables import argument_rows, example_line, file_schema

if TYPE_CHECKING:
    from stoker.config.sweep import Sweep
    from stoker.engine.catalogue import RecipeEntry
    from stoker.jobs.builder import ComposedJob


# Repeated here, because importing their enumeration is slow.
_CATEGORIES = ("data_prep", "pretrain", "train", "eval", "gate", "export", "pipeline", "user")

RECIPES_GRAMMAR = Grammar(
    "recipes",
    about="List all recipes of the installed cookbooks, ordered by category.",
    options=(
        Option(
            "--category",
            value="NAME",
            help=f"only this category: {', '.join(_CATEGORIES)}",
            completes=_CATEGORIES,
        ),
    ),
    examples=("stoker recipes", "stoker recipes --category train", "stoker recipes show tabular/gbt"),
)


def perform_recipes(call: CommandContext, given: dict[str, Any]) -> int:
    """List the recipes, all or those of one category."""
    catalogue = call.parts.catalogue
    wanted = (given["category"] or "").replace(" ", "_").replace("-", "_")
    if wanted and wanted not in _CATEGORIES:
        hint = did_you_mean(wanted, _CATEGORIES) or f"use one of {', '.join(_CATEGORIES)}"
        raise Usage(f"unknown category {wanted!r}", hint=hint)
    entries = catalogue.entries()
    list_entries(call, [entry for entry in entries if not wanted or entry.category == wanted])
    for trouble in catalogue.troubles:
        call.out.note(f"note: {trouble}")
    return 0


def entry_as_json(entry: RecipeEntry) -> dict[str, Any]:
    """Return a recipe as plain data."""
    return fields_of(entry)


def list_entries(call: CommandContext, entries: list[RecipeEntry]) -> None:
    """Print recipes, one per line."""
    out = call.out
    for entry in entries:
        out.object(entry_as_json(entry))
    rows = [[entry.name, entry.category.replace("_", " "), entry.summary] for entry in entries]
    out.table(rows, header=("recipe", "category", "summary"))
    if not entries:
        out.line("no cookbooks installed")
        out.note(f"hint: {pip_install('stoker[tabular]')}")


# `stoker recipes show`: one recipe with its arguments and an example.

RECIPES_SHOW_GRAMMAR = Grammar(
    "recipes show",
    about="Show a recipe's purpose, its arguments (type, default, limits), and a command that runs it.",
    positionals=(Positional("RECIPE", help="a recipe's name, or its last part if it is unique", completes="recipe"),),
    options=(Option("--schema", help="print the JSON Schema of its file for --config, for editors"),),
    examples=(
        "stoker recipes show tabular/gbt",
        "stoker recipes show tabular/gbt --json",
        "stoker recipes show tabular/gbt --schema",
    ),
)


def perform_recipes_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show one recipe."""
    catalogue, out = call.parts.catalogue, call.out
    entry = catalogue.find(given["recipe"])
    if given["schema"]:
        schema = file_schema(entry.name, entry.summary, entry.args)
        out.object(schema)
        out.line(json.dumps(schema, indent=2, ensure_ascii=False))
        return 0
    example = example_line(entry.name, entry.args, entry.prefill)
    swaps = [swap.name for swap in catalogue.swaps(entry.name)]
    out.object({**entry_as_json(entry), "example": example, "swaps": swaps})
    out.line(f"{out.paint(entry.name, 'bold')}: {entry.summary}")
    about = [entry.category.replace("_", " "), f"cookbook {entry.cookbook}", f"version {entry.version}"]
    if entry.inputs:
        about.append(f"takes {', '.join(entry.inputs)}")
    out.line(f"{' · '.join(about)} · gives {entry.output}")
    rows = argument_rows(entry.args)
    out.line()
    out.table(rows, header=("argument", "type", "default", "limits", "help"), indent="  ")
    if not rows:
        out.line("  no arguments")
    out.line(f"\nrun it:\n  {example}")
    if swaps:
        out.line(f"alternatives:  {', '.join(swaps)}")
    return 0


# `stoker recipes swaps`: recipes with the same input and output kinds.

RECIPES_SWAPS_GRAMMAR = Grammar(
    "recipes swaps",
    about="List the recipes with the same input and output kinds, which can replace a recipe.",
    positionals=(Positional("RECIPE", help="a recipe's name, or its last part if it is unique", completes="recipe"),),
    examples=("stoker recipes swaps tabular/gbt",),
)


def perform_recipes_swaps(call: CommandContext, given: dict[str, Any]) -> int:
    """List the alternatives of a recipe."""
    catalogue = call.parts.catalogue
    swaps = catalogue.swaps(given["recipe"])
    if swaps:
        list_entries(call, swaps)
    else:
        wanted = catalogue.find(given["recipe"])
        call.out.line(f"no other recipe has the inputs and output of {wanted.name} ({wanted.output})")
    return 0


# `stoker config show`: show a configuration with the origin of each value.


_CHOICES_SHOWN = 8

CONFIG_GRAMMAR = Grammar(
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


def perform_config(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a configuration."""
    from stoker.cli.run import read_request
    from stoker.config.values import text_of
    from stoker.jobs.trial_settings import masked, masked_origin

    draft = call.builder().compose(read_request(given, CONFIG_GRAMMAR))
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
    from stoker.config.sweep import axes_of

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
    from stoker.config.values import NOTHING, text_of
    from stoker.core.errors import NotFound
    from stoker.core.text import did_you_mean_path
    from stoker.jobs.trial_settings import masked, masked_origin

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
    from stoker.config.values import NOTHING

    return None if value is NOTHING else value
