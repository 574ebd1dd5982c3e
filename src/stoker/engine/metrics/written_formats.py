"""The formats of files that programs write metrics to: what a part of such a file holds. Pure.

TensorBoard and W&B are read without their libraries: with all that it requires, `tensorboard` 2.21 takes 150 MB on disk
and 0.4 s of processor time to import; `wandb` 0.31 takes 90 MB. Of each format only what scalars need is known.

A reader gets a file piece by piece, from where it stopped, and returns how much it took. Whatever the bytes are, it
does not raise, takes linear time, and keeps nothing but a few numbers: a fault is named in `fault`, and reading
continues behind it if the format says where that is.
"""

from __future__ import annotations

import codecs
import csv
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import cache

from stoker.core.text import lazy_pattern
from stoker.engine.metrics.metric_names import COUNTERS, DATA, EPOCH, SPLITS, STEPS, words_of

WrittenRow = tuple[int, dict[str, float]]
"""A step, and values by name as the file spells them."""

# Loaded now: a user for whom files are read later may not be allowed to read this module of Python.
codecs.lookup("utf-8-sig")
PART_BYTES = 256 << 10
"""Readers get so much at a time, as long as there is as much."""
_LINE_BYTES = 64 << 10
_COLUMNS = 1024
_NUMBER_CHARACTERS = 64
_FAULT_CHARACTERS = 200
_STEP_BITS = 63


class MetricReader:
    """Reads one file of a format."""

    format_name = ""
    needs_whole_file = False
    """The file is replaced as a whole, so `read` always gets all of it."""

    def __init__(self) -> None:
        self.rows: list[WrittenRow] = []
        """What was read; the caller takes it out."""
        self.fault = ""
        """What was found wrong first."""

    def read(self, part: bytes, start: int) -> int:
        """Read a part of the file that begins at `start`; return how many bytes need not be given again."""
        raise NotImplementedError

    def begin_behind(self, head: bytes) -> None:
        """Prepare to read a file from its end on; `head` is how it begins."""

    def after_rewrite(self) -> MetricReader:
        """Return the reader for what stands in the place of the file now."""
        return type(self)()

    def _note(self, fault: str) -> None:
        self.fault = self.fault or fault[:_FAULT_CHARACTERS]


class _LineReader(MetricReader):
    """Reads lines that have ended: the last one may be cut, and half a number is a wrong number."""

    def __init__(self) -> None:
        super().__init__()
        self._is_inside_long_line = False

    def read(self, part: bytes, start: int) -> int:
        end = part.rfind(b"\n") + 1
        if not end:
            if len(part) <= _LINE_BYTES:
                return 0
            self._note(f"a line of more than {_LINE_BYTES} bytes")
            self._is_inside_long_line = True
            return len(part)
        for line in part[:end].splitlines():
            if self._is_inside_long_line or len(line) > _LINE_BYTES:
                self._note(f"a line of more than {_LINE_BYTES} bytes")
                self._is_inside_long_line = False
            elif line:
                self._read_line(line)
        return end

    def _read_line(self, line: bytes) -> None:
        raise NotImplementedError


