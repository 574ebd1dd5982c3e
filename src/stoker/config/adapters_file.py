"""The adapters file: several adapters over one base, each with data and checkpoints of its own.

    base = "Qwen/Qwen2.5-0.5B"          # keys at the top hold for all of them; so does key=value beside the file
    epochs = 3

    [[adapter]]
    data = "legal.jsonl"                # relative to the file's folder
    checkpoint = "checkpoints/legal"
    label = "legal"
    rank = 16                           # alpha defaults to 32 then
    learning_rate = 2e-4
    max_seq_len = 512

TOML, or YAML with the same keys. All faults of a file are reported at once, each with its line and key. The arguments
beside `data`, `checkpoint` and `label` come from the recipe's schema, which is passed in.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from stoker.config.fields import PLAIN, WRONG, FileDiagnostics, ParsedMap, Text, below, read_as, shown
from stoker.config.positions import LocatedValue
from stoker.config.values import Schema
from stoker.core.errors import InvalidAdapters
from stoker.core.frozen import fresh, frozen
from stoker.core.text import BEST, LONGEST_NAME, did_you_mean_path, is_job_name

T = TypeVar("T")

WHAT = "adapters file"
ADAPTERS = "adapter"
"""The list at its top."""
OLDER_WORDS: Mapping[str, str] = {"learning_rate": "lr"}
"""Keys of the file that are arguments by another name."""
TURNS = "turns"
_SCHEDULES = ("synchronized", "round_robin", "priority")
"""Values of `schedule` that set the order of adapters; any other is of the learning rate."""
WHOSE_TURN = f"order of adapters: {', '.join(_SCHEDULES)}"
"""Added to the message about a schedule that is neither."""
_OWN_WORDS = ("data", "checkpoint", "label")
_OF_ALL = ("base", TURNS)
"""Keys of all adapters together, which no adapter has."""
_FORM_HINT = "one adapter is [[adapter]] and its keys below it"
_TAKEN = (BEST, "compare")
"""Folders of ours beside those of adapters."""
LABEL_RULE = f"letters, digits, spaces, and - _ . = , inside; at most {LONGEST_NAME} of them; not {' or '.join(_TAKEN)}"


@frozen
class AdapterEntry:
    """One `[[adapter]]` table."""

    number: int
    """From 1, in the order of the file."""
    label: str
    """Unique in the file: the name of its results' folder."""
    data: Any
    """Its examples: an absolute path, a name that the recipe knows, or a list of such and of maps with `path`."""
    checkpoint: str
    """The folder for its checkpoints, an absolute path; not shared with other adapters."""
    values: Mapping[str, Any]
    """Its other values, by the recipe's arguments."""


@frozen
class AdaptersFile:
    """The content of one file."""

    path: str
    """From the root on."""
    shared: Mapping[str, Any] = fresh(factory=dict)
    """Values at its top, defaults of every adapter."""
    adapters: tuple[AdapterEntry, ...] = ()


def is_label(text: str) -> bool:
    """Return True if a label is valid: it becomes a folder's name."""
    return text == text.strip() and text not in _TAKEN and is_job_name(text.replace(" ", "_"))


@frozen
class AdaptersContext:
    """What is known beside the file."""

    schema: Schema | None = None
    """The arguments of the recipe that trains an adapter; if there are none, unknown keys are accepted."""
    data: Collection[str] = ()
    """Names of examples that are not files."""
    may_be_elsewhere: Callable[[str, str], bool] = lambda _text, _folder: False
    """Returns True if a text that is no path below a folder may name a data set of the hub."""
    checks_data: bool = True
    """False: whether data exists is not checked."""
    given: Mapping[str, Any] | None = None
    """Values given beside the file, by argument. None if the file alone is checked: then it may lack a base."""


