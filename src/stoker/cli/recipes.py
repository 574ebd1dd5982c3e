"""`stoker recipes`: list recipes from the index, without importing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.core.errors import Usage
from stoker.core.frozen import fields_of
from stoker.core.text import did_you_mean
from stoker.host.install import pip_install
from stoker.views.text_tables import argument_rows, example_line

if TYPE_CHECKING:
    from stoker.engine.catalogue import RecipeEntry


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
    examples=("stoker recipes show tabular/gbt", "stoker recipes show tabular/gbt --json"),
)


def perform_recipes_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show one recipe."""
    catalogue, out = call.parts.catalogue, call.out
    entry = catalogue.find(given["recipe"])
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
