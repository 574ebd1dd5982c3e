"""What the names of metrics mean: which words are measures, which way they are better, and how curves are named.

Programs spell the same measure in many ways. `normal_name` gives it one name, so that `val loss`, `validation_loss` and
`eval/loss` are one curve; `known_direction` and `preference` say which trial is best by a name alone. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from stoker.core.text import lazy_pattern


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