class ParsedAdapter(NamedTuple):
    """One adapter while it is read: its values, and their places."""

    given: ParsedMap
    """Its values by the recipe's arguments; `checkpoint`, `data` and `label` by their own names."""
    entry: AdapterEntry | None
    """None if it lacks a required value; the faults name it."""
    words: Mapping[str, str]
    """By the recipe's argument, the key that the file has for it."""
    own: Mapping[str, Any] = MappingProxyType({})
    """Its data, folder and label, as far as they are valid; absolute paths."""

    def note(self, argument: str, message: str, hint: str, reading: FileDiagnostics) -> None:
        """Note a fault of an argument, or of a part of it (the path of a source), at its place in the adapter."""
        name, *steps = argument.split(".")
        if argument in self.words or not steps or not self.given.says(name):
            name, steps = argument, []
        word = self.words.get(name, name)
        node = self.given.at(word).at(steps)
        reading.refuse(node, ".".join([below(self.given.key, word), *steps]), message, hint)

    def has(self, argument: str) -> bool:
        """Return True if the adapter has a value for an argument, or for the one that this is a part of."""
        name = argument.partition(".")[0]
        return argument in self.words or self.given.says(argument) or (name != argument and self.given.says(name))


class ParsedAdaptersFile(NamedTuple):
    """A file while it is read."""

    file: AdaptersFile
    top: ParsedAdapter
    """Values at its top, outside of adapters."""
    adapters: Sequence[ParsedAdapter]


AdaptersBuilder = Callable[[ParsedAdaptersFile, FileDiagnostics], T]
"""Builds something from a file. It may note faults: places are known only meanwhile."""


def read_adapters(name: str, path: str, around: AdaptersContext | None = None) -> AdaptersFile:
    """Read an adapters file, called `name` in messages.

    Raises `InvalidAdapters` with all faults, or `LocalFile` if it can't be read at all.
    """
    return read_adapters_into(file_as_it_is, name, path, around)


def read_adapters_into(make: AdaptersBuilder[T], name: str, path: str, around: AdaptersContext | None = None) -> T:
    """Read an adapters file and build something from it; faults noted meanwhile are raised with all the rest."""
    return read_as(
        WHAT, name, path, lambda reading, tree: adapters_of(make, reading, tree, around or AdaptersContext())
    )


def adapters_of(
    make: AdaptersBuilder[T], reading: FileDiagnostics, tree: LocatedValue | None, around: AdaptersContext
) -> T:
    """Build something from an open file."""
    at = tree if tree is not None else LocatedValue({}, 1, 1, 1, 1)
    top = _Words(around, reading, noun="adapters file").read_map(at, "", own=(ADAPTERS,))
    if tree is not None and around.given is not None and not top.given.says("base") and "base" not in around.given:
        hint = 'base = "org/name", or a folder, above the first [[adapter]]; or base=… beside the file'
        reading.refuse(at, "base", "base is missing", hint)
    adapters = tuple(_adapters(at, reading, around)) if tree is not None else ()
    _refuse_shared(adapters, reading)
    entries = tuple(one.entry for one in adapters if one.entry is not None)
    shared = {name: value for name, value in top.given.values.items() if name != ADAPTERS}
    file = AdaptersFile(path=reading.source.path, shared=_with_alpha(shared, around), adapters=entries)
    made = make(ParsedAdaptersFile(file=file, top=top, adapters=adapters), reading)
    reading.sort()
    reading.raise_any(InvalidAdapters)
    return made


def argument_of(word: str, value: object) -> str:
    """Return the recipe's argument for a key of the file."""
    if word == "schedule" and value in _SCHEDULES:
        return TURNS
    return OLDER_WORDS.get(word, word)


def file_as_it_is(whole: ParsedAdaptersFile, _reading: FileDiagnostics) -> AdaptersFile:
    """Make nothing else of a file."""
    return whole.file


