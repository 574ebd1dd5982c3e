"""The entries of a defaults list: which other files a file is built on.

    defaults:
      - base                       the file base beside this one
      - model: small               the option small of the group model: model/small, put under `model`
      - optim@training.optim: sgd  put somewhere else; `@_global_` at the top, `@_here_` where this file is put
      - optional data: local       nothing if there is no such file
      - override optim: adam       another option for a group that some other list has
      - _self_                     this file itself; without it, last

An option may be null (nothing, until an override chooses) or a list of options. A name that begins with a slash is
looked up from the folder of the first file, others beside the file that names them.
"""

from __future__ import annotations

import re

from stoker.config.caret import fault_at
from stoker.config.located import Located, Source
from stoker.config.origin import Layer, Origin
from stoker.model.faults import Fault
from stoker.model.frozen import frozen

_NAME = re.compile(
    r"(?:(?P<word>optional|override)\s+)?(?P<path>/?[^\s@/]+(?:/[^\s@/]+)*)(?:@(?P<package>[^\s@/]+))?\s*"
)
GLOBAL = "_global_"
HERE = "_here_"
SELF = "_self_"


@frozen
class Entry:
    """One entry."""

    origin: Origin
    path: str
    """Of a group if it has options, else of a file; a slash in front counts from the first file's folder."""
    package: str | None = None
    options: tuple[str, ...] = ()
    is_group: bool = False
    is_optional: bool = False
    is_override: bool = False

    @property
    def is_self(self) -> bool:
        return not self.is_group and self.path == SELF


def read_defaults(source: Source, tree: Located, faults: list[Fault]) -> list[Entry]:
    """Read a file's defaults list, which always says where the file itself comes."""
    node = tree.value.get("defaults")
    if node is None:
        return [_ITSELF]
    entries: list[Entry] = []
    if type(node.value) is list:
        read = (_read_entry(source, item, faults) for item in node.value)
        entries = [entry for entry in read if entry is not None]
    else:
        faults.append(fault_at(source.value_of(node), "a defaults list is a list", hint="write - base", key="defaults"))
    if not any(entry.is_self for entry in entries):
        entries.append(_ITSELF)
    return entries


def _read_entry(source: Source, item: Located, faults: list[Fault]) -> Entry | None:
    if type(item.value) is str:
        return _entry(source.value_of(item), item.value, None, faults)
    if item.is_map and len(item.value) == 1:
        ((name, node),) = item.value.items()
        options = _options_of(source, node, faults)
        return None if options is None else _entry(source.key_of(node), name, options, faults)
    message = "an entry of a defaults list is a name, or one group and its option"
    hint = "write - base, or - model: small"
    faults.append(fault_at(source.value_of(item), message, hint=hint, key="defaults"))
    return None


def _options_of(source: Source, node: Located, faults: list[Fault]) -> tuple[str, ...] | None:
    if node.value is None:
        return ()
    items = node.value if type(node.value) is list else [node]
    for item in items:
        if type(item.value) is not str:
            message = "an option is the name of a file, or null"
            faults.append(fault_at(source.value_of(item), message, hint="put it in quotes", key="defaults"))
            return None
        if "${" in item.value:
            message = "a defaults list has no references: they are resolved only when all files are read"
            faults.append(fault_at(source.value_of(item), message, key="defaults"))
            return None
    return tuple(item.value for item in items)


def _entry(origin: Origin, name: str, options: tuple[str, ...] | None, faults: list[Fault]) -> Entry | None:
    found = _NAME.fullmatch(name)
    if found is None or (found["word"] == "override" and options is None):
        hint = "write - base, - model: small, - optional model: small, or - override model: small"
        faults.append(fault_at(origin, f"{name!r} is not an entry of a defaults list", hint=hint, key="defaults"))
        return None
    return Entry(
        origin=origin,
        path=found["path"],
        package=found["package"],
        options=options or (),
        is_group=options is not None,
        is_optional=found["word"] == "optional",
        is_override=found["word"] == "override",
    )


_ITSELF = Entry(origin=Origin(layer=Layer.FILE, where=""), path=SELF)
