"""Data sets of several files: which of their files belong to a split, from the names of the files and the card.

A folder and a repository of the hub are laid out alike. Its card, the README, may list configurations with the files
of each split; otherwise names tell: `data/train-00000-of-00002.parquet`, `test.csv`, `validation/part-3.jsonl`. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from stoker.core.errors import BadInput, Diagnostic
from stoker.core.frozen import fresh, frozen
from stoker.core.text import did_you_mean

CARD: Final = "README.md"
SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv", ".txt")
"""Of files with examples; each may be followed by one of `PACKED`."""
PACKED: Final = (".gz", ".zst")
MOST_FILES: Final = 10_000
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"(?P<split>[\w.]+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_TOKENS = re.compile(r"[^a-z0-9]+")
_CONFIGS = re.compile(r"^configs:[ \t]*\r?\n((?:[ \t-].*\r?\n|[ \t]*\r?\n)*)", re.MULTILINE)
_WILDCARDS = re.compile(r"(\*\*/|\*\*|\*|\?)")
_MOST_PATTERNS, _MOST_PIECES = 100, 32
"""Of one split: patterns with wildcards, and the parts of one of them."""
_ABOUT = ("dataset_infos.json", "dataset_info.json", "state.json", "config.json")
"""Files beside the data."""


@frozen
class DataSetFiles:
    """The chosen files of a data set."""

    split: str
    """Empty if its files have no splits."""
    files: tuple[str, ...]


@frozen
class DataSetConfigs:
    """What a card says: the patterns of each split, by the name of the configuration."""

    splits: Mapping[str, Mapping[str, tuple[str, ...]]] = fresh(factory=dict)
    default: str = ""


def suffix_of(path: str) -> str:
    """Return the suffix that tells how a file is read, without that of its compression; empty if it is none."""
    name = path.lower().rpartition("/")[2]
    for packed in PACKED:
        name = name.removesuffix(packed)
    return next((one for one in SUFFIXES if name.endswith(one)), "")


def chosen_files(paths: Iterable[str], card: str, *, subset: str, split: str) -> DataSetFiles:
    """Return the files of a split, in the order of their names; of `train`, or the only one, if none is named.

    Raises `BadInput` naming the splits that there are.
    """
    names = sorted(path for path in paths if suffix_of(path) and path.rpartition("/")[2] not in _ABOUT)
    configs = read_configs(card)
    if configs.splits:
        splits = _configured(configs, names, subset)
    else:
        if subset:
            names = [one for one in names if one.startswith(f"{subset}/") or f"/{subset}/" in one]
            if not names:
                raise BadInput(f"there is no subset {subset!r}: no folder has its name", hint="leave subset out")
        splits = _by_name(names)
    if not splits:
        hint = f"files of examples end in {', '.join(SUFFIXES[:6])}"
        raise BadInput("it has no files of examples", hint=hint)
    chosen = _chosen(splits, split)
    files = splits[chosen]
    _refuse_incomplete(files)
    _refuse_mixed(files)
    return DataSetFiles(split=chosen, files=tuple(files))


def read_configs(card: str) -> DataSetConfigs:
    """Return the configurations that a card lists; none if it lists none. Raises `BadInput` if they can't be read."""
    head = re.match(r"\ufeff?---[ \t]*\r?\n(.*?\n)---", card, re.DOTALL)
    block = _CONFIGS.search(head[1]) if head else None
    if block is None:
        return DataSetConfigs()
    from stoker.config.positions import SourceFile
    from stoker.config.yaml_file import read_yaml

    faults: list[Diagnostic] = []
    text = block[0]
    source = SourceFile(name=CARD, path=CARD, text=text, lines=tuple(text.split("\n")))
    tree = read_yaml(source, faults)
    found = tree.plain().get("configs") if tree is not None and tree.is_map else None
    if faults or not isinstance(found, list):
        why = faults[0].message if faults else "configs is no list"
        raise BadInput(f"the configurations in its {CARD} can't be read: {why}", hint="name one of its files")
    splits: dict[str, Mapping[str, tuple[str, ...]]] = {}
    default = ""
    for one in found:
        name = one.get("config_name") if isinstance(one, dict) else None
        patterns = _patterns_of(one.get("data_files")) if isinstance(one, dict) else {}
        if isinstance(name, str) and patterns:
            splits[name] = patterns
            default = name if one.get("default") is True or (name == "default" and not default) else default
    return DataSetConfigs(splits=splits, default=default)


def _patterns_of(value: Any) -> dict[str, tuple[str, ...]]:
    """Return the patterns of each split; the keys differ from card to card."""
    if isinstance(value, str):
        return {"train": (value,)}
    if isinstance(value, dict):
        return {str(split): _texts(one) for split, one in value.items()}
    made: dict[str, tuple[str, ...]] = {}
    for one in value if isinstance(value, list) else ():
        if isinstance(one, str):
            made["train"] = (*made.get("train", ()), one)
        elif isinstance(one, dict) and isinstance(one.get("split"), str):
            made[one["split"]] = (*made.get(one["split"], ()), *_texts(one.get("path")))
    return made


