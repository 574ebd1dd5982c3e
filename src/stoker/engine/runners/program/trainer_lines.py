"""What a program says, line by line: the trainer contract, metric lines, and plain output. Pure.

A program that speaks the contract prints one JSON object per line, `{"kind": "step", "step": 12, …}`. A line that
begins with `stoker-metric:` holds `name=number` pairs and nothing else. Any other line is read by `metrics.printed`.
Time is linear in the line whatever stands in it; what is too long or is not text is no fault.
Whether a line is right where it stands (the last word, said once) is decided by the parser below.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from stoker.core.frozen import changeable, fresh, frozen
from stoker.core.text import lazy_pattern, whole_number
from stoker.engine.metrics.metric_names import EPOCH, STEPS
from stoker.engine.metrics.metrics_file import clean_name
from stoker.engine.metrics.printed import NOTHING, PrintedLine, PrintedMetrics

STEP_NAMES = (*STEPS, EPOCH)
"""What may say where a line stands, the most telling first; the others of a line are metrics like any other."""

_WHOLE = lazy_pattern(
    rb"[+-]?(?:(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,5})?|(?i:nan|inf(?:inity)?))"
)
_STEP_LIMIT = 2**63


def take_step(numbers: dict[str, bytes]) -> tuple[str, int | None]:
    """Take the number that says where a line stands out of a line's numbers; only a whole one can."""
    for name in STEP_NAMES:
        if name in numbers and (step := _whole(numbers[name])) is not None:
            del numbers[name]
            return name, step
    return "", None


def is_number(word: bytes) -> bool:
    """Return whether a word is a number, and nothing else."""
    return _WHOLE.fullmatch(word) is not None


def _whole(number: bytes) -> int | None:
    if number.lstrip(b"+-").isdigit():
        value = int(number)
    else:
        as_float = float(number)
        if not as_float.is_integer():
            return None
        value = int(as_float)
    return value if abs(value) < _STEP_LIMIT else None


VERSION = 1
"""Of the contract. A higher one is refused as a whole: its lines may mean something else."""
METRIC_PREFIX = b"stoker-metric:"
_RANK, _FIRST_RANK = b"[rank ", b"[rank 0] "
LINE_BYTES = 64 * 1024
"""A longer line is plain output, and only its beginning is looked at."""
_TEXT_LIMIT = 4096
_SHOWN = 200
_INDENT = 64
_WHOLE_LIMIT = 1 << 63
_TAGGED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@frozen
class Contract:
    """The program says which version of the contract it speaks."""

    version: int


@frozen
class TrainerStep:
    """Progress, with what was measured there."""

    step: int
    of: int | None = None
    metrics: Mapping[str, float] = fresh(factory=dict)
    lost: int = 0
    """Rows of metrics that had to be dropped so far, because the disk did not keep up."""


@frozen
class Eval:
    """What an evaluation found."""

    step: int | None = None
    metrics: Mapping[str, float] = fresh(factory=dict)


@frozen
class TrainerCheckpoint:
    """A checkpoint is whole and durable."""

    path: str
    step: int | None = None
    place: str = ""
    """Where the next attempt gets it back, of one that the program did not report: see `found_checkpoints`."""


@frozen
class TrainerCompletion:
    """The last word: it did what it was to do."""

    metrics: Mapping[str, float] = fresh(factory=dict)


@frozen
class TrainerFailure:
    """The last word (`failed`): it could not."""

    message: str


@frozen
class Heartbeat:
    """It lives."""

    quiet_s: float | None = None
    """How long its own code has said nothing, where something else beats for it."""


@frozen
class Metrics:
    """A metric line: numbers without any meaning for the run."""

    step: int | None
    values: Mapping[str, float]


@frozen
class MalformedTrainerLine:
    """A line that looks as if it was meant for us and can't be read."""

    why: str
    shown: str
    """The beginning of the line."""
    is_metric_line: bool = False
    """It had our prefix, so it was meant for us for certain; JSON may be meant for others."""


