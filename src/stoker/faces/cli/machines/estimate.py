"""`stoker machines estimate`: how much device memory a training will take, term by term, and where it would fit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional, size_with_unit
from stoker.faces.view.devices import short_name
from stoker.faces.view.tables import table
from stoker.hardware.estimate.calibration import CalibrationBook
from stoker.hardware.estimate.families import families, read_shape
from stoker.hardware.estimate.fitting import Fit, Fitting, books_of, fits
from stoker.hardware.estimate.reading import KEYS, read_training
from stoker.hardware.estimate.terms import Correction, Estimate, estimate
from stoker.hardware.estimate.training import Training
from stoker.hardware.ledger.asking import Candidate
from stoker.hardware.ledger.deciding import Books
from stoker.host.durable import read_regular, translate
from stoker.model.devices import Backend
from stoker.model.errors import BadInput, LocalFile, NotFound
from stoker.model.units import format_size
from stoker.store.hub.address import MAIN, read_repo
from stoker.store.hub.cache import HubCache

_CONFIG = "config.json"
_LONGEST_BYTES = 4 * 1024**2
_FITS = {
    Fit.NOW: "fits now",
    Fit.ALONE: "fits alone",
    Fit.NEVER: "never fits",
    Fit.UNKNOWN: "not known whether it fits",
}

GRAMMAR = Grammar(
    "machines estimate",
    about=(
        "Foretell how much memory of one device a training will take, by going through its steps without a device: "
        "weights, adapters or gradients and optimiser, activations, logits, fragmentation, CUDA context. It is what "
        "the driver counts for the process, at its fullest moment. Then say on which device of this machine it fits: "
        f"now, alone (when others have gone), or never. Families of models: {', '.join(families())}."
    ),
    positionals=(
        Positional("MODEL", help="a config.json, a folder with one, or a model of the hub that was fetched"),
        Positional(
            "KEY=VALUE", help="what the training is like, by the keys below", key="words", is_many=True, keys=KEYS
        ),
    ),
    options=(
        Option(
            "--context",
            value="SIZE",
            read=size_with_unit,
            help="what a process takes before it has a tensor, if known",
        ),
        Option(
            "--gpu",
            value="NAME",
            help="whose CUDA context to count: a device's name, as the driver says it; else this machine's",
        ),
        Option(
            "--measured",
            value="SIZE",
            read=size_with_unit,
            help="note what such a training really took: it corrects the next",
        ),
        Option("--torch", value="VERSION", help="whose runs correct it; this machine's unless told"),
    ),
    examples=(
        "stoker machines estimate config.json",
        "stoker machines estimate models/llama method=lora rank=16 batch=8 sequence=1024",
        "stoker machines estimate Qwen/Qwen2-0.5B method=full batch=4 optimiser=adamw-fused checkpointing=true --json",
        "stoker machines estimate config.json batch=8 --measured 21.4GiB",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Estimate, and say where it fits."""
    config, where = _config(call, given["model"])
    training = read_training(read_shape(config, where=where), given["words"])
    devices = call.parts.devices
    gpu = given["gpu"] or next((one.name for one in devices if one.backend is Backend.CUDA), "")
    book = CalibrationBook(os.path.join(call.parts.settings.state, "vram.json"))
    if given["measured"] is not None:
        _note(call, book, training, given, gpu)
    correction = _correction(call, book, training, given["torch"])
    told = estimate(training, context_bytes=given["context"], gpu=gpu, correction=correction)
    candidates = [one for one in map(Candidate.of, devices) if one is not None]
    books = books_of(call.parts.ledger.state(candidates)) if candidates else Books()
    fitting = [fits(told.total_bytes, one, books) for one in devices]
    if book.trouble:
        call.out.note(f"warning: {book.trouble}")
    call.out.object(
        {
            "model": where,
            "family": training.shape.family,
            "kind": training.kind,
            "batch": training.batch,
            "sequence": training.sequence,
            **told.to_dict(),
            "devices": [one.to_dict() for one in fitting],
        }
    )
    _show(call, training, told, fitting)
    return 0


def _show(call: Call, training: Training, told: Estimate, fitting: list[Fitting]) -> None:
    out, shape = call.out, training.shape
    trained = "all trained" if not training.is_lora else f"{told.trained_parameters:,} trained beside them"
    out.line(f"{shape.family}, {told.parameters:,} parameters, {trained}; fullest {told.fullest}")
    rows = [[term.name, format_size(term.size_bytes), term.why] for term in told.terms]
    rows.append(["total", format_size(told.total_bytes), "what the driver counts for the process"])
    widest = max(len(row[1]) for row in rows)
    for line in table([[name, text.rjust(widest), why] for name, text, why in rows], columns=out.columns, indent="  "):
        out.line(line)
    for one in fitting:
        device = one.device
        label = f"{short_name(device)}{f' ({device.index})' if device.index is not None else ''}"
        out.line(f"{label}{' [faked]' if device.is_fake else ''}: {_FITS[one.fit]}; {one.why}")
    if not fitting:
        out.line("this machine has no device to put it on")


def _correction(call: Call, book: CalibrationBook, training: Training, torch: str | None) -> Correction | None:
    if book.is_empty:
        return None
    return book.correction(training, _torch(call, torch))


def _note(call: Call, book: CalibrationBook, training: Training, given: dict[str, Any], gpu: str) -> None:
    plain = estimate(training, context_bytes=given["context"], gpu=gpu)
    torch = _torch(call, given["torch"])
    if not torch:
        hint = "say which one it was: --torch 2.11.0"
        raise BadInput("what was measured is kept by version of torch, and there is none here", hint=hint)
    book.note(training, torch, measured_bytes=given["measured"], foretold_bytes=plain.total_bytes)
    off = 100 * (plain.total_bytes - given["measured"]) / given["measured"]
    beside = f"{abs(off):.1f} % {'above' if off > 0 else 'below'} it"
    call.out.note(f"noted: {format_size(given['measured'])} measured; the estimate was {beside}")


def _torch(call: Call, told: str | None) -> str:
    return told if told is not None else call.parts.capability.torch_version


def _config(call: Call, text: str) -> tuple[Mapping[str, Any], str]:
    """Find a model's config.json; give what it says and how it is called."""
    path = call.path(text)
    if os.path.isdir(path):
        path = os.path.join(path, _CONFIG)
    elif not os.path.lexists(path):
        path = _in_cache(call, text)
    try:
        told = json.loads(read_regular(os.path.realpath(path), _LONGEST_BYTES))
    except OSError as error:
        raise translate(error, path) from error
    except (ValueError, RecursionError) as error:
        raise LocalFile(f"{path} is no JSON: {error}", hint="a model's config.json is wanted") from error
    if not isinstance(told, dict):
        raise BadInput(f"{path} says nothing of a model", hint="a model's config.json is wanted")
    return told, text


def _in_cache(call: Call, text: str) -> str:
    name, _, revision = text.partition("@")
    try:
        repo = None if name.endswith(".json") else read_repo(name)
    except BadInput:
        repo = None
    if repo is None:
        raise NotFound(
            f"there is no file and no folder {text}", hint="a model's config.json, its folder, or org/name of the hub"
        )
    cache = HubCache(call.parts.hub_settings("").cache)
    commit = cache.read_ref(repo, revision or MAIN) or revision
    path = os.path.join(cache.snapshot(repo, commit), _CONFIG)
    if not commit or not os.path.exists(path):
        raise NotFound(
            f"{text} was not fetched: its config.json is not in the hub's cache",
            hint=f"stoker fetch {text} {_CONFIG}",
        )
    return path