def _adapters(tree: LocatedValue, reading: FileDiagnostics, around: AdaptersContext) -> Iterator[ParsedAdapter]:
    listed = tree.value.get(ADAPTERS)
    if listed is None or listed.value in ([], None):
        at = tree if listed is None else listed
        reading.refuse(at, ADAPTERS, f"an {WHAT} has at least one adapter", _FORM_HINT)
        return
    if type(listed.value) is not list:
        reading.refuse(listed, ADAPTERS, f"{shown(listed.value)} is not a list", _FORM_HINT)
        return
    folder = os.path.dirname(reading.source.path)
    labels = _Labels(listed.value)
    for index, item in enumerate(listed.value):
        key = f"{ADAPTERS}[{index}]"
        if type(item.value) is not dict:
            if type(item.value) in PLAIN:
                reading.refuse(item, key, f"{shown(item.value)} is not an adapter", _FORM_HINT)
            continue
        read = _Words(around, reading, noun="adapter").read_map(item, key, own=_OWN_WORDS, elsewhere=_OF_ALL)
        read = read._replace(own=_own(read.given, folder, reading, around))
        yield read._replace(entry=_entry(read, index, labels, around))


def _own(given: ParsedMap, folder: str, reading: FileDiagnostics, around: AdaptersContext) -> dict[str, Any]:
    """Read the keys of an adapter that are not arguments of the recipe."""
    own: dict[str, Any] = {}
    for word, kind in _OWN_KINDS.items():
        if given.says(word):
            at, key = given.at(word), f"{given.key}.{word}"
            is_list = word == "data" and type(at.value) is list
            value = _sources(at, key, reading, around) if is_list else kind.read(at, key, reading)
            if value is not WRONG:
                own[word] = value
        elif word != "label":
            reading.refuse(given.node, given.key, f"{word} is missing", f"{word} = … is {kind.says}")
    if "data" in own:
        own["data"] = _data(given, own["data"], folder, reading, around)
    if "checkpoint" in own:
        own["checkpoint"] = _checkpoint(given, own["checkpoint"], folder, reading)
    return {word: value for word, value in own.items() if value}


def _may_be_a_name(text: str) -> bool:
    return "\0" not in text


_NAME_RULE = "not a valid file name"
_OWN_KINDS = {
    "data": Text("a file of examples", fits=_may_be_a_name, hint=_NAME_RULE),
    "checkpoint": Text("a folder", fits=_may_be_a_name, hint=_NAME_RULE),
    "label": Text("a label", fits=is_label, hint=LABEL_RULE),
}


def _entry(read: ParsedAdapter, index: int, labels: _Labels, around: AdaptersContext) -> AdapterEntry | None:
    own = read.own
    if "data" not in own or "checkpoint" not in own or read.given.says("label") is not ("label" in own):
        return None
    return AdapterEntry(
        number=index + 1,
        label=own.get("label") or labels.of(index, own["checkpoint"]),
        data=own["data"],
        checkpoint=own["checkpoint"],
        values=_with_alpha(read.given.values, around),
    )


def _with_alpha(values: Mapping[str, Any], around: AdaptersContext) -> dict[str, Any]:
    """Return values with the default alpha of a rank: twice the rank."""
    rank = values.get("rank")
    knows_alpha = around.schema is None or "alpha" in around.schema.leaves
    if type(rank) is not int or "alpha" in values or not knows_alpha:
        return dict(values)
    return {**values, "alpha": _checked_alpha(2 * rank, around)}


def _checked_alpha(alpha: int, around: AdaptersContext) -> Any:
    return alpha if around.schema is None else around.schema.leaves["alpha"].check(alpha)


def _sources(node: LocatedValue, key: str, reading: FileDiagnostics, around: AdaptersContext) -> Any:
    """Return the checked items of a list of data; `WRONG` after noting their faults."""
    value = node.plain()
    declared = around.schema.leaves.get("data") if around.schema is not None else None
    if not value:
        return reading.refuse(node, key, "no data", f"it is {_OWN_KINDS['data'].says}, or a list of such")
    if declared is None:
        return value
    try:
        checked = list(declared.check(value))
    except ValueError as error:
        for fault in declared.faults_in(value) if declared.faults_in is not None else ():
            steps = fault.where.strip(".").split(".")
            reading.refuse(node.at(steps), ".".join([key, *steps]), fault.message, fault.hint)
        return WRONG if declared.faults_in is not None else reading.refuse(node, key, str(error))
    for number, text in enumerate(map(_text_of, checked)):
        if not text or not _may_be_a_name(text):
            message = f"{shown(text)} is {_NAME_RULE}" if text else "is empty"
            return reading.refuse(node.at([str(number)]), f"{key}.{number}", message)
    return checked


