"""What the names of metrics mean: which are measures, which way they are better; and the labels of printed numbers.

Programs spell the same measure in many ways. `normal_name` gives it one name, so that `val loss`, `validation_loss` and
`eval/loss` are one curve; `known_direction` and `preference` say which trial is best by a name alone. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, StrEnum
from functools import lru_cache
from itertools import pairwise

from stoker.core.frozen import changed, frozen
from stoker.core.text import lazy_pattern
from stoker.engine.metrics.metrics_file import clean_name


class Direction(StrEnum):
    """Which of two values is the better one."""

    SMALLER = "smaller"
    LARGER = "larger"


# In the order of preference. A word may be several of a name's words: `average_precision`, `r2`.
_LARGER = (
    "balanced_accuracy", "accuracy", "acc", "top1", "f1", "fbeta", "auc", "auroc", "auprc", "roc_auc",
    "average_precision", "map", "ap", "r2", "score", "reward", "rewards", "rew", "return", "returns", "bleu", "rouge",
    "rougel", "meteor", "chrf", "iou", "miou", "dice", "precision", "prec", "recall", "correct", "win_rate", "psnr",
    "ssim", "ndcg", "mrr", "kappa", "mcc", "correlation", "pearson", "spearman", "likelihood", "elbo", "top5",
)  # fmt: skip
_SMALLER = (
    "loss", "losses", "error", "errors", "err", "merror", "rmse", "rmsle", "mse", "mae", "mape", "smape", "nll",
    "cross_entropy", "xent", "bce", "cce", "ce", "perplexity", "ppl", "bpb", "bpc", "bits", "wer", "cer", "fid",
    "lpips", "brier", "deviance", "divergence", "kl", "kld", "distance", "regret", "cost", "hinge", "huber",
    "quantile", "pinball", "logloss", "mlogloss", "l1", "l2",
)  # fmt: skip
_NO_PLAIN_MEASURES = frozenset({"distance", "correct", "quantile"})
"""Words that say which way is better, but are no measure beside just any number of a line."""
_SPEED = {
    "latency": Direction.SMALLER, "time": Direction.SMALLER, "seconds": Direction.SMALLER, "ms": Direction.SMALLER,
    "throughput": Direction.LARGER, "per": Direction.LARGER, "fps": Direction.LARGER,
}  # fmt: skip
MEASURES = frozenset(
    {word for word in (*_LARGER, *_SMALLER) if "_" not in word and word not in _NO_PLAIN_MEASURES} | {"entropy"}
)
"""Words that mean a measure; followed by digits (`map50`) as well."""
_STEMS = frozenset(word.rstrip("0123456789").encode() for word in MEASURES)
_NO_LETTERS = bytes(byte if chr(byte).isalpha() and byte < 128 else 32 for byte in range(256))
COUNTERS = frozenset({
    "best", "scale", "scaler", "weight", "weights", "time", "times", "sec", "secs", "second", "seconds", "ms",
    "minutes", "hours", "eta", "elapsed", "remaining", "runtime", "duration", "speed", "throughput", "per", "size",
    "sizes", "bytes", "kb", "mb", "gb", "mem", "memory", "gpu_mem", "count", "counts", "num", "number", "nums", "id",
    "ids", "pid", "port", "version", "seed", "rank", "world", "workers", "worker", "threads", "samples", "sample",
    "tokens", "examples", "images", "instances", "batches", "batch_size", "patience", "threshold", "tolerance", "tol",
    "max_steps", "max_epochs", "epochs", "steps", "year", "month", "day", "hour", "minute", "code", "exit", "flops",
    "flos", "params", "parameters", "layers", "heads", "dim", "dims", "vocab", "devices", "gpus", "cores", "nodes",
    "fn", "function",
})  # fmt: skip
"""Words of counters, sizes and times. `best` repeats an earlier value."""
NOT_MEASURES = COUNTERS | frozenset({
    "coef", "coeff", "coefficient", "thr", "target", "goal", "baseline", "chance", "expected",
    "estimated", "initial", "delta", "lambda", "decay", "smoothing", "ratio", "margin", "std", "wall", "skipped",
    "free", "reader", "http", "wps", "ups", "wpb", "bsz", "syslen", "reflen", "bp", "max",
})  # fmt: skip
"""Words that make a name none of a measure in what is printed: those, and settings."""
SPLITS = {
    "val": "val", "valid": "val", "validation": "val", "dev": "val", "eval": "val", "evaluation": "val",
    "holdout": "val", "validate": "val", "validating": "val", "evaluate": "val", "evaluating": "val",
    "train": "train", "training": "train", "trn": "train", "tr": "train", "learn": "train",
    "test": "test", "testing": "test",
    "avg": "avg", "average": "avg", "mean": "avg",
}  # fmt: skip
"""Words for the data of a measure, and how a curve's name spells them."""
DATA = frozenset({"train", "val", "test"})
_TEST = tuple(word for word, split in SPLITS.items() if split == "test")
_HELD_OUT = ("cv", *(word for word, split in SPLITS.items() if split == "val"), *_TEST)

