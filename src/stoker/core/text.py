"""Names, texts, numbers, sizes and durations between people and programs.

Inside, sizes are integer bytes and durations are seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, AnyStr, cast


class _LazyPattern:
    """A regular expression, compiled when it is first used: a hundred of them would cost each command 16 ms."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, value)
        return value


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression, compiled when it is first used."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))


# Names that people give: of jobs, which become folders, and of nodes, which stand in lists and addresses.

LONGEST_NAME = 100
BEST = "best"
"""The folder of the best of several results, beside those of each."""
JOB_NAME_RULE = f"letters, digits, and - _ . = , inside; at most {LONGEST_NAME} of them"
_MARKS = dict.fromkeys(map(ord, "-_.=,"))
NODE_NAME_RULE = f"letters and digits of ASCII, and . _ - inside; at most {LONGEST_NAME} of them"


def is_job_name(name: str) -> bool:
    """Return whether a job may be called so: its name is a folder's, and `last` means another one."""
    return (
        0 < len(name) <= LONGEST_NAME
        and name not in (".", "..", "last")
        and name[0] != "-"
        and (name.isalnum() or not name.translate(_MARKS) or name.translate(_MARKS).isalnum())
    )


def point_name(name: str, number: int) -> str:
    """Return what people call a job: `resnet`, or `resnet/3` for a point of a sweep."""
    return f"{name}/{number}" if number else name


def is_node_name(name: str) -> bool:
    """Return whether a node may be called so."""
    return (
        0 < len(name) <= LONGEST_NAME
        and name.isascii()
        and name[0].isalnum()
        and all(char.isalnum() or char in "._-" for char in name)
    )


def safe_name(name: str) -> str:
    """Return a node's name as one that a file may have."""
    return "".join(char if char.isalnum() or char in "-_.[]=,+" else "_" for char in name)


# Text from elsewhere, made safe to show.
#
# What a program printed may hold codes that move a terminal's cursor, set its title or answer in the user's name.

