"""Metrics in what programs print for people. Pure, and linear in the line.

    step 250: train loss 1.9766, val loss 2.0548          → step 250, train_loss, val_loss
    {'eval_loss': 2.1, 'epoch': 1.0}                      → val_loss
    Train Epoch: 1 [640/60000 (1%)]  Loss: 2.300039       → a bar of epoch 1 at 640 of 60000, loss
    epoch  train_loss  valid_loss                         → the columns of the lines below it

A number counts if the words before it mean a measure (`metric_names`), or in `name=number` whatever the name is, if a
measure or a place stands before it in the line. What stands between two numbers of a line is a label. Programs print
the same labels again and again, so what a label means (`printed_labels`) is worked out once and remembered. Where a
line stands among the others is decided by `OutputSteps`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence

from stoker.core.frozen import changed, fresh, frozen
from stoker.core.text import METRICS_OFF, PATTERN_BYTES, is_metric_pattern, is_metric_source, lazy_pattern, outside
from stoker.engine.metrics.metric_names import (
    DATA,
    EPOCH,
    NO_LABEL,
    STEPS,
    Label,
    LabelKind,
    label_of,
    may_name_measure,
)
from stoker.engine.metrics.metrics_file import clean_name

_LINE, _BAR = "line", "bar"
"""Places that a number without a word says: at the beginning of the line, or of a progress bar."""
_PLACES = (*STEPS, _LINE, _BAR)
_CONFIGURATION = (b"=None", b"=True", b"=False", b"='", b'="', b"Warning: ")
"""Signs of a line that shows a configuration, such as the arguments of a program, or is about one."""
_MOST_SIGNS = 2
"""With more of them, a line has no values at all, not even of measures: `iou=0.7` is a setting there."""
_LABELS_REMEMBERED = 2048
_LINE_COLUMNS = 64
_COLUMN_BYTES = 40
_LINE_BYTES = 8192
_PATTERN_S = 0.05
"""A pattern of a user that needs longer for one line is not used further."""
_STEP_DIGITS = 19

# A digit that belongs to a word is none of a number: `map50`, `top-5`, `hits@10`, `R^2`, `2026-01-02`. The test stands
# behind the first character, so that the search for that one is fast.
_IN_WORD = rb"[0-9A-Za-z_.@^\x80-\xff]"
_NUMBER = (
    rb"[-+.\d](?<!" + _IN_WORD + rb".)(?<!" + _IN_WORD + rb"[-/.].)"
    rb"(?:(?<=\d)\d*(?:\.\d*)?|(?<=\.)\d+|(?<=[-+])(?:\d+(?:\.\d*)?|\.\d+))(?:[eE][+-]?\d{1,5})?"
)
_NOT_FINITE = rb"(?<![\w.@\x80-\xff-])[+-]?(?i:nan|inf(?:inity)?)(?![\w\x80-\xff])"
_SPLIT = lazy_pattern(rb"(" + _NUMBER + rb")")
_SPLIT_NOT_FINITE = lazy_pattern(rb"(" + _NUMBER + rb"|" + _NOT_FINITE + rb")")
# Two, since a search for what begins with a text is fast.
_NAN = lazy_pattern(rb"nan(?![\w\x80-\xff])")
_INF = lazy_pattern(rb"inf(?:inity)?(?![\w\x80-\xff])")
_CELL = lazy_pattern(_NUMBER + rb"|" + _NOT_FINITE)
_DIGIT = lazy_pattern(rb"[0-9]")
_CLOSE = frozenset(b"\t\n\r\f\v)]};|'\"")
_COLOUR = lazy_pattern(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_UNIT = lazy_pattern(rb" (?:s|ms|secs?|seconds|min|of)(?!\w)")
_PLACE_ENDS = lazy_pattern(rb"[\s)\]};|'\":]|,(?!\d)|\.(?:[\s.]|$)|$")
_RATIO = lazy_pattern(rb"\s{0,8}/\s{0,8}(\d{1,18})(?!\w|\.\d)")
_BEFORE_RATIO = lazy_pattern(rb"\]?:?\s{0,8}\[\s{0,8}\d{1,18}\s{0,8}/\s{0,8}\d")
_EPOCH_AND_STEP = lazy_pattern(rb"\[\s{0,8}(\d{1,9}),\s{0,8}(\d{1,18})\]\s")
_PERCENT_OF_RATIO = lazy_pattern(rb"\s{0,4}\(\s{0,8}(\d{1,3}(?:\.\d{1,20})?)\s?%\)")
_COLUMNS = lazy_pattern(rb"\t|\s{2,}")
_BAR_TAIL = lazy_pattern(rb":?\s{0,8}\d{1,3}%(?:\|| \xe2\x94[\x80\x81]).*")
_SOURCE_PLACE = lazy_pattern(rb'\s*File "[^"]*", line \d|[^:]*:\d+: \w*Warning:')
_EXCEPTION = lazy_pattern(rb"[\w.]*(?:Error|Exception): [A-Za-z]")


@frozen
class PrintedLine:
    """What one line of output says."""

    step: int | None = None
    of: int | None = None
    """The last step, where the line says it."""
    is_epoch: bool = False
    """The step is the number of an epoch: the line has no other."""
    is_bar: bool = False
    """The step is the place of a progress bar: it begins again with each bar."""
    epoch: int | None = None
    split: str = ""
    """The data that its place is of: `train`, `val` or `test`."""
    values: dict[str, float] = fresh(factory=dict)
    spelt: dict[str, str] = fresh(factory=dict)
    """Name of a curve → how the line spells it."""


NOTHING = PrintedLine()


class PrintedMetrics:
    """Reads the lines of one stream in order."""

    def __init__(self, sources: Sequence[str] = (), log: Callable[[str], None] = lambda _: None) -> None:
        """Make it; `sources` may be patterns of the user, and `off`; `log` gets a line if a pattern is too slow."""
        self._log = log
        self._is_off = METRICS_OFF in sources
        self._patterns = [
            re.compile(one.encode()) for one in sources if is_metric_pattern(one) and is_metric_source(one)
        ]
        self._labels: dict[bytes, Label] = {}
        self._columns: list[Label] = []
        self._has_borders = False
        self._is_source = False
        """The next lines are of a source file, if they are indented: a traceback or a warning shows them."""

    def read(self, line: bytes) -> PrintedLine:
        """Return the values of a line, and its place; of a very long line, those of its beginning."""
        if self._is_off:
            return NOTHING
        if len(line) > _LINE_BYTES:
            line = line[:_LINE_BYTES].rpartition(b" ")[0]
        split, lowered = _SPLIT, line.lower()
        if _may_be_not_finite(lowered):
            split = _SPLIT_NOT_FINITE
        elif _DIGIT.search(line) is None:
            self._read_header(line, lowered)
            return NOTHING
        if self._is_of_source(line):
            return NOTHING
        if b"\x1b" in line:
            line = _COLOUR.sub(b"", line)
        if b"  " in line and _CELL.search(_without_bar(line)) is None and self._read_header(line, lowered):
            # Its names have digits, or a progress bar is behind it.
            return NOTHING
        found = self._read_row(line) if self._columns else None
        if found is None:
            found = self._read_labels(line, split)
        if self._patterns:
            found = self._read_patterns(line, found)
        return found

    def _is_of_source(self, line: bytes) -> bool:
        """Return True for the lines of tracebacks and warnings: the code that they show is no output."""
        if (b"File " in line or b"Warning:" in line) and _SOURCE_PLACE.match(line) is not None:
            self._is_source = True
            return True
        self._is_source = self._is_source and line.startswith(b"  ")
        return self._is_source or (
            (b"Error: " in line or b"Exception: " in line) and _EXCEPTION.match(line) is not None
        )

    def _read_labels(self, line: bytes, pattern: re.Pattern[bytes]) -> PrintedLine:
        if b"=" in line and sum(map(line.count, _CONFIGURATION)) > _MOST_SIGNS:
            return NOTHING
        found = _LineReading(line)
        labels, end = self._labels, 0
        parts = iter(pattern.split(line))
        for key, number in zip(parts, parts, strict=False):
            start = end + len(key)
            end = start + len(number)
            label = labels.get(key) or self._learn(key)
            if label is NO_LABEL:
                found.pending = None
                continue
            if label.is_restored:
                break
            found.take(label, number, start, end)
        return found.placed()

    def _learn(self, key: bytes) -> Label:
        if len(self._labels) >= _LABELS_REMEMBERED:
            self._labels.clear()
        label = self._labels[key] = label_of(key)
        return label

    # Tables: a line of column names, then lines of numbers.

    def _read_header(self, line: bytes, lowered: bytes) -> bool:
        """Remember the columns of a line if it names several, one of them a measure; return whether it does."""
        if not _may_be_header(lowered):
            return False
        cells, has_borders = _cells(line)
        if len(cells) < 2 or any(len(cell) > _COLUMN_BYTES for cell in cells):
            return False
        keys = [cell.strip(b"()") + b": " for cell in cells]
        columns = [self._labels.get(key) or self._learn(key) for key in keys]
        if not any(column.kind is LabelKind.VALUE for column in columns):
            return False
        self._columns, self._has_borders = columns, has_borders
        return True

    def _read_row(self, line: bytes) -> PrintedLine | None:
        """Read a row of the last table; None if the line is none."""
        cells, has_borders = _cells(line)
        if len(cells) != len(self._columns) or has_borders != self._has_borders:
            return None
        found = _LineReading(line)
        for column, cell in zip(self._columns, cells, strict=True):
            number = _CELL.match(cell)
            if number is None:
                if column.kind is LabelKind.PLACE:
                    # `all` below `epoch`: a row of a table whose head was not seen.
                    return None
                continue
            if column.kind is LabelKind.VALUE and _ends_value(cell, number.end()):
                found.values[column.name] = float(number[0])
                found.spelt[column.name] = column.spelt
            elif column.kind is LabelKind.PLACE:
                found.take_place(column.name, cell, number[0], number.end())
        return found.placed() if found.values else None

    def _read_patterns(self, line: bytes, found: PrintedLine) -> PrintedLine:
        values, spelt = dict(found.values), dict(found.spelt)
        for pattern in tuple(self._patterns):
            begun_s = time.thread_time()
            for match in pattern.finditer(line[:PATTERN_BYTES]):
                for name, number in _groups(match):
                    whole = _CELL.fullmatch(number or b"")
                    if whole is not None:
                        values[clean_name(name)] = float(whole[0])
                        spelt[clean_name(name)] = name
            if time.thread_time() - begun_s > _PATTERN_S:
                self._patterns.remove(pattern)
                text = outside(pattern.pattern.decode())
                self._log(f"--metrics '{text}' is not used further: it took more than {_PATTERN_S:g} s for one line")
        if not values and found is NOTHING:
            return NOTHING
        return changed(found, values=values, spelt=spelt)


def may_say(line: bytes) -> bool:
    """Return False if nothing can be read from a line, or from any of several."""
    if _DIGIT.search(line) is not None:
        return True
    lowered = line.lower()
    return _may_be_header(lowered) or _may_be_not_finite(lowered)


def _may_be_header(lowered: bytes) -> bool:
    return (b"  " in lowered or b"\t" in lowered or b"|" in lowered) and may_name_measure(lowered)


def _may_be_not_finite(lowered: bytes) -> bool:
    return (b"nan" in lowered and _NAN.search(lowered) is not None) or (
        b"inf" in lowered and _INF.search(lowered) is not None
    )


def _groups(match: re.Match[bytes]) -> Iterable[tuple[str, bytes | None]]:
    """Return the names and numbers of a user's pattern: of its named groups, of two groups, or of the only one."""
    named = match.groupdict()
    if named:
        return named.items()
    groups = match.groups()
    name, number = groups[:2] if len(groups) > 1 else (b"", groups[0])
    return [((name or b"value").decode("utf-8", "replace"), number)]


