"""Metrics in what programs print for people. Pure, and linear in the line.

    step 250: train loss 1.9766, val loss 2.0548          → step 250, train_loss, val_loss
    {'eval_loss': 2.1, 'epoch': 1.0}                      → val_loss
    Train Epoch: 1 [640/60000 (1%)]  Loss: 2.300039       → step 60640, loss
    epoch  train_loss  valid_loss                         → the columns of the lines below it

A number counts if the words before it mean a measure (`metric_names`), or in `name=number` whatever the name is, unless
it is one of a counter, a size or a time. What stands between two numbers of a line is a label. Programs print the same
labels again and again, so what a label means is worked out once and remembered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from enum import Enum

from stoker.core.frozen import fresh, frozen, frozen_by_position
from stoker.core.text import METRICS_OFF, PATTERN_BYTES, is_metric_pattern, is_metric_source, lazy_pattern, outside
from stoker.engine.metrics.metric_names import NOT_MEASURES, SPLITS, is_measure, normal_name, words_of
from stoker.engine.metrics.metrics_file import clean_name

STEPS = ("global_step", "total_timesteps", "step", "iteration", "iter", "update", "round", "batch")
"""Words for the place of a line, the most telling first."""
EPOCH = "epoch"
_LINE, _PROGRESS = "line", "progress"
"""Places that a number without a word says: at the beginning of the line, or of a progress bar."""
_STEP_SPELLINGS = {
    "it": "iter", "itr": "iter", "iters": "iter", "iterations": "iteration", "updates": "update", "steps": "step",
    "ep": EPOCH, EPOCH: EPOCH,
}  # fmt: skip
_ELSEWHERE = frozenset({"at", "from", "since", "best"})
"""Before `epoch` or `step`: the number says where something else was, not the line."""
_ALONGSIDE = frozenset({"lr", "learning_rate", "grad_norm", "gnorm"})
"""Names without a measure that are curves as well where a line names them by `:` or a quote."""
_EVERYDAY = frozenset({
    "err", "error", "errors", "map", "ap", "score", "cost", "return", "returns", "precision", "recall", "bits", "l1",
    "l2", "ce",
})  # fmt: skip
"""Words of everyday messages (`error 404`): they need a decimal point, or a word that says of which data."""
_FILLERS = frozenset({
    "is", "was", "of", "at", "now", "value", "the", "a", "an", "and", "with", "on", "for", "our", "final", "current",
    "end", "after", "from", "finished", "done", "completed", "reached", "got", "new", "last", "latest", "result", "has",
    "info", "debug", "epoch", "step", "iter", "iteration", "batch", "round",
})  # fmt: skip
_DATA_WORDS = frozenset({"set", "data", "split", "results"})
_CONFIGURATION = (b"=None", b"=True", b"=False", b"='", b'="', b"Warning: ")
"""Signs of a line that shows a configuration, such as the arguments of a program, or is about one."""
_MOST_SIGNS = 2
"""With more of them, a line has no values at all, not even of measures: `iou=0.7` is a setting there."""
_LABELS_REMEMBERED = 2048
_LABEL_CHARACTERS = 200
_LINE_COLUMNS = 64
_LINE_BYTES = 8192
_PATTERN_S = 0.05
"""A pattern of a user that needs longer for one line is not used further."""
_STEP_DIGITS = 19

# A digit that belongs to a word is none of a number: `map50`, `top-5`, `hits@10`, `2026-01-02`. The test stands behind
# the first character, so that the search for that one is fast.
_IN_WORD = rb"[0-9A-Za-z_.@\x80-\xff]"
_NUMBER = (
    rb"[-+.\d](?<!" + _IN_WORD + rb".)(?<!" + _IN_WORD + rb"[-/.].)"
    rb"(?:(?<=\d)\d*(?:\.\d*)?|(?<=\.)\d+|(?<=[-+])(?:\d+(?:\.\d*)?|\.\d+))(?:[eE][+-]?\d{1,5})?"
)
_NOT_FINITE = rb"(?<![\w.@\x80-\xff-])[+-]?(?i:nan|inf(?:inity)?)(?![\w\x80-\xff])"
_SPLIT = lazy_pattern(rb"(" + _NUMBER + rb")")
_SPLIT_NOT_FINITE = lazy_pattern(rb"(" + _NUMBER + rb"|" + _NOT_FINITE + rb")")
_SEARCH_NOT_FINITE = lazy_pattern(_NOT_FINITE)
_CELL = lazy_pattern(_NUMBER + rb"|" + _NOT_FINITE)
_DIGIT = lazy_pattern(rb"[0-9]")
_CLOSE = frozenset(b" \t\n\r\f\v)]};|'\"")
_COLOUR = lazy_pattern(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_PLACE_ENDS = lazy_pattern(rb"[\s)\]};|'\",:]|\.(?:\s|$)|$")
_RATIO = lazy_pattern(rb"\s{0,8}/\s{0,8}(\d{1,18})(?![\w.])")
_PERCENT_OF_RATIO = lazy_pattern(rb"\s{0,4}\(\s{0,8}(\d{1,3}(?:\.\d{1,20})?)\s?%\)")
_PAIR = lazy_pattern(r"(?:^|[\s(\[{,;:|])([A-Za-z_\x80-\U0010ffff][\w.@/\x80-\U0010ffff-]{0,99})=$")
_HARD = lazy_pattern(r"[,;|(){}\[\]<>\t]|\s{2,}|\s[-–—•·]\s")
_COLUMNS = lazy_pattern(rb"\t|\s{2,}")
_OF_DATA = lazy_pattern(r"([A-Za-z]+)\((train|val|valid|validation|eval|test)\)", re.IGNORECASE)
_PROGRESS_TAIL = lazy_pattern(rb":?\s{0,8}\d{1,3}%(?:\|| \xe2\x94[\x80\x81]).*")
_PROSE = lazy_pattern(r"(?:\b(?:at|for|from|got|of|to|using|with) |\w\()[A-Za-z_][\w.]{0,99}=$")


@frozen
class PrintedLine:
    """What one line of output says."""

    step: int | None = None
    of: int | None = None
    """The last step, where the line says it."""
    is_epoch: bool = False
    """The step is the number of an epoch: the line has no other."""
    values: dict[str, float] = fresh(factory=dict)
    spelt: dict[str, str] = fresh(factory=dict)
    """Name of a curve → how the line spells it."""


NOTHING = PrintedLine()


class _Kind(Enum):
    NONE = 0
    VALUE = 1
    PLACE = 2
    BARE = 3
    """Without a word: the number may be one of a progress bar, or stand in a bracket behind an epoch."""


@frozen_by_position
class _Label:
    kind: _Kind = _Kind.NONE
    name: str = ""
    spelt: str = ""
    needs_decimal: bool = False
    """Only a number with a decimal point is a value of it."""
    needs_place: bool = False
    """It counts only in a line with a step, an epoch or a measure: `epoch 3, train: 0.98, val: 0.97`."""
    has_split: bool = False
    is_any_name: bool = False
    """Of a `name=number` without a measure: no value in a line that shows a configuration."""
    is_prose: bool = False
    """Of a pair in a sentence or a call: `with nc=1`, `SGD(lr=0.1)`."""
    line_split: str = ""
    """`val` or `test`, where it stands for the rest of the line as well: `test set: average loss: …, accuracy: …`."""


_NO_LABEL = _Label()
_BARE = _Label(_Kind.BARE)


@frozen_by_position
class _Found:
    """What was found in a line so far."""

    values: dict[str, float] = fresh(factory=dict)
    spelt: dict[str, str] = fresh(factory=dict)
    places: dict[str, int] = fresh(factory=dict)
    of: dict[str, int] = fresh(factory=dict)
    unplaced: dict[str, float] = fresh(factory=dict)
    """Values that need a place or another value."""


class PrintedMetrics:
    """Reads the lines of one stream in order."""

    def __init__(self, sources: Sequence[str] = (), log: Callable[[str], None] = lambda _: None) -> None:
        """Make it; `sources` may be patterns of the user, and `off`; `log` gets a line if a pattern is too slow."""
        self._log = log
        self._is_off = METRICS_OFF in sources
        self._patterns = [
            re.compile(one.encode()) for one in sources if is_metric_pattern(one) and is_metric_source(one)
        ]
        self._labels: dict[bytes, _Label] = {}
        self._columns: list[_Label] = []
        self._has_borders = False
        self._epoch: int | None = None
        self._progress = (0, 0, 0)
        """Of a bar without an epoch: its last place, its length, and the steps of the bars before it."""

    def read(self, line: bytes) -> PrintedLine:
        """Return the values of a line, and its place; of a very long line, those of its beginning."""
        if self._is_off:
            return NOTHING
        if len(line) > _LINE_BYTES:
            line = line[:_LINE_BYTES].rpartition(b" ")[0]
        split = _SPLIT
        lowered = line.lower()
        if (b"nan" in lowered or b"inf" in lowered) and _SEARCH_NOT_FINITE.search(line) is not None:
            split = _SPLIT_NOT_FINITE
        elif _DIGIT.search(line) is None:
            self._read_header(line)
            return NOTHING
        if b"\x1b" in line:
            line = _COLOUR.sub(b"", line)
        if b"  " in line and _CELL.search(_without_bar(line)) is None and self._read_header(line):
            # Its names have digits, or a progress bar is behind it.
            return NOTHING
        found = self._read_row(line) if self._columns else None
        if found is None:
            found = self._read_labels(line, split)
        if self._patterns:
            found = self._read_patterns(line, found)
        return found

    def _read_labels(self, line: bytes, pattern: re.Pattern[bytes]) -> PrintedLine:
        found = None
        labels, end, split = self._labels, 0, ""
        pairs: list[tuple[_Label, bytes, int]] = []
        parts = iter(pattern.split(line))
        for key, number in zip(parts, parts, strict=False):
            start = end + len(key)
            end = start + len(number)
            label = labels.get(key)
            if label is None:
                label = self._learn(key)
            kind = label.kind
            if kind is _Kind.NONE:
                continue
            if found is None:
                found = _Found()
            if label.line_split:
                split = label.line_split
            if kind is _Kind.VALUE:
                if label.is_any_name:
                    pairs.append((label, number, end))
                else:
                    _take_value(found, label, line, number, end, split)
            elif kind is _Kind.BARE:
                _take_bare(found, line, number, start, end)
            else:
                _take_place(found, label, line, number, end)
        if found is None or (pairs and not _take_pairs(found, line, pairs)):
            return NOTHING
        return self._placed(found)

    def _learn(self, key: bytes) -> _Label:
        if len(self._labels) >= _LABELS_REMEMBERED:
            self._labels.clear()
        label = self._labels[key] = _label_of(key)
        return label

    def _placed(self, found: _Found) -> PrintedLine:
        """Return what was found in a line, with the step that it is at."""
        values, places = found.values, found.places
        epoch = places.pop(EPOCH, None)
        if epoch is not None:
            self._epoch = epoch
        if places or values or epoch is not None:
            values.update(found.unplaced)
        else:
            return NOTHING
        step, of = next(
            ((places[name], found.of.get(name)) for name in (*STEPS, _LINE) if name in places), (None, None)
        )
        if step is None and values and _PROGRESS in places:
            epoch = self._epoch
            step, of = self._progressed(places[_PROGRESS], found.of[_PROGRESS])
        is_epoch = step is None and epoch is not None
        if is_epoch:
            step, of = epoch, found.of.get(EPOCH)
        elif epoch is not None:
            values[EPOCH] = float(epoch)
        if step is None and not values:
            return NOTHING
        return PrintedLine(step=step, of=of, is_epoch=is_epoch, values=values, spelt=found.spelt)

    def _progressed(self, within: int, total: int) -> tuple[int, int | None]:
        """Return the step of a progress bar, behind those of the epochs or bars before it."""
        if self._epoch is not None:
            return self._epoch * total + within, None
        was, length, before = self._progress
        if total == length and within < was:
            before += total
        self._progress = (within, total, before if total == length else 0)
        return before + within, None if before else total

    # Tables: a line of column names, then lines of numbers.

    def _read_header(self, line: bytes) -> bool:
        """Remember the columns of a line if it names several, one of them a measure; return whether it does."""
        if b"  " not in line and b"\t" not in line and b"|" not in line:
            return False
        cells, has_borders = _cells(line)
        columns = [_label_of(cell.strip(b"()") + b": ") for cell in cells] if len(cells) > 1 else []
        if not any(column.kind is _Kind.VALUE for column in columns):
            return False
        self._columns, self._has_borders = columns, has_borders
        return True

    def _read_row(self, line: bytes) -> PrintedLine | None:
        """Read a row of the last table; None if the line is none."""
        cells, has_borders = _cells(line)
        if len(cells) != len(self._columns) or has_borders != self._has_borders:
            return None
        found = _Found()
        for column, cell in zip(self._columns, cells, strict=True):
            number = _CELL.match(cell)
            if number is None:
                if column.kind is _Kind.PLACE:
                    # `all` below `epoch`: a row of a table whose head was not seen.
                    return None
                continue
            if column.kind is _Kind.VALUE and _ends_value(cell, number.end()):
                found.values[column.name] = float(number[0])
                found.spelt[column.name] = column.spelt
            elif column.kind is _Kind.PLACE:
                _take_place(found, column, cell, number[0], number.end())
        return self._placed(found) if found.values else None

    def _read_patterns(self, line: bytes, found: PrintedLine) -> PrintedLine:
        values, spelt = dict(found.values), dict(found.spelt)
        for pattern in tuple(self._patterns):
            begun_s = time.thread_time()
            for match in pattern.finditer(line[:PATTERN_BYTES]):
                groups = match.groups()
                name, number = groups[:2] if len(groups) > 1 else (b"value", groups[0] if groups else match[0])
                whole = _CELL.fullmatch(number or b"")
                if whole is not None:
                    shown = (name or b"value").decode("utf-8", "replace")
                    values[clean_name(shown)] = float(whole[0])
                    spelt[clean_name(shown)] = shown
            if time.thread_time() - begun_s > _PATTERN_S:
                self._patterns.remove(pattern)
                text = outside(pattern.pattern.decode())
                self._log(f"--metrics '{text}' is not used further: it took more than {_PATTERN_S:g} s for one line")
        if not values and found is NOTHING:
            return NOTHING
        return PrintedLine(step=found.step, of=found.of, is_epoch=found.is_epoch, values=values, spelt=spelt)


def _take_value(found: _Found, label: _Label, line: bytes, number: bytes, end: int, split: str) -> None:
    """Take a number that a measure's label stands before; of `9842/10000 (98%)` the percentage."""
    if not _ends_value(line, end):
        ratio = _RATIO.match(line, end)
        percent = _PERCENT_OF_RATIO.match(line, ratio.end()) if ratio is not None else None
        if percent is None:
            return
        number = percent[1]
    elif label.needs_decimal and b"." not in number and b"e" not in number:
        return
    name = f"{split}_{label.name}" if split and not label.has_split else label.name
    (found.unplaced if label.needs_place else found.values)[name] = float(number)
    found.spelt[name] = label.spelt


