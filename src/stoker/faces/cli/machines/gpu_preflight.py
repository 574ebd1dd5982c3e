"""`stoker gpu-preflight`: which accelerators work here, as fields for scripts; `--require` fails without one."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option
from stoker.faces.cli.output import Output
from stoker.hardware.requiring import faked_by, preflight_fields
from stoker.model.errors import Usage
from stoker.model.json_text import dumps

_YES = {True: "yes", False: "no"}

GRAMMAR = Grammar(
    "gpu-preflight",
    about=(
        "Say which accelerators programs can use here: cuda and rocm with their versions, metal, wgpu (implied by any "
        "other), and whether there is any. Exit code 0; with --require, 1 if there is none."
    ),
    options=(
        Option("--require", help="fail with exit code 1 if there is none"),
        Option("--format", value="HOW", help="`text` (the default) or `json`, which is what --json writes"),
    ),
    examples=("stoker gpu-preflight", "stoker gpu-preflight --require --format json"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Look and answer."""
    out = call.out
    how = given["format"] or ("json" if out.is_json else "text")
    if how not in ("text", "json") or (out.is_json and how == "text"):
        what = "--json and --format text contradict each other" if how == "text" else f"there is no format {how!r}"
        raise Usage(what, hint="--format text, --format json, or --json")
    capability = call.parts.capability
    fields = preflight_fields(capability)
    _answer(out, fields, faked_by(capability), is_text=how == "text")
    if given["require"] and not fields["any_available"]:
        out.complain("stoker: no accelerator can be used here")
        out.complain("hint: stoker doctor says what is installed, visible and usable, and what to do")
        return 1
    return 0


def _answer(out: Output, fields: dict[str, Any], label: str, *, is_text: bool) -> None:
    if out.is_json:
        out.object(fields)
    elif not is_text:
        out.line(dumps(fields))
    else:
        for line in field_lines(fields, label):
            out.line(line)


def field_lines(fields: dict[str, Any], label: str) -> list[str]:
    """Give the fields as a person reads them, one a line."""
    lines = []
    for name, value in fields.items():
        # A version that nobody says of something that is there.
        unsaid = "unknown" if fields.get(name.removesuffix("_version")) else "none"
        lines.append(f"{name}: {unsaid if value is None else value if isinstance(value, str) else _YES[value]}")
    return [*lines, label] if label else lines