# Everything that is not printed as itself, but for tabs, line ends and our own few colours.
_CODES = lazy_pattern(r"\x1b\[(?:0|1|2|31|32|33)m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ALL_CODES = lazy_pattern(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_COLOURED = "\x1b["


def printable(text: str) -> str:
    """Return a text whose control codes are shown instead of obeyed; tabs, line ends and plain colours stay."""
    if text.isprintable():
        return text
    return _CODES.sub(lambda found: found[0] if found[0].startswith(_COLOURED) else f"\\x{ord(found[0]):02x}", text)


def outside(text: str) -> str:
    """Return text from outside as part of one line of ours: control codes, colours included, become escapes."""
    if text.isprintable():
        return text
    return _ALL_CODES.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def json_printable(text: str) -> str:
    """Return a line of JSON in which whatever a terminal might obey is escaped; it stays the same JSON."""
    if text.isprintable():
        return text
    return _ALL_CODES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str, longest: int = 0) -> str:
    """Return a text without breaks and control characters, cut where it becomes a story; 0 means any length."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if not longest or len(line) <= longest else f"{line[: longest - 1]}…"


def some_of(names: Sequence[str], most: int) -> str:
    """Return names in one line: at most so many, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 job`, `1,204 jobs`. `many` is the plural if it is not `one` and an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says; what it is called if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# The nearest name to a misspelt one.

_MANY = 500
_ALIKE = 0.6


def nearest(name: str, known: Iterable[str], *, likeness: float = _ALIKE) -> str | None:
    """Return the known name that was probably meant, or nothing. `likeness` is how alike they must be, at most 1."""
    from difflib import get_close_matches  # noqa: PLC0415 - 4 ms that only a misspelt word should cost

    candidates = list(known)
    if len(candidates) > _MANY:
        # Comparing takes 50 µs a name: among very many, only those that begin alike and are about as long.
        candidates = [one for one in candidates if one[:1] == name[:1] and abs(len(one) - len(name)) <= 2][:_MANY]
    found = get_close_matches(name.lower(), [candidate.lower() for candidate in candidates], n=1, cutoff=likeness)
    if found:
        return next(candidate for candidate in candidates if candidate.lower() == found[0])
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint such as `did you mean 'depth'?`, or an empty text."""
    candidate = nearest(name, known)
    return f"did you mean {candidate!r}?" if candidate else ""


def did_you_mean_path(name: str, known: Sequence[str], aliases: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the same hint for dotted names, of which people often type only the last part: `depth` for `model.depth`.

    Another word for a known name comes first: one of its declared `aliases`, by known name, or a word that other
    programs use for it (`learning_rate` for `lr`).
    """
    ends = {path.rpartition(".")[2]: path for path in reversed(known)}
    candidate = _by_alias(name, known, aliases or {}) or _by_synonym(name, ends)
    candidate = candidate or (nearest(name, known) if "." in name else None)
    candidate = candidate or ends.get(nearest(name.rpartition(".")[2], ends) or "")
    return f"did you mean {candidate!r}?" if candidate else ""


def _plain_word(name: str) -> str:
    return name.rpartition(".")[2].lower().replace("-", "_")


def _by_alias(name: str, known: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> str | None:
    return next((path for path in known if _plain_word(name) in map(_plain_word, aliases.get(path, ()))), None)


def _by_synonym(name: str, ends: Mapping[str, str]) -> str | None:
    """Return the only known path whose last part is another word for the same setting."""
    word = _plain_word(name)
    found = {
        ends[end] for words in SYNONYMS if word in words.split() for end in ends if _plain_word(end) in words.split()
    }
    return found.pop() if len(found) == 1 else None


SYNONYMS = (
    "lr learning_rate learningrate base_lr init_lr initial_lr eta",
    "batch batch_size batchsize bs minibatch_size train_batch_size per_device_train_batch_size",
    "epochs epoch n_epochs nepochs num_epochs max_epochs num_train_epochs",
    "steps max_steps n_steps num_steps iters max_iters max_iter n_iter num_iters iterations",
    "weight_decay wd l2",
    "seed random_seed random_state manual_seed",
    "dropout dropout_rate dropout_prob drop_rate",
    "width hidden hidden_size hidden_dim d_model n_embd embed_dim",
    "layers n_layers num_layers n_layer nlayers num_hidden_layers",
    "heads n_heads num_heads n_head nhead num_attention_heads",
    "clip grad_clip clip_grad max_grad_norm gradient_clip_val",
    "accumulate accumulation_steps grad_accum gradient_accumulation_steps accumulate_grad_batches",
    "max_seq_len max_seq_length max_length seq_len sequence_length context_length block_size",
    "optimizer optimiser optim",
    "patience early_stopping early_stopping_patience early_stopping_rounds",
    "trees n_trees num_trees n_estimators num_boost_round",
    "depth max_depth tree_depth",
    "neighbours neighbors n_neighbours n_neighbors k",
    "rank r lora_r lora_rank",
    "alpha lora_alpha",
    "folds n_folds n_splits cv",
    "target target_column label_column y",
    "data dataset data_path data_dir train_file",
    "threads n_threads num_threads n_jobs num_workers",
    "gpus n_gpus num_gpus ngpus devices",
    "memory mem ram",
)
"""Words that programs use for the same setting, each line for one."""


# Numbers: the one rule by which every schema reads a whole number, whatever its file or message.

EXACT_FLOATS = 2**53
"""Beyond it a float no longer holds every whole number, so one with a point or an exponent may mean another."""


def whole_number(value: object) -> int | None:
    """Return the whole number that a value is: an int, or a float without a fraction, such as 1.0 or 1e3.

    None for everything else: text, true and false, and floats that may stand for several whole numbers.
    """
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer() and abs(value) <= EXACT_FLOATS:
        return int(value)
    return None


_SIZE = lazy_pattern(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)
_SECONDS_ONLY = lazy_pattern(r"\d+(?:\.\d+)?", re.ASCII)
_DURATION = lazy_pattern(r"(?:\d+(?:\.\d+)?\s*(?:ms|s|m|h|d|w)\s*)+", re.ASCII)
_DURATION_PART = lazy_pattern(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.ASCII)

_SIZE_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(text: str) -> int:
    """Read `6GiB`, `500 MB` (decimal), `10G` (binary, as tools do) or plain bytes."""
    match = _SIZE.fullmatch(text)
    factor = _SIZE_FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        message = f"{text!r} is not a size; write for example 500MB, 6GiB or 10G"
        raise ValueError(message)
    # Integers throughout: as floats, 1.001 kB is 1000 bytes.
    whole, _, fraction = match[1].partition(".")
    parts: int = 10 ** len(fraction)
    return int(whole + fraction) * factor // parts


def format_size(size_bytes: int) -> str:
    """Write a size for people, in binary units that are named as such."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if abs(size) < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def parse_duration(text: str) -> float:
    """Read `90`, `90s`, `2h`, `1h30m` or `7d` as seconds."""
    plain = text.strip().lower()
    if _SECONDS_ONLY.fullmatch(plain):
        return float(plain)
    if not _DURATION.fullmatch(plain):
        message = f"{text!r} is not a duration; write for example 90s, 15m, 2h or 7d"
        raise ValueError(message)
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(plain))


def format_duration(seconds: float) -> str:
    """Write a duration for people: `0.4s`, `12s`, `1m52s`, `2h05m`, `3d04h`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


# Where metrics of programs are read from: patterns for their output, paths, or `off`.

METRICS_OFF = "off"
PATTERN_BYTES = 300
"""How much of a line a pattern sees."""
_MOST_TRIES = 10**7
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_ANY_BYTE = frozenset(range(256))


def is_metric_source(text: str) -> bool:
    """Return True if a text is `off`, a path, or a pattern that can be used: with a group, and fast on any line."""
    return not metric_source_fault(text)


def is_metric_pattern(text: str) -> bool:
    """Return True if a text is a pattern: it has a group, and does not begin as a path does."""
    return "(" in text and not text.startswith(("/", "./", "../"))


def metric_source_fault(text: str) -> str:
    """Return why a text can't say where metrics are read from; "" if it can."""
    if not is_metric_pattern(text):
        return "" if text else "it is empty"
    try:
        parsed = re._parser.parse(text.encode())  # noqa: SLF001 - nothing else parses one
        has_group, may_explode = parsed.state.groups > 1, _may_explode(parsed, is_inside=False)
        is_slow = has_group and _is_slow(parsed)
    except (re.error, OverflowError, RecursionError) as error:
        return f"it is no regular expression: {first_line(error)}"
    if not has_group:
        return "it has no group for the number"
    if may_explode:
        return "it repeats what repeats or has alternatives itself, so one line may take for ever"
    return "several of its repetitions match the same text, so one line may take seconds" if is_slow else ""


def _may_explode(parsed: Any, *, is_inside: bool) -> bool:
    """Return True if a pattern repeats something that repeats or branches itself: its time may be exponential."""
    for operation, argument in parsed:
        name = str(operation)
        if is_inside and (name in _REPEATS or name == "BRANCH"):
            return True
        is_repeated = is_inside or (name in _REPEATS and argument[1] > 1)
        if any(_may_explode(part, is_inside=is_repeated) for part in _parts(argument)):
            return True
    return False


def _is_slow(parsed: Any) -> bool:
    """Return True if a search in the worst line has to try very many ways before it fails."""
    operations = [(str(operation), argument) for operation, argument in parsed]
    repeats = _Repeats(parsed)
    literals = list(takewhile(lambda one: one[0] == "LITERAL", operations))
    is_anchored = operations[0][0] == "AT" and "BEGINNING" in str(operations[0][1])
    # If no repetition runs past another beginning, the line has room for one long attempt only.
    is_crossed = repeats.bytes_repeated.issuperset(byte for _, byte in literals)
    starts = 1 if is_anchored or not is_crossed else PATTERN_BYTES // (len(literals) + 1)
    # Logarithms, because there may be more ways than a float can count.
    tries, long = math.log(starts), int(starts > 1)
    most = tries
    for choices, scanned in reversed(repeats.costs):
        most = max(most, tries + math.log(scanned) - math.lgamma(long + 1 + (scanned >= PATTERN_BYTES)))
        tries += math.log(choices)
        long += choices >= PATTERN_BYTES
    # Long repetitions share the bytes of the line: each may end only behind the one before it.
    return max(most, tries - math.lgamma(long + 1)) > math.log(_MOST_TRIES)


class _Repeats:
    r"""The repetitions of a pattern: in how many places each may end, and how far it has to look for them.

    A repetition of bytes with which its continuation can't begin, such as `\d+` before a blank, ends in one place. So
    does one with a continuation that can't fail, such as the last one.
    """

    def __init__(self, parsed: Any, follow: frozenset[int] = frozenset(), *, may_fail: bool = False) -> None:
        """Read a pattern; `follow` are the bytes that its continuation begins with."""
        self.costs: list[tuple[int, int]] = []
        """Of each repetition, the last one first: the places where it may end, and the bytes that it looks at."""
        self.bytes_repeated: frozenset[int] = frozenset()
        self.follow = follow
        """With what the pattern begins, or its continuation if the pattern may be empty."""
        self.may_fail = may_fail
        for operation, argument in reversed(list(parsed)):
            name = str(operation)
            if name in _REPEATS:
                self._repeat(*argument)
            elif name in ("SUBPATTERN", "ATOMIC_GROUP", "BRANCH"):
                self._group(_parts(argument))
            else:
                for part in _parts(argument):
                    # A look ahead or behind, or a condition.
                    self._add(_Repeats(part, _ANY_BYTE, may_fail=True))
                self.follow = _bytes_of(name, argument)
                self.may_fail = True

    def _add(self, inner: _Repeats) -> None:
        self.costs += inner.costs
        self.bytes_repeated |= inner.bytes_repeated

    def _repeat(self, least: int, most: int, body: Any) -> None:
        inner = _Repeats(body, self.follow, may_fail=self.may_fail)
        if self.may_fail:
            is_open = not inner.follow.isdisjoint(self.follow)
            choices = min(int(most) - least + 1, PATTERN_BYTES) if is_open else 1
            self.costs.append((choices, min(int(most), PATTERN_BYTES) or 1))
        self._add(inner)
        if most > 1:
            self.bytes_repeated |= _bytes_in(body)
        self.follow = inner.follow if least else inner.follow | self.follow
        self.may_fail = self.may_fail or (least > 0 and inner.may_fail)

    def _group(self, alternatives: list[Any]) -> None:
        found = [_Repeats(one, self.follow, may_fail=self.may_fail) for one in alternatives]
        for one in found:
            self._add(one)
        if len(found) > 1:
            self.costs.append((len(found), 1))
        self.follow = frozenset().union(*(one.follow for one in found))
        self.may_fail = any(one.may_fail for one in found)


def _bytes_in(parsed: Any) -> frozenset[int]:
    """Return the bytes that a pattern may match."""
    found: frozenset[int] = frozenset()
    for operation, argument in parsed:
        parts = _parts(argument)
        found |= frozenset().union(*map(_bytes_in, parts)) if parts else _bytes_of(str(operation), argument)
    return found


def _parts(argument: Any) -> list[Any]:
    """Return the patterns inside of one."""
    parts = argument if isinstance(argument, tuple | list) else (argument,)
    flat = [part for part in parts for part in (part if isinstance(part, list) else [part])]
    return [part for part in flat if hasattr(part, "getwidth")]


def _bytes_of(name: str, argument: Any) -> frozenset[int]:
    """Return the bytes that one operation of a pattern may begin with, upper and lower case being the same."""
    found = _ANY_BYTE
    if name == "LITERAL":
        found = frozenset({argument})
    elif name == "RANGE":
        found = frozenset(range(argument[0], argument[1] + 1))
    elif name == "CATEGORY":
        letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}.get(str(argument).rpartition("_")[2], "")
        letter = letter.upper() if "_NOT_" in str(argument) else letter
        found = frozenset(re.sub(rf"[^\{letter}]".encode(), b"", bytes(range(256)))) if letter else _ANY_BYTE
    elif name == "IN":
        inner = [(str(operation), value) for operation, value in argument]
        is_negated = inner[0][0] == "NEGATE"
        found = frozenset().union(*(_bytes_of(*one) for one in inner[is_negated:]))
        found = _ANY_BYTE - found if is_negated else found
    return found | frozenset(bytes(found).swapcase())