def _take_pairs(found: _Found, line: bytes, pairs: Sequence[tuple[_Label, bytes, int]]) -> bool:
    """Take pairs without a measure, unless they are settings; return False if the whole line shows settings."""
    signs = sum(map(line.count, _CONFIGURATION))
    if signs:
        return signs <= _MOST_SIGNS
    for label, number, end in pairs:
        _take_value(found, label, line, number, end, "")
    if any(label.is_prose for label, _, _ in pairs):
        # Values in a line that has a step or a measure, else settings.
        names = {label.name for label, _, _ in pairs} & found.values.keys()
        found.unplaced.update((name, found.values.pop(name)) for name in names)
    return True


def _take_place(found: _Found, label: _Label, line: bytes, number: bytes, end: int) -> None:
    """Take a number behind `step` or `epoch`, with the last one behind a slash. A part of an epoch is a value."""
    ratio = _RATIO.match(line, end)
    if ratio is None and _PLACE_ENDS.match(line, end) is None:
        return
    whole = _whole(number)
    if label.name == EPOCH and b"." in number:
        found.values[EPOCH] = float(number)
    elif whole is None:
        return
    elif found.places.setdefault(label.name, whole) == whole and ratio is not None:
        found.of[label.name] = int(ratio[1])


def _take_bare(found: _Found, line: bytes, number: bytes, start: int, end: int) -> None:
    """Take a number without a word: `[12]` or `12:` at the beginning, `[640/60000` behind an epoch, a bar's `3/8`."""
    whole = _whole(number)
    if whole is None:
        return
    ratio = _RATIO.match(line, end)
    if ratio is not None and int(ratio[1]) >= whole:
        found.places.setdefault(_PROGRESS, whole)
        found.of.setdefault(_PROGRESS, int(ratio[1]))
    elif start <= 1 and ratio is None and line[end : end + 2] in (b"]\t", b"] ", b":\t"):
        found.places.setdefault(_LINE, whole)