class CsvReader(_LineReader):
    """CSV of Lightning, Ultralytics, Keras and the like: names in the first line, one of them a step or an epoch.

    Lightning writes the file anew when a column comes to it: the rows that were read are then passed over.
    """

    format_name = "csv"

    def __init__(self, *, counts_rows: bool = False, before: tuple[Sequence[str], int] = ((), 0)) -> None:
        """Make it; `counts_rows` reads tables without a step, too.

        `before` has the columns of the file that was in this one's place, and how many of its rows were read.
        """
        super().__init__()
        self._counts_rows = counts_rows
        self._before = before
        self._columns: list[str] | None = None
        self._place: int | None = None
        self._rows_read = 0
        self._rows_known = 0

    def begin_behind(self, head: bytes) -> None:
        line, newline, _ = head.partition(b"\n")
        if newline:
            self._read_line(line.rstrip(b"\r"))

    def after_rewrite(self) -> MetricReader:
        before = self._before if self._columns is None else (self._columns, self._rows_read)
        return CsvReader(counts_rows=self._counts_rows, before=before)

    def _read_line(self, line: bytes) -> None:
        # Not `utf-8-sig`: its codec would be imported here, with the rights of the job's user.
        text = line.decode("utf-8", "replace").removeprefix("\ufeff")
        try:
            cells = [cell.strip() for cell in next(csv.reader([text]), [])]
        except csv.Error as error:
            self._note(str(error))
            return
        if self._columns is None:
            self._read_header(cells)
            return
        self._rows_read += 1
        if self._rows_read <= self._rows_known or (self._place is None and not self._counts_rows):
            return
        if len(cells) != len(self._columns):
            self._note(f"a row of {len(cells)} cells below {len(self._columns)} names")
            return
        step = _whole(cells[self._place]) if self._place is not None else self._rows_read - 1
        if step is None:
            self._note(f"a row without a number for {self._columns[self._place or 0]}")
            return
        values = {}
        for column, (name, cell) in enumerate(zip(self._columns, cells, strict=True)):
            value = _number(cell)
            if value is not None and column != self._place:
                values[name] = value
            elif cell and value is None:
                self._note(f"{name} is not a number")
        if values:
            self.rows.append((step, values))

    def _read_header(self, cells: list[str]) -> None:
        names = [name.lower().rsplit("/", 1)[-1] for name in cells]
        if len(cells) > _COLUMNS or not any(any(char.isalpha() for char in name) for name in names):
            self._note("no names of columns")
            cells, names = [], []
        self._columns = cells
        self._place = next((names.index(word) for word in (*STEPS, "steps", EPOCH) if word in names), None)
        if self._place is None and not self._counts_rows:
            self._note("no column step or epoch")
        columns, rows = self._before
        if set(columns) < set(cells):
            self._rows_known = rows


class MlflowReader(_LineReader):
    """A file of MLflow's file store: one metric, lines of `timestamp value step`."""

    format_name = "mlflow"

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self._name = name

    def after_rewrite(self) -> MetricReader:
        return MlflowReader(self._name)

    def _read_line(self, line: bytes) -> None:
        cells = line.decode("utf-8", "replace").split()
        value = _number(cells[1]) if len(cells) > 1 else None
        step = _whole(cells[2]) if len(cells) > 2 else 0
        if value is None or step is None:
            self._note("a line that is not: timestamp value step")
        else:
            self.rows.append((step, {self._name: value}))


_STATE_ENTRY = lazy_pattern(rb"\{[^{}]{0,20000}+\}")


class TrainerStateReader(MetricReader):
    """`trainer_state.json` of Hugging Face: `log_history` is a list of flat objects, and the only one with steps.

    Its entries are found one by one: however large or nested the rest is, it is not parsed. Each checkpoint repeats the
    history up to it, so the readers of one training share `known`.
    """

    format_name = "transformers"
    needs_whole_file = True

    def __init__(self, known: list[int] | None = None) -> None:
        """Make it; `known` has the hash of each entry that was read."""
        super().__init__()
        self._known = [] if known is None else known

    def after_rewrite(self) -> MetricReader:
        return self

    def read(self, part: bytes, start: int) -> int:
        begin = part.find(b'"log_history"')
        if begin < 0:
            if part.rstrip().endswith(b"}"):
                self._note("no log_history")
            return len(part)
        entries = [entry for entry in _STATE_ENTRY.findall(part, begin) if b'"step"' in entry]
        hashes = [hash(entry) for entry in entries]
        same = 0
        while same < min(len(hashes), len(self._known)) and hashes[same] == self._known[same]:
            same += 1
        if same < len(hashes):
            for entry in entries[same:]:
                self._read_entry(entry)
            self._known[:] = hashes
        return len(part)

    def _read_entry(self, entry: bytes) -> None:
        try:
            raw = json.loads(entry)
        except (ValueError, RecursionError):
            self._note("an entry of log_history that is not JSON")
            return
        step = raw.pop("step", None)
        if type(step) is not int or step.bit_length() > _STEP_BITS:
            self._note("an entry of log_history without a step")
            return
        values = {}
        for name, value in raw.items():
            # Its own times and counters stand among the metrics.
            if COUNTERS.isdisjoint(words_of(name)):
                if type(value) in (int, float):
                    values[name] = _float(value)
                else:
                    self._note(f"{name} is not a number")
        if values:
            self.rows.append((step, values))


