"""`stoker adapters`: what there is to do with many adapters."""

from __future__ import annotations

from typing import Any

from stoker.cli.admin_help import list_verbs
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar

GRAMMAR = Grammar(
    "adapters",
    about=(
        "Train many adapters over one base in one process, which loads the base once, each with its own data and "
        "settings. A sweep of language/lora does so by itself; a file names adapters one by one."
    ),
    examples=("stoker adapters run adapters.toml", "stoker adapters board adapters.toml"),
)


def perform(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "adapters")
    return 0