@frozen
class UnknownTrainerLine:
    """A JSON line of a kind that the contract does not have."""

    kind: str


Control = Contract | TrainerStep | Eval | TrainerCheckpoint | TrainerCompletion | TrainerFailure | Heartbeat
TrainerLine = Control | Metrics | PrintedLine | MalformedTrainerLine | UnknownTrainerLine


def parse_line(line: bytes, printed: PrintedMetrics) -> TrainerLine:
    """Read a line of a program's standard output, with or without its line end. Of a gang's ranks, the first speaks."""
    if line.startswith(_RANK):
        if not line.startswith(_FIRST_RANK):
            return NOTHING
        line = line[len(_FIRST_RANK) :]
    if len(line) > LINE_BYTES:
        return printed.read(line)
    if b"{" in line[:_INDENT]:
        text = line.strip()
        if text.startswith(b"{") and b'"kind"' in text:
            return _parse_json(text)
    elif b":" in line and (text := line.strip()).startswith(METRIC_PREFIX):
        return _parse_metric_line(text)
    return printed.read(line)


def parse_control(line: bytes) -> TrainerLine:
    """Read a line of the control file: every one is meant for us."""
    text = line.strip()
    if len(text) > LINE_BYTES:
        return _malformed(f"longer than {LINE_BYTES} bytes", text)
    return _parse_json(text)


def _parse_metric_line(text: bytes) -> TrainerLine:
    numbers: dict[str, bytes] = {}
    for word in text[len(METRIC_PREFIX) :].replace(b",", b" ").split():
        name, _, number = word.partition(b"=")
        if not name or not is_number(number):
            return MalformedTrainerLine(
                why=f"{_show(word)!r} is not name=number", shown=_show(text), is_metric_line=True
            )
        numbers[name.decode("utf-8", "replace")] = number
    if not numbers:
        return MalformedTrainerLine(why="a metric line without a metric", shown=_show(text), is_metric_line=True)
    _, step = take_step(numbers)
    return Metrics(step=step, values={clean_name(name): float(number) for name, number in numbers.items()})


def _parse_json(text: bytes) -> TrainerLine:
    try:
        raw = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return _malformed("not JSON", text)
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        return _malformed("not a JSON object with a kind", text)
    try:
        return _read_control(kind, raw) or UnknownTrainerLine(kind=kind[:_SHOWN])
    except _Wrong as wrong:
        return _malformed(f"{kind}: {wrong}", text)


class _Wrong(ValueError):
    """What is wrong with a line's field."""


def _read_control(kind: str, raw: dict[str, Any]) -> Control | None:  # noqa: PLR0911 - one for each kind
    """Return a line of the contract; nothing for a kind that it does not have. Raises `_Wrong` for a wrong field."""
    match kind:
        case "contract":
            return Contract(version=_required(raw, "version"))
        case "step":
            lost = max(0, _whole_field(raw, "lost") or 0)
            return TrainerStep(
                step=_required(raw, "step"), of=_whole_field(raw, "of"), metrics=_numbers(raw), lost=lost
            )
        case "eval":
            return Eval(step=_whole_field(raw, "step"), metrics=_numbers(raw))
        case "saved":
            path = raw.get("path")
            if not isinstance(path, str) or not path or "\0" in path or len(path) > _TEXT_LIMIT:
                raise _Wrong("path is a file's name")
            return TrainerCheckpoint(path=path, step=_whole_field(raw, "step"))
        case "done":
            return TrainerCompletion(metrics=_numbers(raw))
        case "failed":
            message = raw.get("message", "")
            if not isinstance(message, str):
                raise _Wrong("message is text")
            return TrainerFailure(message=message[:_TEXT_LIMIT])
        case "heartbeat":
            quiet_s = raw.get("quiet_s")
            return Heartbeat(quiet_s=None if quiet_s is None else _number(quiet_s, "quiet_s"))
        case _:
            return None


def _required(raw: dict[str, Any], name: str) -> int:
    value = _whole_field(raw, name)
    if value is None:
        raise _Wrong(f"{name} is missing")
    return value