def _data(given: ParsedMap, data: Any, folder: str, reading: FileDiagnostics, around: AdaptersContext) -> Any:
    """Return data with whole paths; nothing after noting which of it is missing."""
    if type(data) is str:
        return _placed(given.at("data"), f"{given.key}.data", data, folder, reading, around)
    placed = []
    for number, source in enumerate(data):
        at, key = given.at("data").at([str(number)]), f"{given.key}.data.{number}"
        path = _placed(at, key, _text_of(source), folder, reading, around)
        placed.append({**source, "path": path} if type(source) is dict else path)
    return placed if all(map(_text_of, placed)) else []


def _text_of(source: Any) -> str:
    """Return what one of several sources names."""
    return str(source.get("path", "")) if type(source) is dict else str(source)


def _placed(
    node: LocatedValue, key: str, text: str, folder: str, reading: FileDiagnostics, around: AdaptersContext
) -> str:
    """Return the whole path of a source, or its name; empty after noting that there is no such file."""
    if text in around.data:
        return text
    path = _from(folder, text)
    if os.path.exists(path):
        return path
    if around.may_be_elsewhere(text, folder):
        return text
    if not around.checks_data:
        return path
    reading.refuse(node, key, f"there is no file {shown(text)}", f"relative to the file's folder, {folder}")
    return ""


def _checkpoint(given: ParsedMap, checkpoint: str, folder: str, reading: FileDiagnostics) -> str:
    path = _from(folder, checkpoint)
    if os.path.exists(path) and not os.path.isdir(path):
        where = f"{given.key}.checkpoint"
        reading.refuse(given.at("checkpoint"), where, f"{shown(checkpoint)} is a file", "checkpoints go into a folder")
        return ""
    return path


