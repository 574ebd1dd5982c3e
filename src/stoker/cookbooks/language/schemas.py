"""What the stages of this cookbook write down: plain JSON with named fields, one schema for writers and readers.

    training.json    beside an adapter or a model: what it was trained on, how, and how that went
    metadata.json    beside a checkpoint that a user asked for: one line of a leaderboard
    answers.json     what models over one base answered

Neither holds a time: the same work gives the same bytes. How fast it was is reported as metrics. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TypedDict

from stoker.core import jsontext
from stoker.core.errors import BadInput
from stoker.host.durable import write_file
from stoker.store.weight_files.headers import read_foreign

TRAINING: Final = "training.json"
METADATA: Final = "metadata.json"
ANSWERS: Final = "answers.json"
BEST: Final = "best"

Method = Literal["lora", "full"]
_HINT = "use the folder of a training"


class BaseFacts(TypedDict):
    """The base of a training."""

    name: str
    """`org/name`, or the name of its folder."""
    family: str
    parameters: int


class LanguageCurvePoint(TypedDict):
    """One point of a training curve."""

    step: int
    """Number of updates."""
    epoch: float
    """Number of epochs, with a fraction."""
    loss: float | None
    """Mean over the trained tokens, or pairs, since the last point."""
    eval_loss: float | None
    """Mean over the trained tokens, or pairs, of the held-out part."""
    lr: float
    """Of the last update."""
    accuracy: NotRequired[float | None]
    """Of pairs: the share whose chosen answer has the higher reward, since the last point."""
    margin: NotRequired[float | None]
    """The mean reward of chosen answers above that of rejected ones."""
    eval_accuracy: NotRequired[float | None]
    """The same of the held-out part."""
    eval_margin: NotRequired[float | None]


class LanguageCurve(TypedDict):
    """The losses of a training."""

    points: list[LanguageCurvePoint]
    kept: int
    """The step whose weights were kept: that of the lowest `eval_loss`, or the last one."""
    before: float | None
    """`eval_loss` of the base alone."""
    before_accuracy: NotRequired[float]
    """Of pairs: how it ranks answers; not under dpo, where rewards are relative to it."""
    before_margin: NotRequired[float]


class LanguageTrainingRecord(TypedDict):
    """The content of `training.json`."""

    method: Method
    base: BaseFacts
    data: dict[str, Any]
    """The facts of the tokenising stage: examples, cut, skipped, held out …"""
    settings: dict[str, Any]
    """The arguments that decide what is learned."""
    weights: int
    """Number of trained weights."""
    curve: LanguageCurve
    device: str
    """`cpu` or `cuda`."""
    dtype: str
    notes: list[str]
    """Notes for the user, one sentence each."""
    versions: dict[str, str]


class Metadata(TypedDict):
    """The content of `metadata.json` beside a checkpoint; field names are those of system B."""

    mode: str
    """`lora`, or `full`."""
    adapter_index: int
    epoch: int
    """From 1."""
    train_loss: float | None
    val_loss: float | None
    avg_loss: float | None
    """Mean training loss since the start."""
    rank: int
    alpha: float
    global_step: int
    label: str


class CompletionSample(TypedDict):
    """One completion."""

    model: NotRequired[str]
    """Of several models that answer: which one."""
    prompt: str
    completion: str


class AnswersRecord(TypedDict):
    """The content of `answers.json`."""

    base: str
    path: str
    """How the base was computed."""
    answers: list[CompletionSample]
    """For each prompt those of all models."""


def kept_point(training: LanguageTrainingRecord) -> LanguageCurvePoint | None:
    """Return the evaluation of the kept weights."""
    curve = training["curve"]
    kept = [one for one in curve["points"] if one["step"] == curve["kept"] and one["eval_loss"] is not None]
    return kept[-1] if kept else None


def best_eval(training: LanguageTrainingRecord) -> float | None:
    """Return the evaluation loss of the kept weights."""
    kept = kept_point(training)
    return None if kept is None else kept["eval_loss"]


def is_of_pairs(training: LanguageTrainingRecord) -> bool:
    """Return True if pairs of answers were learned: by dpo or orpo."""
    return bool(training["settings"].get("method", "sft") != "sft")


def perplexity(loss: float | None) -> float | None:
    """Return the perplexity of a mean loss per token; None without a loss, infinite on overflow."""
    if loss is None:
        return None
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def significant(value: float) -> float:
    """Round to six significant digits: further digits differ between machines."""
    return float(f"{value:.6g}") if math.isfinite(value) else value


def write_training(training: LanguageTrainingRecord, folder: Path) -> None:
    """Write `training.json` into a folder."""
    text = jsontext.dumps(training, indent=2, sort_keys=True)
    (folder / TRAINING).write_text(f"{text}\n", encoding="utf-8", newline="")


def read_training(folder: Path) -> LanguageTrainingRecord:
    """Read `training.json` of a folder. Raises `BadInput` if it is missing or invalid."""
    found: LanguageTrainingRecord = _read(folder / TRAINING, LanguageTrainingRecord.__required_keys__)  # type: ignore[assignment]  # checked by keys
    return found


def read_answers(folder: Path) -> AnswersRecord:
    """Read `answers.json` of a folder. Raises `BadInput` if it is missing or invalid."""
    path = folder / ANSWERS
    raw = _read(path, AnswersRecord.__required_keys__)
    found: AnswersRecord = raw  # type: ignore[assignment]  # checked by keys, and below
    if not isinstance(raw["answers"], list) or not all(map(_is_answer, raw["answers"])):
        raise BadInput(f"{path}: invalid answers", hint="use the result of language/sample")
    return found


def _is_answer(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and all(isinstance(one.get(name, ""), str) for name in ("model", "prompt"))
        and (isinstance(one.get("completion"), str))
    )


def write_metadata(metadata: Metadata, folder: Path) -> None:
    """Write `metadata.json` into a folder, atomically."""
    text = jsontext.dumps(metadata, indent=2, sort_keys=True)
    write_file(str(folder / METADATA), f"{text}\n".encode())


def read_metadata(folder: Path) -> Metadata:
    """Read `metadata.json` of a checkpoint. Raises `BadInput` if it is missing or invalid.

    Files of system B are read unchanged: `label`, `avg_loss` and `adapter_index` may be missing.
    """
    path = folder / METADATA
    raw = _read(path, frozenset({"epoch"}))
    made = {"mode": "lora", "adapter_index": 0, "train_loss": None, "val_loss": None, "avg_loss": None, "rank": 0}
    made |= {"alpha": 0.0, "global_step": 0, "label": ""}
    made |= {name: value for name, value in raw.items() if name in Metadata.__required_keys__}
    wrong = [name for name, value in made.items() if not _is_fine(name, value)]
    if wrong:
        raise BadInput(f"{path}: invalid {', '.join(wrong)}", hint=_HINT)
    found: Metadata = made  # type: ignore[assignment]  # checked field by field
    return found


def best_folder(root: Path) -> Path:
    """Return the path of the best checkpoint below `root`; while it is replaced, that of the previous one."""
    best, old = root / BEST, root / f"{BEST}.old"
    return old if old.is_dir() and not best.is_dir() else best


_TEXTS = frozenset({"mode", "label"})
_LOSSES = frozenset({"train_loss", "val_loss", "avg_loss"})
_SIGNED = _LOSSES | {"alpha"}
_LARGEST = 10**15


def _is_fine(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if value is None:
        return name in _LOSSES
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    if name in _LOSSES and isinstance(value, float):
        return True
    # Some integers are too large for floats.
    return abs(value) <= _LARGEST and (value >= 0 or name in _SIGNED)


def _read(path: Path, keys: frozenset[str]) -> Mapping[str, Any]:
    try:
        raw = jsontext.loads(read_foreign(path))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be read: {error}", hint=_HINT) from None
    missing = sorted(keys - raw.keys()) if isinstance(raw, dict) else sorted(keys)
    if missing:
        raise BadInput(f"{path} has no {', '.join(missing)}", hint=_HINT)
    found: Mapping[str, Any] = raw
    return found
