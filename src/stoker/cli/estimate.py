"""`stoker machines estimate`: estimate the device memory of a training run, term by term, and where it fits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, size_with_unit
from stoker.core.device import Backend, Device
from stoker.core.errors import BadInput, LocalFile, NotFound
from stoker.core.frozen import changed
from stoker.core.text import format_size
from stoker.devices.admission import memory_here
from stoker.devices.estimate.fitting_adapters import adapters_fit, smaller
from stoker.devices.estimate.model_shapes import ModelShape, families, read_shape
from stoker.devices.estimate.shared_base import (
    ADAPTER_KEYS,
    WORDS,
    BaseWidth,
    MemoryLocation,
    MultiAdapterEstimate,
    MultiAdapterTraining,
    estimate_adapters,
    has_adapters,
    read_adapters,
)
from stoker.devices.estimate.terms import CalibrationFile, Correction, Estimate, EstimatedWork, estimate
from stoker.devices.estimate.training_setup import KEYS, TrainingSpec, read_training
from stoker.devices.ledger.ledger_rules import LedgerDecisionInputs
from stoker.devices.ledger.reservations import CandidateDevice
from stoker.devices.ledger.snapshot import DeviceFit, Fit, books_of, fits
from stoker.host.durable import read_regular, translate
from stoker.transfer.hub.hub_cache import HubCache
from stoker.transfer.hub.listing import read_repo_at
from stoker.views.device_lines import short_name
from stoker.views.trial_lines import SharedProcessFitView, multi_adapter_lines

_CONFIG = "config.json"
_LONGEST_BYTES = 4 * 1024**2
_FITS = {
    Fit.NOW: "fits now",
    Fit.ALONE: "fits alone",
    Fit.NEVER: "does not fit",
    Fit.UNKNOWN: "unknown",
}

GRAMMAR = Grammar(
    "machines estimate",
    about=(
        "Estimate how much memory of one device a training will take, by going through its steps without a device: "
        "weights, adapters or gradients and optimiser, activations, logits, fragmentation, CUDA context. It is what "
        "the driver counts for the process, at its fullest moment. Then say on which device of this machine it fits: "
        "now, alone (when others have gone), or never. "
        "With adapters=K it estimates a shared process of language/lora: the base once, what each adapter adds, and "
        f"how many fit at once. Families of models: {', '.join(families())}."
    ),
    positionals=(
        Positional("MODEL", help="a config.json, a folder with one, a downloaded hub model, or tiny", completes="file"),
        Positional(
            "KEY=VALUE",
            help="settings of the training run, by the keys below",
            key="words",
            is_many=True,
            keys={**KEYS, **ADAPTER_KEYS},
        ),
    ),
    options=(
        Option(
            "--context",
            value="SIZE",
            read=size_with_unit,
            help="memory of a process without tensors (default: by GPU name)",
        ),
        Option(
            "--gpu",
            value="NAME",
            help="GPU name as reported by the driver, for the size of the CUDA context (default: this machine's)",
        ),
        Option(
            "--measured",
            value="SIZE",
            read=size_with_unit,
            help="record the measured peak of such a run; it corrects later estimates",
        ),
        Option("--torch", value="VERSION", help="use corrections of this torch version (default: this machine's)"),
    ),
    examples=(
        "stoker machines estimate config.json",
        "stoker machines estimate models/llama method=lora rank=16 batch=8 sequence=1024",
        "stoker machines estimate Qwen/Qwen2-0.5B method=full batch=4 optimiser=adamw-fused checkpointing=true --json",
        "stoker machines estimate models/llama adapters=8 rank=16 sequence=1024",
        "stoker machines estimate config.json batch=8 --measured 21.4GiB",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Estimate, and show where it fits."""
    config, folder, where = _config(call, given["model"])
    if has_adapters(given["words"]):
        from stoker.cookbooks.language.compute.base_path import estimated_shape

        shape, is_general = estimated_shape(folder, config)
        together = changed(_adapters(config, shape, given["words"], where), is_general=is_general)
        return _multi_adapter(call, given, together, where)
    shape = read_shape(config, where=where)
    training = read_training(shape, given["words"], elsewhere=ADAPTER_KEYS)
    devices = call.parts.devices
    gpu, book = _gpu(call, given), CalibrationFile(call.parts.settings.peaks)
    if given["measured"] is not None:
        plain = estimate(training, context_bytes=given["context"], gpu=gpu)
        _note(call, book, training, given, plain.total_bytes)
    correction = _correction(call, book, training, given["torch"])
    estimated = estimate(training, context_bytes=given["context"], gpu=gpu, correction=correction)
    candidates = [one for one in map(CandidateDevice.of, devices) if one is not None]
    books = books_of(call.parts.ledger.state(candidates)) if candidates else LedgerDecisionInputs()
    fitting = [fits(estimated.total_bytes, one, books) for one in devices]
    if book.trouble:
        call.out.note(f"warning: {book.trouble}")
    call.out.object(
        {
            "model": where,
            "family": training.shape.family,
            "kind": training.kind,
            "batch": training.batch,
            "sequence": training.sequence,
            **estimated.to_dict(),
            "devices": [one.to_dict() for one in fitting],
        }
    )
    _show(call, training, estimated, fitting)
    return 0