def _without_bar(line: bytes) -> bytes:
    """Return a line without the progress bar at its end."""
    return _PROGRESS_TAIL.sub(b"", line) if b"%|" in line or b"% \xe2\x94" in line else line


def _ends_value(line: bytes, end: int) -> bool:
    """Return True if a number that ends here may be a value: without a unit, a further digit, a ratio or a time."""
    if end >= len(line) or line[end] in _CLOSE:
        return True
    sign, after = line[end : end + 1], line[end + 1 : end + 2]
    if sign == b",":
        return not after.isdigit()
    return (sign == b"." and not after.strip()) or (sign == b"%" and not after.isalnum())


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


def _label_of(label: bytes) -> _Label:
    """Work out what the text before a number says the number is."""
    text = label[-_LABEL_CHARACTERS:].decode("utf-8", "replace")
    of_data = _OF_DATA.search(text)
    if of_data is not None:
        # `epoch(val) [1][79/79]`
        text = text.replace(of_data[0], of_data[1], 1)
    pair = _PAIR.search(text)
    stripped = text.rstrip(" \t'\"|")
    separator = stripped[-1:] if stripped[-1:] in ("=", ":") else ""
    phrase = stripped.rstrip("=:").rstrip(" \t'\"[(") if separator or stripped != text else stripped.rstrip("[(")
    if text.endswith("==") or (not separator and stripped == text and phrase == stripped and stripped):
        # Text that ends in a sign which is no separator: `#3`, `x-3`, `$5`, `v/2`.
        return _NO_LABEL
    if not any(char.isalpha() for char in text):
        return _BARE
    tail = _HARD.split(phrase)[-1].strip(" '\"")
    if not tail:
        return _NO_LABEL if any(char.isalpha() for char in stripped) else _BARE
    split = SPLITS.get(of_data[2].lower(), "") if of_data is not None else ""
    return (
        _place_of(tail, split)
        or _value_of(tail, pair[1] if pair else "", separator, is_prose=_PROSE.search(text) is not None)
        or _NO_LABEL
    )