STEPS = (
    "global_step", "total_timesteps", "num_timesteps", "num_updates", "training_iteration", "step", "iteration", "iter",
    "update", "round", "batch", "episode",
)  # fmt: skip
"""Words for the place of a line or row, the most telling first."""
EPOCH = "epoch"
NO_METRICS = frozenset({*STEPS, EPOCH, "steps", "iterations", "epochs"})
"""Names of places, in files as well."""

_WORDS_AND_DIGITS = lazy_pattern(r"[a-z]+[0-9]*|[0-9]+")
_WORDS_OR_DIGITS = lazy_pattern(r"[a-z]+|[0-9]+")
_CAMEL = lazy_pattern(r"(?<=[a-z])(?=[A-Z][a-z])")
_PARTS = lazy_pattern(r"[\s_/()-]+")
_ULTRALYTICS = lazy_pattern(r"metrics/(?=.+\([BMP]\)$|accuracy_top[15]$)")
"""How names begin of what Ultralytics measures on validation images: of boxes, masks and poses, or of classes."""


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case; digits belong to the word before them."""
    return _WORDS_AND_DIGITS.findall(_CAMEL.sub("_", name).lower())


def is_measure(word: str) -> bool:
    """Return True if a word means a measure."""
    return word in MEASURES or word.rstrip("0123456789") in MEASURES


def may_name_measure(lowered: bytes) -> bool:
    """Return False if a text in lower case has no measure in it; quickly."""
    return not _STEMS.isdisjoint(lowered.translate(_NO_LETTERS).split())


def normal_name(spelt: str) -> str:
    """Return the name of a curve: if it is a measure's, in lower case and with the word for its data first."""
    if not any(is_measure(word) for word in words_of(spelt)):
        return spelt
    spelt = _ULTRALYTICS.sub("val/", spelt)
    front: list[str] = []
    rest: list[str] = []
    is_before = True
    for part in _PARTS.split(_CAMEL.sub("_", spelt).lower().replace("'s", "")):
        bare = part.strip(".'\"()")
        is_before = is_before and not any(is_measure(word) for word in words_of(bare))
        split = SPLITS.get(bare, "")
        if split in DATA:
            front.append(split)
        elif bare and not (bare == "set" and front and not rest):
            rest.append(split if split and is_before else bare)
    return "_".join([*dict.fromkeys(front), *rest])


# Screens ask for the same few names many times a second.
@lru_cache(maxsize=4096)
def known_direction(metric: str) -> Direction | None:
    """Return which direction a metric's name suggests, if any."""
    words = _words(metric)
    speed = _speed(words)
    if speed is not None:
        return speed
    larger, smaller = _found(words, _LARGER), _found(words, _SMALLER)
    # `accuracy_loss` is a loss: the last word says what it is.
    if larger is None and smaller is None:
        return None
    return Direction.LARGER if (larger or (-1,))[0] > (smaller or (-1,))[0] else Direction.SMALLER


@lru_cache(maxsize=4096)
def preference(name: str) -> tuple[int, int, int, int, str]:
    """Order metrics by how likely they are what matters.

    Scores and losses of rows that were held out go first, then those that do not say or are of the test rows, then
    those of the rows that were trained on, then speed and the rest. `test` is for the end: a plain name goes before it.
    Of numbered sets the last goes first, as in early stopping of XGBoost: `validation_0` is often what was trained on.
    """
    words = _words(name)
    direction = known_direction(name)
    held_out = next((place for place, word in enumerate(_HELD_OUT) if word in words), len(_HELD_OUT))
    if direction is None:
        kind = 6
    elif _speed(words) is not None:
        kind = 5
    elif any(SPLITS.get(word) == "train" for word in words):
        kind = 4
    else:
        kind = (0 if held_out < _HELD_OUT.index(_TEST[0]) else 2) + (direction is Direction.SMALLER)
    of_kind = _found(words, _LARGER if direction is Direction.LARGER else _SMALLER)
    place = -1 if held_out == len(_HELD_OUT) else held_out
    numbers = [int(number) for word, number in pairwise(words) if word in SPLITS and number.isdigit()]
    return kind, place, of_kind[1] if of_kind else 0, -max(numbers, default=0), name


