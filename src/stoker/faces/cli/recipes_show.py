"""`stoker recipes show`: one recipe with its arguments, and a line to start from."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.faces.cli.recipes import entry_as_json
from stoker.faces.view.arguments import argument_rows, example_line
from stoker.faces.view.tables import table

GRAMMAR = Grammar(
    "recipes show",
    about="Show what a recipe does, what it takes (type, default, limits) and a line that runs it.",
    positionals=(Positional("RECIPE", help="a recipe's name; its last part will do if no other ends in it"),),
    examples=("stoker recipes show tabular/gbt", "stoker recipes show tabular/gbt --json"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
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
    for line in table(rows, header=("argument", "type", "default", "limits", "help"), columns=out.columns, indent="  "):
        out.line(line)
    if not rows:
        out.line("  it takes no arguments")
    out.line(f"\nrun it:\n  {example}")
    if swaps:
        out.line(f"instead:  {', '.join(swaps)}")
    return 0