def _place_of(tail: str, split: str) -> _Label | None:
    words = [word.lower().strip("'\"-#*") for word in tail.replace(":", " ").split()]
    if not words or not _ELSEWHERE.isdisjoint(words[:-1]):
        return None
    spellings = ("_".join(words[-2:]), words[-1], _STEP_SPELLINGS.get(words[-1], ""))
    name = next((one for one in spellings if one in STEPS or one == EPOCH), "")
    return _Label(_Kind.PLACE, name, tail, line_split="" if split == "train" else split) if name else None


def _value_of(tail: str, pair: str, separator: str, *, is_prose: bool) -> _Label | None:
    tokens = tail.replace(":", " : ").split()
    while tokens and (tokens[-1].lower() in _FILLERS or tokens[-1] == ":"):
        tokens.pop()
    last = tokens.pop() if tokens else ""
    measures = [word for word in words_of(last) if is_measure(word)]
    if not measures:
        return _other_of(pair, f"{tokens[-1]} {last}" if tokens else last, separator, is_prose=is_prose)
    spelt, line_split = _phrase_of(last, tokens, is_pair=bool(pair))
    name = normal_name(spelt)
    words = set(words_of(name))
    if not words.isdisjoint(NOT_MEASURES):
        return None
    has_split = not words.isdisjoint(SPLITS.values())
    needs_decimal = not pair and not has_split and all(word in _EVERYDAY for word in measures)
    if needs_decimal and not separator:
        return None
    return _Label(
        _Kind.VALUE,
        clean_name(name),
        spelt,
        needs_decimal,
        needs_place=False,
        has_split=has_split,
        line_split=line_split,
    )