def _adapters(config: Mapping[str, Any], shape: ModelShape, words: Sequence[str], where: str) -> MultiAdapterTraining:
    """Return a training of adapters, whose base is kept as it is on disk unless words state otherwise."""
    from stoker.cookbooks.language.saved_quantisation import has_wide_scales, saved_as

    training = read_adapters(shape, words)
    try:
        saved = saved_as(config)
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}", hint=error.hint) from None
    is_stated = any(word.startswith("base_dtype=") for word in words)
    training = changed(training, has_wide_scales=has_wide_scales(config))
    return training if is_stated else changed(training, base_dtype=BaseWidth(saved))


def _show(call: CommandContext, training: TrainingSpec, estimated: Estimate, fitting: list[DeviceFit]) -> None:
    out, shape = call.out, training.shape
    trained = "all trained" if not training.is_lora else f"{estimated.trained_parameters:,} adapter parameters trained"
    out.line(f"{shape.family}, {estimated.parameters:,} parameters, {trained}; peak {estimated.fullest}")
    rows = [[term.name, format_size(term.size_bytes), term.why] for term in estimated.terms]
    rows.append(["total", format_size(estimated.total_bytes), "memory of the process, as the driver counts it"])
    widest = max(len(row[1]) for row in rows)
    out.table([[name, text.rjust(widest), why] for name, text, why in rows], indent="  ")
    for one in fitting:
        out.line(f"{_label(one.device)}: {_FITS[one.fit]}; {one.why}")
    if not fitting:
        out.line("this machine has no device")


def _multi_adapter(call: CommandContext, given: dict[str, Any], training: MultiAdapterTraining, where: str) -> int:
    """Estimate adapters that share a process, and show how many fit where."""
    gpu, book = _gpu(call, given), CalibrationFile(call.parts.settings.peaks)
    if given["measured"] is not None:
        plain = estimate_adapters(training, context_bytes=given["context"], gpu=gpu)
        _note(call, book, training, given, plain.total_bytes, plain.needs.base_bytes)
    correction = _correction(call, book, training, given["torch"])

    def estimate_one(one: MultiAdapterTraining) -> MultiAdapterEstimate:
        return estimate_adapters(one, context_bytes=given["context"], gpu=gpu, correction=correction)

    estimated = estimate_one(training)

    def fit_in(uuid: str, name: str, room_bytes: int | None, why: str) -> SharedProcessFitView:
        fit = adapters_fit(room_bytes or 0, training, estimate_one)
        is_less = room_bytes is not None and fit.at_once < training.adapters
        return SharedProcessFitView(
            uuid=uuid,
            name=name,
            at_once=fit.at_once,
            room_bytes=room_bytes,
            why=why,
            would_fit=smaller(room_bytes or 0, training, estimate_one, WORDS) if is_less else (),
            in_pass=fit.in_pass,
        )

    rooms = _rooms(call) if training.where is MemoryLocation.CUDA else [_own_room()]
    places = [fit_in(*one) for one in rooms]
    if book.trouble:
        call.out.note(f"warning: {book.trouble}")
    call.out.object(
        {
            "model": where,
            "family": training.shape.family,
            "kind": training.kind,
            "batch": training.rows,
            "sequence": training.sequence,
            **estimated.to_dict(),
            "devices": [one.to_dict() for one in places],
        }
    )
    call.out.lines(multi_adapter_lines(training, estimated, places, columns=call.out.columns))
    if not places:
        call.out.line("this machine has no device; estimate main memory with device=cpu")
    return 0


