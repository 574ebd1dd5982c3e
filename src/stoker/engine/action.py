"""The action: everything that decides what a stage will make, and nothing else.

One struct is the source of the key, of the pre-image stored with each result, of `explain` and of the dry run, so they
can't disagree. No path, host, user, time or commit is in it. Inputs enter by the digest of their content, so a stage
whose inputs come out the same is not run again, however they were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeGuard

from stoker.core.digests import ArtifactRef, Digest, KindRef, digest_encoded, digest_value, encode, encode_list
from stoker.core.errors import StageFailed
from stoker.core.frozen import fresh, frozen
from stoker.core.text import counted
from stoker.engine.stage import Stage

FORMAT = 1
_FORMAT, _NO_INPUTS = encode(FORMAT), encode([])
# Every action of a stage has the same digest of facts.
_encoded = lru_cache(maxsize=1024)(encode)


@frozen
class StageFacts:
    """The part of an action that is the same for every use of a stage in one run."""

    stage: str
    version: int
    output: str
    """Kind and version; `[]` after it for a list."""
    code: Mapping[str, str]
    """Digest of each first-party module that the stage's code is made of."""
    env: Mapping[str, str]
    """Versions of the distributions that the stage declares to use."""

    def digest(self) -> Digest:
        return digest_value(
            "stage",
            {
                "stage": self.stage,
                "version": self.version,
                "output": self.output,
                "code": dict(self.code),
                "env": dict(self.env),
            },
        )


# The stages that run a program.
_PROGRAMS = "command/"