def _from(folder: str, path: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def _refuse_shared(adapters: Sequence[ParsedAdapter], reading: FileDiagnostics) -> None:
    """Refuse two adapters of one label, or with one folder for their checkpoints, or one inside of the other."""
    for word, what in (("label", "the label"), ("checkpoint", "the folder")):
        first: dict[str, ParsedAdapter] = {}
        for one in adapters:
            value = one.own.get(word, "")
            if value and word == "checkpoint":
                # Two names of one folder would write over each other, too.
                value = os.path.realpath(value)
            if value and first.setdefault(value, one) is not one:
                hint = f"first on line {first[value].given.at(word).line}"
                message = f"{what} {shown(one.given.at(word).value)} is used by another adapter, too"
                reading.refuse(one.given.at(word), f"{one.given.key}.{word}", message, hint)
        if word == "checkpoint":
            _refuse_nested(first, reading)


def _refuse_nested(folders: Mapping[str, ParsedAdapter], reading: FileDiagnostics) -> None:
    """Refuse a folder for checkpoints inside of another adapter's, which replaces its content."""
    for folder, one in folders.items():
        above = next((outer for outer in _above(folder) if outer in folders), None)
        if above is not None:
            at, outer = one.given.at("checkpoint"), folders[above].given.at("checkpoint")
            message = f"the folder {shown(at.value)} is inside another adapter's, {shown(outer.value)}"
            hint = f"use a separate folder for each adapter; the other is on line {outer.line}"
            reading.refuse(at, f"{one.given.key}.checkpoint", message, hint)


def _above(folder: str) -> Iterator[str]:
    """Return every folder above a folder."""
    while (folder := os.path.dirname(folder)) != os.path.dirname(folder):
        yield folder


class _Labels:
    """Labels for adapters without one: the name of their checkpoints' folder, if that is unique."""

    def __init__(self, items: Sequence[LocatedValue]) -> None:
        # Numbers beyond these are unique.
        self._count = max(1000, len(items))
        maps = [item.value if type(item.value) is dict else {} for item in items]
        self._said = {one["label"].value for one in maps if "label" in one and type(one["label"].value) is str}
        checkpoints = [one["checkpoint"].value for one in maps if "checkpoint" in one and "label" not in one]
        self._leaves = Counter(_leaf(path) for path in checkpoints if type(path) is str)

    def of(self, index: int, checkpoint: str) -> str:
        """Label the adapter of that index."""
        leaf = _leaf(checkpoint)
        if is_label(leaf) and leaf not in self._said and self._leaves[leaf] == 1:
            return leaf
        number = index + 1
        while (label := f"adapter-{number}") in self._said or label in self._leaves:
            number += self._count
        return label


def _leaf(path: str) -> str:
    return os.path.basename(os.path.normpath(path))


class _Words:
    """Reads the keys of one map that are arguments of the recipe."""

    def __init__(self, around: AdaptersContext, reading: FileDiagnostics, *, noun: str) -> None:
        self._leaves = around.schema.leaves if around.schema is not None else None
        self._reading = reading
        self._noun = noun

    def read_map(
        self, node: LocatedValue, key: str, *, own: Sequence[str], elsewhere: Sequence[str] = ()
    ) -> ParsedAdapter:
        """Read every key; `own` are left to the caller, keys that belong `elsewhere` are refused."""
        values: dict[str, Any] = {}
        words: dict[str, str] = {}
        for word, item in node.value.items():
            if word in own or type(item.value) not in PLAIN:
                continue
            for path, leaf in self._in_record(word, item):
                name = argument_of(path, leaf.value)
                if name in elsewhere:
                    message, hint = f"{word} is the same for all adapters", "put it above the first [[adapter]]"
                    self._reading.refuse(item, below(key, word), message, hint, at_key=True)
                    continue
                if name in words:
                    message = f"{path} and {words[name]} are the same argument"
                    self._reading.refuse(leaf, below(key, path), message, "remove one", at_key=True)
                elif (value := self._value(name, leaf, below(key, path), own)) is not WRONG:
                    values[name] = value
                words.setdefault(name, path)
        return ParsedAdapter(given=ParsedMap(node, key, values), entry=None, words=words)

    def _in_record(self, word: str, item: LocatedValue) -> Iterator[tuple[str, LocatedValue]]:
        """Return the leaves of a map that is a record of the recipe; any other value as it is."""
        is_record = self._leaves is not None and any(path.startswith(f"{word}.") for path in self._leaves)
        if not is_record or type(item.value) is not dict:
            yield word, item
            return
        for name, inner in item.value.items():
            yield from self._in_record(f"{word}.{name}", inner)

    def _value(self, name: str, item: LocatedValue, key: str, own: Sequence[str]) -> Any:
        if self._leaves is None:
            return item.plain()
        declared = self._leaves.get(name)
        if declared is None or name in _HIDDEN:
            known = [*own, *OLDER_WORDS, *(path for path in self._leaves if path not in _HIDDEN)]
            hint = "" if self._reading.is_full else did_you_mean_path(name, known)
            article = "an" if self._noun[0] in "aeiou" else "a"
            message = f"{article} {self._noun} has no key {shown(name)}"
            return self._reading.refuse(item, key, message, hint or f"known: {', '.join(known)}", at_key=True)
        try:
            return declared.check(item.plain())
        except ValueError as error:
            hint = f"{name} is {declared.says}"
            if name == "schedule" and self._noun == WHAT:
                hint += f"; {WHOSE_TURN}"
            return self._reading.refuse(item, key, str(error), hint)


_HIDDEN = frozenset({"data", "label", "checkpoints", "adapter_index", "machine_gpus"})
"""Arguments with keys of their own in the file, or set by Stoker."""