def _phrase_of(last: str, before: list[str], *, is_pair: bool) -> tuple[str, str]:
    """Return a measure with the words before it that belong to it, and the split that stands for its whole line."""
    kept, line_split = [last], ""
    # In `name=number`, nothing but a word for the data stands outside the name.
    is_adjacent, is_behind_colon = not is_pair, False
    for one in reversed(before[-5:]):
        word = one.lower().strip("'\".")
        split = next((SPLITS[part] for part in words_of(word) if part in SPLITS), "")
        if one == ":":
            is_adjacent, is_behind_colon = False, True
        elif split or word == "best":
            kept.insert(0, word)
            line_split = split if is_behind_colon and split in ("val", "test") else line_split
        elif is_adjacent and word.isalpha() and word not in _FILLERS and len(kept) < 3:
            kept.insert(0, word)
        elif word not in _DATA_WORDS:
            break
    return " ".join(kept).strip("'\"."), line_split


def _other_of(pair: str, two_words: str, separator: str, *, is_prose: bool) -> _Label | None:
    """Return a name without a measure: of `name=number`, a word for data, or one that often stands beside measures."""
    if pair:
        is_none = pair.lower() in NOT_MEASURES or not NOT_MEASURES.isdisjoint(words_of(pair))
        if is_none:
            return None
        return _Label(_Kind.VALUE, clean_name(pair), pair, has_split=True, is_any_name=True, is_prose=is_prose)
    if not separator:
        return None
    last = two_words.rsplit(maxsplit=1)[-1] if two_words else ""
    for spelt in (two_words, last):
        name = "_".join(spelt.lower().strip("'\"").split())
        if name in _ALONGSIDE:
            return _Label(_Kind.VALUE, name, spelt, needs_place=True, has_split=True)
    if two_words.lower() in SPLITS and SPLITS[two_words.lower()] != "avg":
        split = SPLITS[two_words.lower()]
        return _Label(_Kind.VALUE, split, two_words, needs_decimal=True, needs_place=True, has_split=True)
    return None