def _whole_field(raw: dict[str, Any], name: str) -> int | None:
    if raw.get(name) is None:
        return None
    value = whole_number(raw[name])
    if value is None or abs(value) >= _WHOLE_LIMIT:
        raise _Wrong(f"{name} is a whole number")
    return value


def _numbers(raw: dict[str, Any]) -> dict[str, float]:
    metrics = raw.get("metrics")
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise _Wrong("metrics is an object of numbers by name")
    return {clean_name(name): _number(value, f"metrics.{name[:_SHOWN]}") for name, value in metrics.items()}


def _number(value: Any, name: str) -> float:
    """Read a number. JSON has no NaN: Python's own encoder writes it bare, ours as `{"$float": "nan"}`; both count."""
    if isinstance(value, dict) and value.keys() == {"$float"} and value["$float"] in _TAGGED:
        return _TAGGED[value["$float"]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(f"{name} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _malformed(why: str, text: bytes) -> MalformedTrainerLine:
    return MalformedTrainerLine(why=why, shown=_show(text))


def _show(text: bytes) -> str:
    return text[:_SHOWN].decode("utf-8", "replace")


FAULTS_TOLD = 20
"""A program that does everything wrong is not worth more lines than these."""


class TrainerParser:
    """Takes lines in order, from the program's output and its control file alike, and checks each in its place. Pure.

    The last word (`done` or `failed`) is said once and nothing may follow it; a kind that the contract does not have is
    a fault. Faults are only reported: the exit status decides whether the program ran. A program that never says a line
    of the contract can't break it: its JSON is ordinary output.
    """

    def __init__(self) -> None:
        self.last_word: TrainerCompletion | TrainerFailure | None = None
        self.speaks = False
        """True once it printed a line of the trainer protocol: then other key=value pairs in its output are text."""
        self.faults = 0
        self.lost = 0
        """Rows of metrics that the program had to drop, as far as it said."""
        self._is_foreign = False
        """It speaks another version of the contract, in which every line may mean something else."""

    def hear(self, said: TrainerLine) -> str | None:
        """Take a line in; gives `None` if it was right, else what was wrong: in words, or empty if enough was said."""
        match said:
            case PrintedLine() | Metrics():
                fault = None
            case MalformedTrainerLine(why=why, shown=shown, is_metric_line=is_metric_line):
                fault = f"{why}: {shown}" if self.speaks or is_metric_line else None
            case UnknownTrainerLine(kind=kind):
                fault = f"the contract has no kind {kind!r}" if self.speaks else None
            case _:
                fault = self._take(said)
        return None if fault is None else self._count(fault)

    def hear_control(self, said: TrainerLine) -> str | None:
        """The same for a line of the control file, where every line is meant for us."""
        self.speaks = True
        return self.hear(said)

    def _take(self, said: Control) -> str | None:
        self.speaks = True
        if self.last_word is not None and not isinstance(said, Heartbeat):
            return f"{_NAMES[type(said)]} after the last word, which was {_NAMES[type(self.last_word)]}"
        if isinstance(said, Contract):
            self._is_foreign = said.version != VERSION
            return f"it speaks version {said.version} of the contract, we speak {VERSION}" if self._is_foreign else None
        if self._is_foreign:
            return f"{_NAMES[type(said)]} of another version of the contract is not read"
        if isinstance(said, TrainerStep):
            self.lost = max(said.lost, self.lost)
        elif isinstance(said, TrainerCompletion | TrainerFailure):
            self.last_word = said
        return None

    def _count(self, fault: str) -> str:
        self.faults += 1
        return fault if self.faults <= FAULTS_TOLD else ""


def eval_name(name: str) -> str:
    """Name a metric of an evaluation: `loss` of the training and of an evaluation are two curves."""
    return name if name.startswith(EVAL_PREFIX) else EVAL_PREFIX + name


EVAL_PREFIX = "eval/"

_NAMES: dict[type[Control], str] = {
    Contract: "contract",
    TrainerStep: "step",
    Eval: "eval",
    TrainerCheckpoint: "saved",
    TrainerCompletion: "done",
    TrainerFailure: "failed",
    Heartbeat: "heartbeat",
}


class OutputSteps:
    """The steps of one program's output: at which step each line is.

    A line says so itself; or it stands where the last one did that had something to say there; or, as long as no line
    says anything of the kind, lines are counted. A line that tells an epoch only, among others that tell steps, stands
    at the last of those. Where `step` restarts with every `epoch`, the epochs are put one behind the other: `epoch=2
    step=0` comes after the last step of epoch 1. So are the progress bars of epochs, by their length. A bar of another
    length, of an evaluation, stands at the last step.
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self._counted = -1
        self._has_steps = False
        """A line had a step, and not just an epoch."""
        self._shift = 0
        self.epoch: int | None = None
        """The last one of the training."""
        self._first_epoch = 0
        self._epochs: int | None = None
        self._step_epoch: int | None = None
        """The epoch of the last step."""
        self._bar = _Bar()

    def place(self, step: int | None) -> int:
        """Place a line that was meant for us."""
        if step is not None:
            self._last = step
        elif self._last is None:
            self._counted += 1
            return self._counted
        return self._last

    def place_plain(self, line: PrintedLine) -> tuple[int, int | None] | None:
        """Return the step of a line of plain output, and the last step if it is known; None if it has no place."""
        if line.epoch is not None and line.split in ("", "train"):
            self._take_epoch(line.epoch, line.of if line.is_epoch else None)
        if line.is_bar:
            return self._place_bar(line)
        if line.step is None or (line.is_epoch and self._has_steps):
            bar = self._bar
            if line.values and bar.length and (bar.has_values or bar.at < bar.length):
                # The bar is on the other stream, as with transformers.
                bar.has_values = self._has_steps = True
                return self.place(bar.before + bar.at), None
            return self.place(None), None
        if line.is_epoch:
            return self.place(line.step), line.of
        if (
            self._has_steps
            and self._last is not None
            and self._is_new_epoch()
            and line.step + self._shift <= self._last
        ):
            self._shift = self._last + (line.step == 0)
        self._has_steps = True
        self._step_epoch = self.epoch
        return self.place(line.step + self._shift), None if line.of is None else line.of + self._shift

    def _take_epoch(self, epoch: int, of: int | None) -> None:
        if self.epoch is None:
            # An attempt that resumes begins at a later one.
            self._first_epoch = 1 if epoch == 1 or (epoch > 0 and of is not None) else 0
        self.epoch, self._epochs = epoch, of or self._epochs

    def _is_new_epoch(self) -> bool:
        return self.epoch is not None and (self._step_epoch is None or self.epoch > self._step_epoch)

    def _place_bar(self, line: PrintedLine) -> tuple[int, int | None] | None:
        bar, at, length = self._bar, line.step or 0, line.of or 0
        if length != bar.length:
            is_next = line.split in ("", "train") and (
                not bar.length or self._is_new_epoch() or (bar.at >= bar.length and not bar.has_values)
            )
            if not is_next:
                # Without a word for its data it would be taken for the training's.
                return None if self.epoch is not None and not line.split else (self.place(None), None)
            bar = self._bar = _Bar(length=length)
        if self.epoch is not None:
            bar.before = (self.epoch - self._first_epoch) * length
            of = None if self._epochs is None else (self._epochs - self._first_epoch + 1) * length
        else:
            bar.before += length if at < bar.at else 0
            of = None if bar.before else length
        bar.at = at
        self._step_epoch = self.epoch
        if not line.values and not bar.has_values:
            return None
        bar.has_values = self._has_steps = True
        return self.place(bar.before + at), of


@changeable
class _Bar:
    """The progress bar of the training."""

    length: int = 0
    at: int = 0
    before: int = 0
    """The steps of the bars before it."""
    has_values: bool = False
    """Values stood in it, or were printed while it was shown: it is no download's."""