_Room = tuple[str, str, int | None, str]
"""UUID, name, bytes free for a shared process, and a text with the total."""


def _rooms(call: CommandContext) -> Iterator[_Room]:
    """Yield the free memory of every device."""
    devices = call.parts.devices
    candidates = [one for one in map(CandidateDevice.of, devices) if one is not None]
    states = {one.device.uuid: one for one in (call.parts.ledger.state(candidates).devices if candidates else ())}
    for device in devices:
        state = states.get(device.uuid)
        if state is None:
            yield device.uuid, _label(device), None, "memory size unknown"
            continue
        why = f"{format_size(state.room_bytes)} of {format_size(state.device.usable_bytes)} sharable memory free"
        yield device.uuid, _label(device), state.room_bytes, why


def _own_room() -> _Room:
    """Return the free main memory."""
    memory = memory_here()
    room_bytes = memory.room_bytes
    if room_bytes is None or memory.most_bytes is None:
        return "", "this machine", None, "memory size unknown"
    return "", "this machine", room_bytes, f"{format_size(room_bytes)} of {format_size(memory.most_bytes)} free"


def _label(device: Device) -> str:
    number = f" ({device.index})" if device.index is not None else ""
    return f"{short_name(device)}{number}{' [faked]' if device.is_fake else ''}"


def _gpu(call: CommandContext, given: dict[str, Any]) -> str:
    return given["gpu"] or next((one.name for one in call.parts.devices if one.backend is Backend.CUDA), "")


def _correction(
    call: CommandContext, book: CalibrationFile, work: EstimatedWork, torch: str | None
) -> Correction | None:
    if book.is_empty:
        return None
    return book.correction(work, _torch(call, torch))


def _note(
    call: CommandContext,
    book: CalibrationFile,
    work: EstimatedWork,
    given: dict[str, Any],
    plain_bytes: int,
    known_bytes: int = 0,
) -> None:
    """Record a measured peak; memory known exactly is not part of the correction."""
    torch = _torch(call, given["torch"])
    if not torch:
        hint = "name the version: --torch 2.11.0"
        raise BadInput("measurements are stored per torch version, and torch is not installed here", hint=hint)
    measured_bytes, estimated_bytes = given["measured"] - known_bytes, plain_bytes - known_bytes
    book.note(work, torch, measured_bytes=measured_bytes, estimated_bytes=estimated_bytes)
    off = 100 * (plain_bytes - given["measured"]) / given["measured"]
    beside = f"{abs(off):.1f} % {'above' if off > 0 else 'below'} it"
    call.out.note(f"recorded: {format_size(given['measured'])} measured; the estimate was {beside}")


def _torch(call: CommandContext, version: str | None) -> str:
    return version if version is not None else call.parts.capability.torch_version


def _config(call: CommandContext, text: str) -> tuple[Mapping[str, Any], Path, str]:
    """Find a model's config.json; return its contents, its folder and its name."""
    from stoker.cookbooks.language.bundled import BASES, bundled_base

    path = str(bundled_base(text)) if text in BASES else call.path(text)
    if os.path.isdir(path):
        path = os.path.join(path, _CONFIG)
    elif not os.path.lexists(path):
        path = _in_cache(call, text)
    try:
        config = json.loads(read_regular(os.path.realpath(path), _LONGEST_BYTES))
    except OSError as error:
        raise translate(error, path) from error
    except (ValueError, RecursionError) as error:
        raise LocalFile(f"{path} is not JSON: {error}", hint="give a model's config.json") from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} is not a model configuration", hint="give a model's config.json")
    return config, Path(path).parent, text


def _in_cache(call: CommandContext, text: str) -> str:
    try:
        named = None if text.endswith(".json") else read_repo_at(text)
    except BadInput:
        named = None
    if named is None:
        raise NotFound(
            f"no file or folder {text}", hint="give a model's config.json, its folder, or org/name of the hub"
        )
    cache = HubCache(call.parts.hub_settings("").cache)
    commit = cache.commit_at(*named)
    path = os.path.join(cache.snapshot(named[0], commit), _CONFIG)
    if not commit or not os.path.exists(path):
        raise NotFound(
            f"config.json of {text} is not in the hub cache",
            hint=f"stoker fetch {text} {_CONFIG}",
        )
    return path