def without_split(name: str) -> tuple[str, ...]:
    """Return the words of a name that say what is measured, not on which held-out rows."""
    return tuple(word for word in _words(name) if word not in _HELD_OUT)


def _found(words: Sequence[str], known: Sequence[str]) -> tuple[int, int] | None:
    """Return where in the words the last known one ends, and its place among the known."""
    found = None
    for place, one in enumerate(known):
        parts = [one[:-1], one[-1]] if one[-1].isdigit() else one.split("_")
        for start in range(len(words) - len(parts) + 1):
            if list(words[start : start + len(parts)]) == parts:
                end = start + len(parts)
                if found is None or end > found[0]:
                    found = (end, place)
    return found


def _speed(words: Sequence[str]) -> Direction | None:
    """Return whether a name is one of speed rather than of quality, and which way it is better."""
    return next((direction for word, direction in _SPEED.items() if word in words), None)


def _words(name: str) -> list[str]:
    return _WORDS_OR_DIGITS.findall(_CAMEL.sub("_", name).lower())


# What the text before a number says the number is: a metric's value, a step or an epoch, or nothing. Pure.
#
# " | val loss: "          → a value of val_loss, and `val` is the data of what follows
# "Cost after iteration "  → a step; the number behind the next `:` is a value of cost
# "Best val loss: "        → nothing, and steps behind it are not the line's


_STEP_SPELLINGS = {"it": "iter", "itr": "iter", "ep": EPOCH, EPOCH: EPOCH, **{name: name for name in STEPS}}
_ELSEWHERE = frozenset({"from", "since", "best", "every", "per", "max", "total", "warmup", "last", "start"})
"""Before `epoch` or `step`: the number says where something else was or will be, not the line."""
_RESTORED = frozenset({
    "load", "loaded", "loading", "resume", "resumed", "resuming", "restore", "restored", "restoring",
})  # fmt: skip
"""At the beginning of a phrase: what follows was measured earlier."""
_ALONGSIDE = frozenset({"lr", "learning_rate", "grad_norm", "gnorm"})
"""Names without a measure that are curves as well where a line names them by `:`, `=` or a quote."""
_EVERYDAY = frozenset({
    "err", "error", "errors", "map", "ap", "score", "cost", "return", "returns", "precision", "recall", "bits", "l1",
    "l2", "ce",
})  # fmt: skip
"""Words of everyday messages (`error 404`): they need a decimal point, or a word that says of which data."""
_SETTINGS = frozenset({"l1", "l2"})
"""Of these, the names of settings as well: they need a place or another measure."""
_PREPOSITIONS = frozenset({"of", "at", "on", "for", "after", "over", "in"})
_IS = frozenset({"is", "was", "now", "value"})
_DATA_WORDS = frozenset({"set", "data", "split", "results"})
_BEHIND = frozenset({*_IS, *_DATA_WORDS, "of", "on", "for", "over", "in", "the"})
"""What may stand between a measure and its number."""
_FILLERS = frozenset({
    "is", "was", "of", "at", "now", "value", "the", "a", "an", "and", "with", "on", "for", "our", "final", "current",
    "end", "after", "from", "finished", "done", "completed", "reached", "got", "new", "last", "latest", "result", "has",
    "info", "debug", "epoch", "step", "iter", "iteration", "batch", "round",
})  # fmt: skip
"""Words before a measure that are no part of its name."""
_LABEL_CHARACTERS = 200
_NAME_WORDS = 3
_SIGNS = " \t'\"|│#=:[("
_LABEL_ENDS = frozenset({"", *_SIGNS})
"""What a label ends in: behind any other sign the number is no word's (`$5`, `v/2`)."""