# Binary formats: records with a length and a checksum, which hold messages of protobuf.


_LARGEST_RECORD_BYTES = 1 << 31
"""No message of Protocol Buffers is larger."""


class EventFileReader(MetricReader):
    """TensorBoard's event files: length, its masked CRC-32C, an `Event` message, its masked CRC-32C.

    `writer` is the folder's name: Keras and `add_scalars` write to one folder for each curve, under the same tag.
    """

    format_name = "tensorboard"

    def __init__(self, writer: str = "") -> None:
        super().__init__()
        self._writer = writer

    def after_rewrite(self) -> MetricReader:
        return EventFileReader(self._writer)

    def read(self, part: bytes, start: int) -> int:
        at = 0
        while at + 12 <= len(part):
            size: int
            size, check = struct.unpack_from("<QI", part, at)
            if masked_crc(part[at : at + 8]) != check or size >= _LARGEST_RECORD_BYTES:
                # Nothing says where the next record begins.
                self._note(f"damaged at byte {start + at}; the rest is not read")
                return at
            end = at + 12 + size + 4
            if size > PART_BYTES - 16:
                # An image, or the graph of a model.
                return end
            if end > len(part):
                return at
            self._read_event(part[at + 12 : end - 4], part[end - 4 : end], start + at)
            at = end
        return at

    def _read_event(self, event: bytes, check: bytes, at: int) -> None:
        try:
            step = 0
            values: dict[str, float] = {}
            for field, value in _fields(event):
                if field == 2 and isinstance(value, int):
                    step = _signed(value)
                elif field == 5 and isinstance(value, bytes):
                    values.update(_scalars(value))
            # Only what is used is checked: of an image this would take long.
            if values and masked_crc(event) != int.from_bytes(check, "little"):
                raise ValueError("its checksum is wrong")
        except ValueError as error:
            self._note(f"the record at byte {at} is skipped: {error}")
            return
        if values:
            self.rows.append((step, {self._name(tag): value for tag, value in values.items()}))

    def _name(self, tag: str) -> str:
        """Return the name of a curve: `loss` in the folder `loss_train` is `loss/train`, in `test` `test/loss`."""
        of_tag = f"{tag.replace('/', '_')}_"
        if self._writer.startswith(of_tag):
            return f"{tag}/{self._writer.removeprefix(of_tag)}"
        return f"{self._writer}/{tag}" if SPLITS.get(self._writer.lower()) in DATA else tag


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    """Return the scalars of a summary: `simple_value`, or a tensor without dimensions."""
    for field, value in _fields(summary):
        if field != 1 or not isinstance(value, bytes):
            continue
        tag, number = "", None
        for inner, content in _fields(value):
            if not isinstance(content, bytes):
                continue
            if inner == 1:
                tag = content.decode("utf-8", "replace")
            elif inner == 2:
                number = _unpack("<f", content)
            elif inner == 8:
                number = _scalar_of(content)
        if number is not None:
            yield tag, number


_DTYPES = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e"}
_OF_FLOATS = {5: "<f", 6: "<d"}
_OF_INTEGERS = (7, 10)


def _scalar_of(tensor: bytes) -> float | None:
    """Return the number in a tensor, if it has no dimensions."""
    kind, found = 0, None
    for field, value in _fields(tensor):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and value:
            return None
        elif isinstance(value, int):
            found = float(_signed(value)) if field in _OF_INTEGERS else found
        elif field in _OF_FLOATS:
            found = _unpack(_OF_FLOATS[field], value)
        elif field in _OF_INTEGERS:
            found = float(_signed(_varint(value, 0)[0]))
        elif field == 4 and kind in _DTYPES:
            found = _unpack(_DTYPES[kind], value)
    return found


_WANDB_HEADER = 7
_BLOCK = 32 << 10
_FULL, _FIRST, _LAST = 1, 2, 4
_DAMAGED = -1


