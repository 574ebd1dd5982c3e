"""Plans as data: versioned JSON, read strictly, every fault with its place, nothing run before the whole is checked.

    {"stoker_plan": 1, "name": "demo",
     "nodes": {"load": {"stage": "tabular/load", "args": {"bundled": "iris"}}, "split": {"stage": "tabular/split"}},
     "edges": [{"from": "load", "to": "split", "port": "table"}],
     "final": "split", "keep": []}

Edge order is the order of a merge's inputs; `port` may be left out where only one fits; an edge with `"each": true`
fans its consumer out over the producer's list. A node may say `"retry"`, `"timeout_s"` and `"needs"` instead of its
stage; `"needs": {"gpu": 1, "memory_gib": 8}` has the fields of `Needs`, and those left out are as `Needs` has them, not
as the stage has. Stages are looked up by name in the installed cookbooks; no code is
loaded by path. Paths in arguments are relative to the file.
"""

from __future__ import annotations

import os
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.core.device import Needs
from stoker.core.errors import Diagnostic, InvalidFile, InvalidPlan
from stoker.core.frozen import fields_of
from stoker.core.jsontext import JsonPlaces, Place, find_places, has_repeated_keys, loads
from stoker.core.retry import RetryOn, RetryPolicy
from stoker.core.text import did_you_mean, whole_number
from stoker.engine.plan import Plan, UncheckedNode, compile_plan
from stoker.engine.stage import Stage
from stoker.host.durable import translated

VERSION = 1
LARGEST_BYTES = 256 * 1024 * 1024

_TOP = {"stoker_plan", "name", "nodes", "edges", "final", "keep"}
_NODE = {"stage", "args", "retry", "timeout_s", "needs"}
_EDGE = {"from", "to", "port", "each"}
_RETRY = {"attempts", "backoff_s", "on"}
# Both are filled in before a node starts.
_NEEDS = {name: value for name, value in fields_of(Needs()).items() if name not in ("share_key", "in_pass")}