_PAIR = lazy_pattern(r"(?:^|[\s(\[{,;:|])([A-Za-z_\x80-\U0010ffff][\w.@/\x80-\U0010ffff-]{0,99})=$")
_CONTINUED = lazy_pattern(r"[\w\s]{0,60}\)?\s?(?::|=|\bis|\bwas)\s*")
_PIECES = lazy_pattern(r"[,;|│(){}\[\]<>\t:=]|\s{2,}|\s[-–—•·]\s")
_REMARK = lazy_pattern(r"(?<=[\w)])\s?\(([^()]{0,40})\)")
_WRAPPED = lazy_pattern(r"\b(?:tensor|array|(?:\w+\.)?float\d+)\($")
_CLASS = lazy_pattern(r"[a-z][A-Z]")


class LabelKind(Enum):
    """What a number is."""

    NONE = 0
    VALUE = 1
    PLACE = 2
    BARE = 3
    """Without a word: the number may be one of a progress bar, or stand in a bracket behind an epoch."""


@frozen
class Label:
    """What the text before a number says."""

    kind: LabelKind = LabelKind.NONE
    name: str = ""
    spelt: str = ""
    needs_decimal: bool = False
    """Only a number with a decimal point is a value of it."""
    needs_place: bool = False
    """It counts only in a line with a step, an epoch or a measure: `epoch 3, train: 0.98, val: 0.97`."""
    has_split: bool = False
    is_any_name: bool = False
    """Of a `name=number` without a measure: no value in a line that shows a configuration."""
    split: str = ""
    """The data of this measure and of those behind it, up to the next word for data."""
    pending: Label | None = None
    """A measure whose number comes later: `accuracy at epoch 3: 0.9`."""
    continues: bool = False
    """It may stand between such a measure, with a number behind it, and the value."""
    is_best: bool = False
    """From here on, steps and epochs say where the best value was."""
    is_restored: bool = False
    """What follows was measured earlier: a checkpoint was loaded."""


NO_LABEL = Label()


def label_of(key: bytes) -> Label:
    """Return what the text before a number says the number is."""
    text = key[-_LABEL_CHARACTERS:].decode("utf-8", "replace").replace("^2", "2").replace("²", "2")
    continues = _CONTINUED.fullmatch(text) is not None
    if not any(char.isalpha() for char in text):
        return _bare_label(text, continues=continues)
    splits: list[str] = []

    def note_split(remark: re.Match[str]) -> str:
        splits.extend(SPLITS[word] for word in [remark[1].lower()] if SPLITS.get(word) in DATA)
        return ""

    text = _REMARK.sub(note_split, _WRAPPED.sub("", text))
    pieces = [_words_in(piece) for piece in _PIECES.split(text.rstrip(_SIGNS))]
    splits = [*filter(None, map(_split_of, pieces)), *splits]
    found = None
    if text[-1:] in _LABEL_ENDS and not text.endswith("==") and "@[" not in text:
        found = _meaning_of(pieces[-1], text)
        if found is None and text.count("(") > text.count(")"):
            # `reward (last 100): 12.3`
            before = _PIECES.split(text.rpartition("(")[0].rstrip(_SIGNS))[-1]
            later = _meaning_of(_words_in(before), ":")
            found = Label(pending=later) if later is not None and later.kind is LabelKind.VALUE else None
    label = changed(
        found or NO_LABEL,
        split=splits[-1] if splits else "",
        continues=continues and (found is None or found.kind is LabelKind.NONE),
        is_best=any(word.lower() == "best" for piece in pieces for word in piece),
        is_restored=any(piece[0].lower() in _RESTORED for piece in pieces if piece),
    )
    return NO_LABEL if label == NO_LABEL else label


def _words_in(piece: str) -> list[str]:
    return [word for one in piece.split() if (word := one.strip("'\"*#.!"))]


def _bare_label(text: str, *, continues: bool) -> Label:
    if ";" in text or text[-1:] not in _LABEL_ENDS or (text[:1] == "%" and text.endswith("(")):
        # `91.2% (912/1000)` is a score.
        return Label(continues=continues)
    return Label(kind=LabelKind.BARE, continues=continues)


def _split_of(piece: list[str]) -> str:
    """Return the data that a phrase is about: its first word says so. A `train epoch` is only an epoch."""
    split = SPLITS.get(piece[0].lower(), "") if piece else ""
    if split == "train" and any(word.lower() in _STEP_SPELLINGS for word in piece[1:]):
        return ""
    return split if split in DATA else ""