class WandbReader(MetricReader):
    """W&B's offline file: a log in LevelDB's format, with CRC-32, of `Record` messages.

    Blocks of 32 KiB, so behind a damaged record reading continues at the next block.
    """

    format_name = "wandb"

    def read(self, part: bytes, start: int) -> int:
        taken = 0
        if start == 0:
            if len(part) < _WANDB_HEADER:
                return 0
            if part[:4] != b":W&B":
                self._note("not a file of W&B")
                return len(part)
            taken = _WANDB_HEADER
        at = taken
        fragments: list[bytes] = []
        for end, kind, data in self._fragments(part, start, taken):
            at = end
            if kind in (_FULL, _FIRST):
                fragments = [data]
            elif fragments:
                fragments.append(data)
            if kind in (_FULL, _LAST, _DAMAGED):
                if fragments and kind != _DAMAGED:
                    self._read_record(b"".join(fragments), start + end)
                fragments, taken = [], end
        # What does not fit into one part is no history: of what follows, the beginning is missing then.
        return taken if taken or len(part) < PART_BYTES else at

    def _fragments(self, part: bytes, start: int, at: int) -> Iterator[tuple[int, int, bytes]]:
        """Return the end, the kind and the content of each piece of a record."""
        while at < len(part):
            left = _BLOCK - (start + at) % _BLOCK
            if left < _WANDB_HEADER:
                at += left
                continue
            if at + _WANDB_HEADER > len(part):
                return
            check, size, kind = struct.unpack_from("<IHB", part, at)
            end = at + _WANDB_HEADER + size
            data = part[at + _WANDB_HEADER : end]
            is_whole = len(data) == size
            if _WANDB_HEADER + size > left or (is_whole and zlib.crc32(data, zlib.crc32(bytes([kind]))) != check):
                self._note(f"damaged at byte {start + at}")
                at = min(at + left, len(part))
                yield at, _DAMAGED, b""
            elif is_whole:
                at = end
                yield at, kind, data
            else:
                return

    def _read_record(self, record: bytes, end: int) -> None:
        try:
            for field, value in _fields(record):
                if field == 2 and isinstance(value, bytes):
                    self._read_history(value)
        except ValueError as error:
            self._note(f"the record before byte {end} is skipped: {error}")

    def _read_history(self, history: bytes) -> None:
        step: int | None = None
        values = {}
        for field, value in _fields(history):
            if field == 1 and isinstance(value, bytes):
                name, number = _history_item(value)
                if number is not None:
                    values[name] = number
            elif field == 2 and isinstance(value, bytes):
                step = next((_signed(num) for inner, num in _fields(value) if inner == 1 and isinstance(num, int)), 0)
        place = values.pop("_step", None)
        if place is not None and abs(place) < 1 << _STEP_BITS:
            step = int(place)
        if step is not None and values:
            self.rows.append((step, values))


def _history_item(item: bytes) -> tuple[str, float | None]:
    names: list[str] = []
    number = None
    for field, value in _fields(item):
        if isinstance(value, bytes):
            if field in (1, 2):
                names.append(value.decode("utf-8", "replace"))
            elif field == 6:
                number = _unpack("<d", value)
            elif field in (8, 16):
                # Texts, pictures and tables are logged in the same way.
                number = _number(value.decode("utf-8", "replace"))
        elif field == 5:
            number = float((value >> 1) ^ -(value & 1))
    return "/".join(filter(None, names)), number


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Return the fields of a message of protobuf: numbers of variable length as such, all others as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case _:
                raise ValueError("not a message of protobuf")
        if at + size > len(message):
            raise ValueError("a message that is cut")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 128:
        return data[at], at + 1
    number = shift = 0
    for byte in data[at : at + 10]:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number & (1 << 64) - 1, at + shift // 7
    raise ValueError("a number that is cut")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _unpack(form: str, data: bytes) -> float | None:
    return float(struct.unpack(form, data)[0]) if len(data) == struct.calcsize(form) else None


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of bytes as TFRecord files have it. The standard library has CRC-32 alone."""
    table = _crc_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _number(text: str) -> float | None:
    if len(text) > _NUMBER_CHARACTERS or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    number = _number(text)
    return int(number) if number is not None and abs(number) < 1 << _STEP_BITS else None


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