@frozen
class Difference:
    """One field in which two actions differ; None stands for absent."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.field}: now {_short(self.after)}"
        if self.after is None:
            return f"{self.field}: was {_short(self.before)}, now gone"
        if _are_files(self.before) and _are_files(self.after):
            other = sum(one not in self.before for one in self.after)
            return f"{self.field}: {other} of {_short(self.after)} {'has' if other == 1 else 'have'} changed"
        return f"{self.field}: {_short(self.before)} → {_short(self.after)}"


@frozen
class Action:
    """One stage with given inputs and arguments."""

    facts: StageFacts
    facts_digest: Digest
    inputs: tuple[tuple[str, tuple[ArtifactRef, ...]], ...]
    """Sorted by port; within a port in the order of the edges."""
    args: Mapping[str, Any] = fresh(factory=dict)
    """Identity arguments, defaults filled, files as digests."""
    partition: str = ""
    """Keeps otherwise equal work apart; empty changes nothing."""

    def key(self) -> Digest:
        """Return the name under which the result of this action lies."""
        inputs = [[port, [[ref.kind.name, ref.kind.version, ref.digest] for ref in refs]] for port, refs in self.inputs]
        parts = [_FORMAT, _encoded(self.facts_digest), encode(inputs) if inputs else _NO_INPUTS, encode(self.args)]
        if self.partition:
            parts.append(encode(self.partition))
        return digest_encoded("key", encode_list(*parts))

    def to_json(self) -> dict[str, Any]:
        """Return the pre-image as plain data; `from_json` gives back an action with the same key."""
        return {
            "format": FORMAT,
            "stage": self.facts.stage,
            "version": self.facts.version,
            "output": self.facts.output,
            "code": dict(self.facts.code),
            "env": dict(self.facts.env),
            "inputs": [[port, [[str(ref.kind), ref.digest] for ref in refs]] for port, refs in self.inputs],
            "args": dict(self.args),
            "partition": self.partition,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Action:
        """Read a pre-image back. Raises `KeyError`, `TypeError` or `ValueError` if it is not one of this format."""
        if body["format"] != FORMAT:
            message = f"a pre-image of format {body['format']!r}, not {FORMAT}"
            raise ValueError(message)
        facts = StageFacts(
            stage=body["stage"],
            version=body["version"],
            output=body["output"],
            code=body["code"],
            env=body["env"],
        )
        inputs = tuple(
            (port, tuple(ArtifactRef(_kind_ref(kind), Digest(digest)) for kind, digest in refs))
            for port, refs in sorted(body["inputs"], key=_port_of)
        )
        return cls(
            facts=facts, facts_digest=facts.digest(), inputs=inputs, args=body["args"], partition=body["partition"]
        )


def differences(before: Action, after: Action) -> list[Difference]:
    """Return field by field what changed between two actions, most telling first."""
    found = []
    for name in ("stage", "version", "output"):
        found += _compare({name: getattr(before.facts, name)}, {name: getattr(after.facts, name)}, "")
    found += [_without_secrets(one, after.facts.stage) for one in _compare(before.args, after.args, "args.")]
    found += _compare(_inputs(before), _inputs(after), "input ")
    found += _compare(before.facts.code, after.facts.code, "code ")
    found += _compare(before.facts.env, after.facts.env, "env ")
    found += _compare({"partition": before.partition}, {"partition": after.partition}, "")
    return found


def _without_secrets(one: Difference, stage: str) -> Difference:
    """Return only that a variable of a program differs: it may hold a password, and this is shown and written down."""
    if not stage.startswith(_PROGRAMS) or not f"{one.field}.".startswith("args.env."):
        return one
    before, after = (None if value is None else "…" for value in (one.before, one.after))
    return Difference(field=one.field, before=before, after=after if before is None or after is None else "… (another)")


def _inputs(action: Action) -> dict[str, Any]:
    flat = {}
    for port, refs in action.inputs:
        if not refs:
            flat[port] = "an empty list"
        for position, ref in enumerate(refs):
            flat[port if len(refs) == 1 else f"{port}[{position}]"] = f"{ref.kind} {ref.digest}"
    return flat


def _compare(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> list[Difference]:
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if _has_fields(old) and _has_fields(new):
            found += _compare(old, new, f"{prefix}{name}.")
            continue
        # Compared as they enter the key: 1, 1.0 and True are three values, and NaN equals itself.
        if (name in before) != (name in after) or encode(old) != encode(new):
            found.append(Difference(field=f"{prefix}{name}", before=old, after=new))
    return found


def _has_fields(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and set(value) != {"content"}


def _port_of(pair: Sequence[Any]) -> str:
    return str(pair[0])


def _kind_ref(text: str) -> KindRef:
    name, _, version = text.rpartition("@")
    return KindRef(name, int(version))


def _short(value: Any) -> str:
    if isinstance(value, str):
        words = value.split(" ")
        return " ".join(word[:12] if len(word) == 64 else word for word in words)
    if _is_file(value):
        return f"content {value['content'][:17]}"
    if _are_files(value):
        return counted(len(value), "file")
    return repr(value)


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"content"} and isinstance(value["content"], str)


def _are_files(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_file, value))


# The share key of an attempt, and the key of its shared process.


def share_key_of(stage: Stage, args: Mapping[str, Any], action: Action) -> str:
    """Return the share key of an attempt; empty if it has a process of its own.

    Raises `StageFailed` if the cookbook's function fails.
    """
    if stage.together is None:
        return ""
    digests = {port: tuple(str(ref.digest) for ref in refs) for port, refs in action.inputs}
    for name, value in action.args.items():
        if contents := tuple(_contents(value)):
            digests[name] = contents
    try:
        return stage.together.key(stage.args.make(args) if stage.args.type is not None else None, digests)
    except Exception as error:
        raise StageFailed(f"share key: {type(error).__name__}: {error}") from error


def shared_process_key(stage: Stage, share_key: str, action: Action) -> str:
    """Return the key of a shared process: equal for attempts with the same share key and the same code."""
    return digest_value("company", [stage.together.run if stage.together else "", share_key, action.facts_digest])


def _contents(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if set(value) == {"content"}:
            yield str(value["content"])
        else:
            for inner in value.values():
                yield from _contents(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _contents(inner)
