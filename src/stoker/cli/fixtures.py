"""`stoker fixtures`: write a small model that is the same on every machine, in the formats of several runtimes."""

from __future__ import annotations

import os
from typing import Any, cast

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option
from stoker.cli.screens import busy
from stoker.core.errors import BadInput, LocalFile, MissingExtra, NoSpace, Usage
from stoker.core.text import counted, did_you_mean, format_size
from stoker.crossval.fixture_folder import FORMATS, formats_of, write_fixture
from stoker.crossval.fixture_models import SIZES, FixtureSpec, SizeName
from stoker.store.weight_files.tensor_layouts import ARCHITECTURES, Architecture

_DEFAULT_SIZE, _DEFAULT_ARCH = "small", "llama"

GRAMMAR = Grammar(
    "fixtures",
    about=(
        "Write a small model with random weights into a folder: config.json, a tokenizer, safetensors, and GGUF files "
        "with matrices of several types. Runtimes load it like any model. Its files are the same on every machine; "
        "their SHA-256 digests are printed, and listed in fixture.json. All files hold exactly the same weights, so "
        "answers that differ are due to the runtime. tiny has 100 tokens, a width of 64 and 2 layers; small 1,000, "
        "128 and 4; medium 10,000, 256 and 8. A folder that holds another fixture is written again; one with other "
        "files is refused. Needs stoker[crossval]."
    ),
    options=(
        Option("--size", value="SIZE", help=f"{', '.join(SIZES)} (default: {_DEFAULT_SIZE})", completes=SIZES),
        Option("--output", value="DIR", help="folder for the files (default: fixtures/ARCH-SIZE)"),
        Option(
            "--arch",
            value="ARCH",
            help=f"{', '.join(ARCHITECTURES)} (default: {_DEFAULT_ARCH})",
            completes=ARCHITECTURES,
        ),
        Option(
            "--formats",
            value="LIST",
            help=f"separated by commas: {', '.join(FORMATS)} (default: all; q4_k has medium only)",
        ),
    ),
    examples=(
        "stoker fixtures --size tiny --output models/tiny",
        "stoker fixtures --size medium --arch qwen2 --formats safetensors,q4_k",
        "stoker fixtures --size tiny --json",
    ),
    errors=(Usage, BadInput, LocalFile, NoSpace, MissingExtra),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Write the files, print their digests."""
    out = call.out
    spec = FixtureSpec(size=_size(call, given["size"]), arch=_arch(given["arch"]))
    output = given["output"] or os.path.join("fixtures", f"{spec.arch}-{spec.size}")
    folder = call.path(output)
    formats = _formats(given["formats"]) or formats_of(spec)
    with busy(call, f"writing a {spec.size} {spec.arch} model"):
        written = write_fixture(folder, spec, formats, now_s=call.parts.clock.wall_s())
    out.object(written.to_dict())
    out.table([(file.sha256, format_size(file.size_bytes), file.name) for file in written.files])
    state = f"{counted(len(written.changed), 'file')} written" if written.changed else "unchanged"
    out.note(f"{output}: {state}")
    return 0


def _size(call: CommandContext, word: str | None) -> SizeName:
    if word is not None and word not in SIZES:
        call.out.note(f"note: there is no size {word!r} ({', '.join(SIZES)}); {_DEFAULT_SIZE} is used")
    return cast("SizeName", word if word in SIZES else _DEFAULT_SIZE)


def _arch(word: str | None) -> Architecture:
    if word is not None and word not in ARCHITECTURES:
        hint = did_you_mean(word, ARCHITECTURES) or f"architectures: {', '.join(ARCHITECTURES)}"
        raise Usage(f"there is no architecture {word!r}", hint=hint)
    return cast("Architecture", word or _DEFAULT_ARCH)


def _formats(text: str | None) -> tuple[str, ...]:
    words = [word.strip().lower() for word in (text or "").split(",")]
    return tuple(dict.fromkeys(word for word in words if word))