def read_plan(path: str, stages: Mapping[str, Stage]) -> Plan:
    """Read a plan file. Raises `InvalidPlan` with every fault of it."""
    with translated(path), open(path, "rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    try:
        if len(data) > LARGEST_BYTES:
            raise ValueError(f"it is larger than {LARGEST_BYTES >> 20} MiB")
        text = data.decode()
        raw = loads(text)
    except UnicodeDecodeError as error:
        raise InvalidPlan(f"{path} is not UTF-8 text", faults=(Diagnostic(path, str(error)),)) from None
    except ValueError as error:
        raise InvalidPlan(f"{path} is not JSON: {error}", faults=(Diagnostic(path, str(error)),)) from None
    return _compile(_Reader(stages, path, text), raw)


def plan_from(raw: Any, stages: Mapping[str, Stage]) -> Plan:
    """Make a plan from data that JSON gave."""
    return _compile(_Reader(stages, "", ""), raw)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Write a plan as data; reading it back gives the same plan."""
    by_id = {node.id: node for node in plan.nodes}
    nodes: dict[str, Any] = {}
    edges = []
    for node in plan.nodes:
        entry: dict[str, Any] = {"stage": node.stage.name, "args": dict(node.args)}
        if node.retry is not None:
            retry = node.retry
            entry["retry"] = {"attempts": retry.attempts, "backoff_s": retry.backoff_s, "on": str(retry.on)}
        if node.timeout_s is not None:
            entry["timeout_s"] = node.timeout_s
        if node.asks is not None:
            entry["needs"] = _needs_to_json(node.asks)
        nodes[node.id] = entry
        fanned = node.fanned_ports(by_id) if node.fans_out else ()
        for port, producers in node.inputs.items():
            for producer in producers:
                edge: dict[str, Any] = {"from": producer, "to": node.id, "port": port}
                if port in fanned and by_id[producer].gives_several:
                    edge["each"] = True
                edges.append(edge)
    return {
        "stoker_plan": VERSION,
        "name": plan.name,
        "nodes": nodes,
        "edges": edges,
        "final": plan.final,
        "keep": list(plan.keep),
    }


def _needs_to_json(needs: Needs) -> dict[str, Any]:
    said = {name: getattr(needs, name) for name, usual in _NEEDS.items() if getattr(needs, name) != usual}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}


def _compile(reader: _Reader, raw: Any) -> Plan:
    draft = reader.read(raw)
    for node in draft.nodes:
        _beside(reader.path, node)
    try:
        plan = compile_plan(draft.name, draft.nodes, final=draft.final, keep=draft.keep)
    except (InvalidPlan, InvalidFile) as error:
        kind = InvalidPlan if reader.faults else type(error)
        for fault in error.faults:
            reader.compiled_fault(fault)
    else:
        kind = InvalidPlan
        if not reader.faults:
            return plan
    faults = tuple(reader.faults)
    headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in {reader.path or 'the plan'}"
    raise kind(headline, faults=faults)


def _beside(path: str, draft: UncheckedNode) -> None:
    """Read a node's paths as relative to the plan file: it means the same wherever the command is given."""
    if path and isinstance(draft.args, Mapping):
        folder = os.path.dirname(os.path.abspath(path))
        draft.args = draft.stage.args.with_paths(draft.args, lambda one: os.path.join(folder, one))


@dataclass(slots=True, kw_only=True)
class _PlanDraft:
    name: str = "plan"
    nodes: list[UncheckedNode] = field(default_factory=list)
    final: str | None = None
    keep: list[str] = field(default_factory=list)


class _Reader:
    """Reads nodes and edges, collecting faults, each with its line where the file has one for it."""

    def __init__(self, stages: Mapping[str, Stage], path: str, text: str) -> None:
        self.path = path
        self.faults: list[Diagnostic] = []
        self._text = text
        self._stages = stages
        self._places: JsonPlaces | None = None

    def read(self, raw: Any) -> _PlanDraft:
        draft = _PlanDraft()
        if not isinstance(raw, dict):
            self._fault((), "a plan is an object")
            return draft
        self._refuse_repeated()
        self._unknown(raw, _TOP, ())
        if raw.get("stoker_plan") != VERSION or type(raw["stoker_plan"]) is not int:
            self._fault(("stoker_plan",), f"must be {VERSION}, is {_short(raw.get('stoker_plan'))}")
        draft.name = self._typed(raw, "name", str, "plan")
        nodes = self._typed(raw, "nodes", dict, {})
        drafts = {node_id: node for node_id, body in nodes.items() if (node := self._node(node_id, body)) is not None}
        for position, edge in enumerate(self._typed(raw, "edges", list, [])):
            self._edge(position, edge, drafts, nodes)
        draft.nodes = list(drafts.values())
        final = self._typed(raw, "final", str, None)
        draft.final = None if final is None else self._named(("final",), final, drafts, nodes)
        keep = [
            self._named(("keep", position), kept, drafts, nodes)
            for position, kept in enumerate(self._typed(raw, "keep", list, []))
        ]
        draft.keep = [kept for kept in keep if kept is not None]
        return draft

    def compiled_fault(self, fault: Diagnostic) -> None:
        """Take a fault that names a node, perhaps with an argument after a dot, and say on which line that is."""
        node, _, argument = fault.where.partition(".")
        inner = ("needs",) if argument == "needs" else ("args", *argument.split(".")) if argument else ()
        line = self._line(("nodes", node, *inner))
        place = f"{self.path}:{line}" if line else self.path
        self.faults.append(Diagnostic(f"{place}: {fault.where}" if place else fault.where, fault.message, fault.hint))

    def _node(self, node_id: str, body: Any) -> UncheckedNode | None:
        place: Place = ("nodes", node_id)
        if not isinstance(body, dict):
            self._fault(place, "a node is an object")
            return None
        self._unknown(body, _NODE, place)
        name = body.get("stage")
        stage = self._stages.get(name) if isinstance(name, str) else None
        timeout_s = body.get("timeout_s")
        if timeout_s is not None and not (_is_number(timeout_s) and timeout_s > 0):
            self._fault((*place, "timeout_s"), f"must be a number of seconds above 0, is {_short(timeout_s)}")
        retry = self._retry(place, body)
        needs = self._needs(place, body)
        args = self._typed(body, "args", dict, {}, place)
        if stage is None:
            hint = did_you_mean(name, self._stages) if isinstance(name, str) else ""
            self._fault((*place, "stage"), f"there is no stage {_short(name)}", hint)
            return None
        return UncheckedNode(id=node_id, stage=stage, args=args, retry=retry, timeout_s=timeout_s, needs=needs)

    def _retry(self, node: Place, body: Mapping[str, Any]) -> RetryPolicy | None:
        raw = self._typed(body, "retry", dict, None, node)
        if raw is None:
            return None
        place = (*node, "retry")
        self._unknown(raw, _RETRY, place)
        attempts, backoff_s, on = raw.get("attempts", 1), raw.get("backoff_s", 1.0), raw.get("on", "transient")
        before = len(self.faults)
        count = whole_number(attempts)
        if count is None or count < 1:
            self._fault((*place, "attempts"), f"must be a whole number from 1, is {_short(attempts)}")
        if not _is_finite(backoff_s) or backoff_s < 0:
            self._fault((*place, "backoff_s"), f"must be a number of seconds from 0, is {_short(backoff_s)}")
        if on not in list(RetryOn):
            self._fault((*place, "on"), f"must be one of {', '.join(RetryOn)}, is {_short(on)}")
        if count is None or len(self.faults) > before:
            return None
        return RetryPolicy(attempts=count, backoff_s=float(backoff_s), on=RetryOn(on))

    def _needs(self, node: Place, body: Mapping[str, Any]) -> Needs | None:
        raw = self._typed(body, "needs", dict, None, node)
        if raw is None:
            return None
        place = (*node, "needs")
        self._unknown(raw, set(_NEEDS), place)
        given: dict[str, Any] = {}
        for name, usual in _NEEDS.items():
            if name not in raw:
                continue
            value = raw[name]
            if type(usual) is float and _is_finite(value):
                given[name] = float(value)
            elif type(usual) is int and whole_number(value) is not None:
                given[name] = whole_number(value)
            elif type(usual) is type(value) and type(value) in (bool, str):
                given[name] = value
            elif type(usual) is tuple and type(value) is list and all(type(one) is str for one in value):
                given[name] = tuple(value)
            else:
                self._fault((*place, name), f"must be {_WORDS[type(usual)]}, is {_short(value)}")
        return Needs(**given)

    def _edge(self, position: int, edge: Any, drafts: Mapping[str, UncheckedNode], nodes: Mapping[str, Any]) -> None:
        place: Place = ("edges", position)
        if not isinstance(edge, dict) or not isinstance(edge.get("from"), str) or not isinstance(edge.get("to"), str):
            self._fault(place, 'an edge is {"from": node, "to": node}')
            return
        self._unknown(edge, _EDGE, place)
        port = self._typed(edge, "port", str, None, place)
        each = self._typed(edge, "each", bool, False, place)
        producer = self._named((*place, "from"), edge["from"], drafts, nodes)
        consumer = self._named((*place, "to"), edge["to"], drafts, nodes)
        if producer is not None and consumer is not None:
            drafts[consumer].feeds.append((port, producer))
            drafts[consumer].fans_out = drafts[consumer].fans_out or each

    def _named(
        self, place: Place, name: Any, drafts: Mapping[str, UncheckedNode], nodes: Mapping[str, Any]
    ) -> str | None:
        """Return the name of a node that could be read. One that could not has been reported."""
        if not isinstance(name, str):
            self._fault(place, f"must be the name of a node, is {_short(name)}")
            return None
        if name not in nodes:
            self._fault(place, f"there is no node {name!r}", did_you_mean(name, nodes))
        return name if name in drafts else None

    def _typed(self, raw: Mapping[str, Any], key: str, kind: type, default: Any, place: Place = ()) -> Any:
        """Return a field, or its default if it is absent, null where that is the default, or not of its type."""
        value = raw.get(key, default)
        if value is default or type(value) is kind:
            return value
        self._fault((*place, key), f"must be {_WORDS[kind]}, is {_short(value)}")
        return default

    def _unknown(self, raw: Mapping[str, Any], known: set[str], place: Place) -> None:
        for key in raw:
            if key not in known:
                self._fault((*place, key), "is not a field of a plan", did_you_mean(key, known))

    def _refuse_repeated(self) -> None:
        if self._text and has_repeated_keys(self._text):
            for place, line in self._found().repeated:
                self.faults.append(Diagnostic(f"{self.path}:{line}: {_spell(place)}", "is given twice"))

    def _fault(self, place: Place, message: str, hint: str = "") -> None:
        line = self._line(place)
        parts = [part for part in (f"{self.path}:{line}" if line else self.path, _spell(place)) if part]
        self.faults.append(Diagnostic(": ".join(parts), message, hint))

    def _line(self, place: Place) -> int | None:
        return self._found().line_of(place) if self._text else None

    def _found(self) -> JsonPlaces:
        if self._places is None:
            self._places = find_places(self._text)
        return self._places


_WORDS: dict[type, str] = {
    dict: "an object", list: "a list", str: "text", bool: "true or false",
    int: "a whole number", float: "a number", tuple: "a list of texts",
}  # fmt: skip


def _spell(place: Place) -> str:
    """Name a place as people write it: `load.args.rows`, `edges[3].port`."""
    steps = place[1:] if place[:1] == ("nodes",) and len(place) > 1 else place
    spelt = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return spelt.removeprefix(".")


def _short(value: Any) -> str:
    # Untrusted: it may be megabytes, or nested as deep as can be read.
    return reprlib.repr(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_finite(value: Any) -> bool:
    # JSON may hold a whole number that no float can.
    return _is_number(value) and abs(value) <= sys.float_info.max