def _texts(value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    return tuple(one for one in listed if isinstance(one, str))


def _configured(configs: DataSetConfigs, names: Sequence[str], subset: str) -> dict[str, list[str]]:
    known = list(configs.splits)
    name = subset or configs.default or (known[0] if len(known) == 1 else "")
    if name not in configs.splits:
        message = f"there is no subset {name!r}" if name else "it has several subsets"
        raise BadInput(message, hint=did_you_mean(name, known) or f"subset= one of {', '.join(known[:20])}")
    splits: dict[str, list[str]] = {}
    for split, patterns in configs.splits[name].items():
        found = _fitting(patterns, names)
        if found:
            splits[split] = found
    return splits


def _fitting(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names that fit a pattern of a card."""
    pieces = [_WILDCARDS.split(one.removeprefix("./")) for one in patterns]
    plain = {one[0] for one in pieces if len(one) == 1}
    wild = [one for one in pieces if len(one) > 1]
    if len(wild) > _MOST_PATTERNS or any(len(one) > _MOST_PIECES for one in wild):
        raise BadInput(f"its {CARD} has too many patterns of files", hint="name one of its files")
    return [name for name in names if name in plain or any(_fits(name, one) for one in wild)]


def _fits(path: str, pieces: Sequence[str]) -> bool:
    """Return True if a path fits a pattern: a star stays in its folder, two do not.

    An untrusted pattern as a regular expression may take for ever; this takes the product of both lengths at most.
    """
    places = [0]
    for piece in pieces:
        places = _places_after(path, piece, places)
        if not places:
            return False
    return places[-1] == len(path)


def _places_after(path: str, piece: str, places: Sequence[int]) -> list[int]:
    """Return where the next piece of a pattern may begin, ascending."""
    size = len(path)
    if piece == "**":
        return list(range(places[0], size + 1))
    if piece == "**/":
        within = {place + 1 for place in range(places[0], size) if path[place] == "/"}
        return sorted(within.union(places))
    if piece == "?":
        return [place + 1 for place in places if place < size and path[place] != "/"]
    if piece != "*":
        return [place + len(piece) for place in places if path.startswith(piece, place)]
    found: list[int] = []
    for place in places:
        if not found or place > found[-1]:
            end = path.find("/", place)
            found += range(place, (size if end < 0 else end) + 1)
    return found


def _by_name(names: Sequence[str]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {}
    for name in names:
        splits.setdefault(_split_in(name), []).append(name)
    if list(splits) == [""]:
        return splits
    # Beside files that name a split, those that name none belong to no split.
    splits.pop("", None)
    return splits


def _split_in(path: str) -> str:
    """Return the split that a file's name tells, or the name of a folder that it is in; empty if none does."""
    name = path.rpartition("/")[2]
    shard = _SHARD.search(name)
    if shard:
        return shard["split"]
    for part in reversed(path.lower().split("/")):
        tokens = _TOKENS.split(part)
        for split, words in _WORDS.items():
            if any(word in tokens for word in words):
                return split
    return ""


def _chosen(splits: Mapping[str, Sequence[str]], split: str) -> str:
    known = [one for one in splits if one]
    if split in splits:
        return split
    alias = next((name for name, words in _WORDS.items() if split in words), "")
    if alias in splits and split:
        return alias
    if not split and ("train" in splits or len(splits) == 1):
        return "train" if "train" in splits else next(iter(splits))
    listed = f"split= one of {', '.join(known[:20])}"
    if not known:
        raise BadInput(f"there is no split {split!r}: the names of its files tell none", hint="leave split out")
    if not split:
        raise BadInput("it has several splits, and none is train", hint=listed)
    raise BadInput(f"there is no split {split!r}", hint=did_you_mean(split, known) or listed)


def _refuse_incomplete(files: Sequence[str]) -> None:
    """Raise `BadInput` if one of several numbered files is not there."""
    groups: dict[tuple[str, str], set[int]] = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        shard = _SHARD.search(name)
        if shard:
            groups.setdefault((f"{folder}/{shard['split']}", shard["count"]), set()).add(int(shard["number"]))
    for (start, count), numbers in groups.items():
        if len(numbers) < int(count):
            message = f"{int(count) - len(numbers):,} of the {int(count):,} files of {start.strip('/')} are not there"
            raise BadInput(message, hint="copy or fetch all of them")


def _refuse_mixed(files: Sequence[str]) -> None:
    if len(files) > MOST_FILES:
        raise BadInput(f"it has {len(files):,} files; the maximum is {MOST_FILES:,}", hint="join some of them")
    kinds = Counter(map(suffix_of, files))
    if len(kinds) > 1:
        listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
        raise BadInput(f"it has files of several formats ({listed}), perhaps the same data", hint="name one of them")