class _LineReading:
    """What was found in a line so far."""

    __slots__ = (
        "_is_best",
        "_line",
        "_of",
        "_place_split",
        "_places",
        "_split",
        "_unplaced",
        "pending",
        "spelt",
        "values",
    )

    def __init__(self, line: bytes) -> None:
        self.values: dict[str, float] = {}
        self.spelt: dict[str, str] = {}
        self._line = line
        self._places: dict[str, int] = {}
        self._of: dict[str, int] = {}
        self._unplaced: dict[str, float] = {}
        """Values that need a place or another value."""
        self._split = self._place_split = ""
        self.pending: Label | None = None
        self._is_best = False

    def take(self, label: Label, number: bytes, start: int, end: int) -> None:
        """Take the next number of the line, and what stands before it."""
        if label.split:
            self._split = label.split
        if label.is_best:
            self._is_best = True
        if self.pending is not None and label.continues:
            label = self.pending
        self.pending = label.pending
        if label.kind is LabelKind.VALUE:
            self._take_value(label, number, end)
        elif label.kind is LabelKind.BARE:
            self._take_bare(number, start, end)
        elif label.kind is LabelKind.PLACE:
            if label.pending is not None and b"." in number:
                # `loss over epoch: 0.91`
                self._take_value(label.pending, number, end)
            elif not self._is_best:
                self.take_place(label.name, self._line, number, end)

    def _take_value(self, label: Label, number: bytes, end: int) -> None:
        """Take a number that a measure's label stands before; of `9842/10000 (98%)` the percentage."""
        line = self._line
        if label.is_any_name and (not (self.values or self._places) or any(sign in line for sign in _CONFIGURATION)):
            return
        if not _ends_value(line, end):
            ratio = _RATIO.match(line, end)
            percent = _PERCENT_OF_RATIO.match(line, ratio.end()) if ratio is not None else None
            if percent is None:
                return
            number = percent[1]
        elif label.needs_decimal and b"." not in number and b"e" not in number:
            whole = _whole(number)
            if label.name in DATA and whole is not None and _BEFORE_RATIO.match(line, end) is not None:
                # `train: 1 [311/312`
                self._set_place(EPOCH, whole, None)
            return
        name = f"{self._split}_{label.name}" if self._split and not label.has_split else label.name
        (self._unplaced if label.needs_place else self.values)[name] = float(number)
        self.spelt[name] = label.spelt

    def take_place(self, name: str, text: bytes, number: bytes, end: int) -> None:
        """Take a number behind `step` or `epoch`, with the last one behind a slash. A part of an epoch is a value."""
        ratio = _RATIO.match(text, end)
        if ratio is None and _PLACE_ENDS.match(text, end) is None:
            return
        whole = _whole(number)
        if name == EPOCH and b"." in number:
            self.values[EPOCH] = float(number)
        elif whole is not None:
            self._set_place(name, whole, ratio)

    def _take_bare(self, number: bytes, start: int, end: int) -> None:
        """Take a number without a word: `[12]` or `12:` at the beginning, a bar's `3/8`, `[64/600` behind an epoch."""
        whole = _whole(number)
        if whole is None:
            return
        line = self._line
        ratio = _RATIO.match(line, end)
        if ratio is not None:
            if _BEFORE_RATIO.match(line, ratio.end()) is not None:
                # `[3/25][100/1583]`
                self._set_place(EPOCH, whole, ratio)
            elif int(ratio[1]) >= whole:
                self._set_place(_BAR, whole, ratio)
        elif start <= 1:
            both = _EPOCH_AND_STEP.match(line)
            if both is not None:
                self._places.update({EPOCH: int(both[1]), _LINE: int(both[2])})
            elif line[end : end + 2] in (b"]\t", b"] ", b":\t"):
                self._set_place(_LINE, whole, None)

    def _set_place(self, name: str, place: int, ratio: re.Match[bytes] | None) -> None:
        if not self._places:
            self._place_split = self._split
        if self._places.setdefault(name, place) == place and ratio is not None:
            self._of.setdefault(name, int(ratio[1]))

    def placed(self) -> PrintedLine:
        """Return what was found in the line, with the place that it names."""
        values, places = self.values, self._places
        if not values and not places:
            return NOTHING
        values.update(self._unplaced)
        epoch = places.pop(EPOCH, None)
        name = next((name for name in _PLACES if name in places), "")
        if not values and (name == _LINE or (name == _BAR and not _is_own_bar(self._line, epoch))):
            name = ""
        step, of = places.get(name), self._of.get(name)
        is_epoch = step is None and epoch is not None
        if is_epoch:
            step, of = epoch, self._of.get(EPOCH)
        elif epoch is not None and values:
            values[EPOCH] = float(epoch)
        if step is None and not values:
            return NOTHING
        return PrintedLine(
            step=step,
            of=of,
            is_epoch=is_epoch,
            is_bar=name == _BAR,
            epoch=epoch,
            split=self._place_split,
            values=values,
            spelt=self.spelt,
        )