def _meaning_of(phrase: list[str], text: str) -> Label | None:
    """Return what the words before a number say: a place, a measure, or one whose number comes later.

    `text` is what they are the last words of.
    """
    stripped = text.rstrip(" \t'\"|│")
    has_separator = stripped.endswith(("=", ":"))
    # In a cell of its own, a name such as CrossEntropyLoss is a class.
    may_be_class = not has_separator and "|" in text[len(stripped) :]
    measures = [
        at
        for at, word in enumerate(phrase)
        if any(map(is_measure, words_of(word))) and not (may_be_class and _CLASS.search(word))
    ]
    at = measures[-1] if measures else len(phrase)
    behind = [word.lower() for word in phrase[at + 1 :]]
    later = _value_label(phrase, at, "", has_separator=True) if behind and behind[0] in _PREPOSITIONS else None
    place = _place_label(phrase, later)
    if place is not None or not phrase or phrase[-1].startswith("-"):
        return place
    pair = _PAIR.search(text)
    name = pair[1] if pair else ""
    is_list = stripped.endswith(("(", "[", "#"))
    if not measures:
        return _other_label(phrase, name, has_separator=has_separator, is_list=is_list)
    is_direct = not is_list and all(word in _BEHIND or word in SPLITS for word in behind)
    if is_direct and (has_separator or not behind or behind[-1] in _IS):
        return _value_label(phrase, at, name, has_separator=has_separator)
    # The number is one of something else: `accuracy on the 10000 test images: 54`.
    return Label(pending=later)


def _place_label(phrase: list[str], later: Label | None) -> Label | None:
    """Return the label of a step or an epoch; `later` is a measure that is said to be there."""
    words = [word.lower() for word in phrase]
    name = next((_STEP_SPELLINGS[one] for one in ("_".join(words[-2:]), *words[-1:]) if one in _STEP_SPELLINGS), "")
    if not name or (later is None and (words[0] == "at" or not _ELSEWHERE.isdisjoint(words))):
        return None
    return Label(kind=LabelKind.PLACE, name=name, spelt=" ".join(phrase), pending=later)


def _value_label(phrase: list[str], at: int, pair: str, *, has_separator: bool) -> Label | None:
    """Return the label of a measure, with the words before it that belong to it; None if they say that it is none."""
    kept = [phrase[at]]
    # In `name=number`, nothing stands outside the name.
    for one in [] if pair else reversed(phrase[:at]):
        word = one.lower()
        if any(part in SPLITS for part in words_of(word)) or word == "best":
            kept.insert(0, word)
        elif word in _FILLERS or len(kept) == _NAME_WORDS or not word.rstrip("-0123456789").isalpha():
            break
        elif word not in _DATA_WORDS:
            kept.insert(0, word)
    spelt = " ".join([*kept, *(word for word in phrase[at + 1 :] if SPLITS.get(word.lower()) in DATA)])
    name = normal_name(spelt)
    words = set(words_of(name))
    if not words.isdisjoint(NOT_MEASURES):
        return None
    measures = {word for word in words if is_measure(word)}
    has_split = not words.isdisjoint(DATA)
    needs_decimal = not pair and not has_split and measures <= _EVERYDAY
    if needs_decimal and not has_separator:
        return None
    return Label(
        kind=LabelKind.VALUE,
        name=clean_name(name),
        spelt=spelt,
        needs_decimal=needs_decimal,
        needs_place=not has_split and measures <= _SETTINGS,
        has_split=has_split,
    )


def _other_label(phrase: list[str], pair: str, *, has_separator: bool, is_list: bool) -> Label | None:
    """Return a name without a measure: one that often stands beside measures, a word for data, any `name=number`."""
    words = [word.lower() for word in phrase]
    split = SPLITS.get(words[0], "") if len(words) == 1 else ""
    if is_list or not has_separator:
        # `test: [39/40]`
        return Label(kind=LabelKind.BARE) if is_list and split in DATA else None
    for name in ("_".join(words[-2:]), words[-1]):
        if name in _ALONGSIDE:
            return Label(kind=LabelKind.VALUE, name=name, spelt=" ".join(phrase), needs_place=True, has_split=True)
    if pair and NOT_MEASURES.isdisjoint([pair.lower(), *words_of(pair)]):
        return Label(kind=LabelKind.VALUE, name=clean_name(pair), spelt=pair, has_split=True, is_any_name=True)
    if split in DATA and not pair:
        return Label(
            kind=LabelKind.VALUE, name=split, spelt=phrase[0], needs_decimal=True, needs_place=True, has_split=True
        )
    return None