def _is_own_bar(line: bytes, epoch: int | None) -> bool:
    """Return True if a bar without values may be that of a training: it has no title, or an epoch's."""
    before, sign, _ = line.partition(b"%|")
    return bool(sign) and (epoch is not None or not before.strip(b" 0123456789"))


def _without_bar(line: bytes) -> bytes:
    """Return a line without the progress bar at its end."""
    return _BAR_TAIL.sub(b"", line) if b"%|" in line or b"% \xe2\x94" in line else line


def _ends_value(line: bytes, end: int) -> bool:
    """Return True if a number that ends here may be a value: without a unit, a further digit, a ratio or a time."""
    if end >= len(line) or line[end] in _CLOSE:
        return True
    sign, after = line[end : end + 1], line[end + 1 : end + 2]
    if sign == b" ":
        return after not in (b"s", b"m", b"o") or _UNIT.match(line, end) is None
    if sign == b",":
        return not after.isdigit()
    return (sign == b"." and not after.strip(b" \t\r\n.")) or (sign == b"%" and not after.isalnum())


def _cells(line: bytes) -> tuple[list[bytes], bool]:
    """Return the columns of a line, and whether bars separate them."""
    bare = _without_bar(line).strip()
    if bare.count(b"|") > 1:
        return [cell.strip() for cell in bare.strip(b"|").split(b"|", _LINE_COLUMNS)], True
    return _COLUMNS.split(bare, _LINE_COLUMNS), False


def _whole(number: bytes) -> int | None:
    """Return a number of a step; None if it is none. `3.0` is one, as trainers print it in dictionaries."""
    whole = number.removesuffix(b".0")
    return int(whole) if whole.isdigit() and len(whole) < _STEP_DIGITS else None
