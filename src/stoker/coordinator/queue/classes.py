"""Classes: jobs of one user that every machine treats alike, that run the same recipe or program, and last as long.

A job's names belong to its class only as far as some machine's allow or deny list asks about them, and the name of a
program, so that a thousand trials are still one class.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stoker.coordinator.queue.commands import Declare, QueueCommandResult
from stoker.coordinator.queue.machines import hello, offer
from stoker.coordinator.queue.moves import enter_line, leave_line, plain, telling
from stoker.coordinator.queue.queue_state import (
    JobKind,
    choices_in,
    code_in,
    digest_in,
    learn,
    learn_code,
    unable,
    unaccepted,
)
from stoker.coordinator.queue.ready import ReadyJobEntry
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.transaction import WriterTransaction
from stoker.core.device import Backend
from stoker.core.digests import digest_value
from stoker.core.events import FleetKinds
from stoker.core.frozen import fields_of
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import verified_name
from stoker.core.machine import Cluster, DevicePreference, Requirements, SchedulableJob, environment_word
from stoker.core.text import point_name
from stoker.protocol.environment_messages import environment_digest
from stoker.protocol.job_messages import HostPolicy
from stoker.protocol.lease_messages import Hello, Welcome
from stoker.scheduler.job_types import rounded_s

_PROGRAM = "command"


def like_of(recipe: str, name: str) -> str:
    """Return by what runs are alike: the recipe; of programs, which have one recipe, the job's name."""
    return name if recipe == _PROGRAM else recipe


def user_of(submitter: str) -> str:
    """Return which user's share a job counts against: the verified name of its submitter, if there is one.

    What a program says of itself does not count beside a verified name, or a user would have a share for each computer.
    """
    return verified_name(submitter) or submitter


def class_of(turn: WriterTransaction, spec: dict[str, Any], submitter: str) -> int:
    """Return the class of a submitter's job, by its order; a new one is written down."""
    book, user = turn.book, user_of(submitter)
    stated_s = spec.get("expected_s")
    if stated_s is not None:
        stated_s = rounded_s(stated_s)
    like = like_of(spec["recipe"], spec["name"])
    name, recipe = _listed_names(spec, book.listed)
    # Of thousands of jobs nearly all are alike: nothing else is made for those.
    sort = (
        user,
        like,
        stated_s,
        name,
        recipe,
        *spec["requirements"].items(),
        *spec["allowed_hosts"],
        None,
        *spec["prefer_hosts"],
    )
    if spec.get("environment"):
        choices = choices_in(spec)
        if learn(book, choices):
            _offer_anew(turn, environment_digest(choices))
        sort = (*sort, None, environment_digest(choices))
    if code := code_in(book, spec):
        if learn_code(book, code):
            _let_deny(turn, code)
        sort = (*sort, None, code)
    class_id = book.class_sorts.get(sort)
    if class_id is None:
        kind = JobKind(_wanted(spec, name, recipe, code), like, user, stated_s)
        class_id = book.class_sorts[sort] = _class_of_kind(turn, kind)
    return class_id


def _offer_anew(turn: WriterTransaction, digest: str) -> None:
    """Let machines that can't have an environment say so."""
    word = environment_word(digest)
    for machine in turn.book.machines.values():
        if machine.is_offered and word in unable(turn.book, machine):
            offer(turn, machine)


def _let_deny(turn: WriterTransaction, code: str) -> None:
    """Let machines that do not run some code say so."""
    for machine in turn.book.machines.values():
        if machine.is_offered and code in unaccepted(turn.book, machine):
            offer(turn, machine)


def _class_of_kind(turn: WriterTransaction, kind: JobKind) -> int:
    book, wanted = turn.book, kind.wanted
    known = book.classes.get(kind)
    if known is not None:
        return known
    book.class_id += 1
    book.classes[kind] = book.class_id
    body = wanted_to_dict(wanted)
    told = (("like", kind.like), ("user", kind.user), ("stated_s", kind.stated_s))
    body |= {name: value for name, value in told if value}
    if wanted.environment:
        body["choices"] = [fields_of(one) for one in book.environments[wanted.environment]]
    turn.write(
        turn.statements.add_class, id=book.class_id, key=digest_value("requirement class", body), wanted=dumps(body)
    )
    book.put_class(book.class_id, kind)
    return book.class_id


def listed_words(cluster: Cluster | None, policies: Iterable[HostPolicy]) -> frozenset[str]:
    """Return every word that an allow or deny list has."""
    nodes = cluster.nodes if cluster is not None else ()
    words = [word for node in nodes for word in (*node.allow_jobs, *node.deny_jobs)]
    words += [word for policy in policies for word in (*(policy.allow_jobs or ()), *(policy.deny_jobs or ()))]
    return frozenset(words)


def wanted_to_dict(wanted: SchedulableJob) -> dict[str, Any]:
    """Return a class as its row holds it."""
    return {
        "name": wanted.name,
        "model": wanted.model,
        "requirements": {
            name: str(value) if isinstance(value, DevicePreference | Backend) else value
            for name, value in fields_of(wanted.requirements).items()
        },
        "allowed_hosts": list(wanted.allowed_hosts),
        "preferred_hosts": list(wanted.preferred_hosts),
        **({"environment": wanted.environment} if wanted.environment else {}),
        **({"code": wanted.code} if wanted.code else {}),
    }


def wanted_from_dict(body: dict[str, Any]) -> SchedulableJob:
    """Read it back."""
    return SchedulableJob(
        name=body["name"],
        model=body["model"],
        requirements=_requirements(body["requirements"]),
        allowed_hosts=tuple(body["allowed_hosts"]),
        preferred_hosts=tuple(body["preferred_hosts"]),
        environment=body.get("environment", ""),
        code=body.get("code", ""),
    )


def reclassify(turn: WriterTransaction, words: frozenset[str]) -> int:
    """Put open jobs that go by one of these words into the class that they belong to now; says how many moved."""
    if not words:
        return 0
    names = words | {word.rpartition("/")[0] for word in words}
    recipes = [
        recipe
        for (recipe,) in turn.read(turn.queries.open_recipes)
        if recipe in words or recipe.rpartition("/")[2] in words
    ]
    rows = turn.read(turn.queries.open_called, names=turn.many(sorted(names)), recipes=turn.many(recipes))
    moved = 0
    for row in (JobRow(*row) for row in rows):
        class_id = class_of(turn, loads(row.spec), row.submitter)
        if class_id != row.class_id:
            _move_class(turn, row, class_id)
            moved += 1
    return moved


def _listed_names(spec: dict[str, Any], listed: frozenset[str]) -> tuple[str, str]:
    """Return a job's name and recipe as far as lists ask about them."""
    if not listed:
        return "", ""
    name, recipe = spec["name"], spec["recipe"]
    shown = point_name(name, spec.get("number", 0))
    is_recipe = recipe in listed or recipe.rpartition("/")[2] in listed
    return shown if shown in listed else name if name in listed else "", recipe if is_recipe else ""


def _wanted(spec: dict[str, Any], name: str, recipe: str, code: str) -> SchedulableJob:
    return SchedulableJob(
        name=name,
        model=recipe,
        requirements=_requirements(spec["requirements"]),
        allowed_hosts=tuple(sorted(spec["allowed_hosts"])),
        preferred_hosts=tuple(sorted(spec["prefer_hosts"])),
        environment=digest_in(spec),
        code=code,
    )


def _move_class(turn: WriterTransaction, row: JobRow, class_id: int) -> None:
    turn.move(row.seq)
    turn.write(turn.statements.set_class, at_seq=row.seq, was_epoch=row.epoch, was_state=row.state, class_id=class_id)
    live = turn.book.live_by_seq.get(row.seq)
    if live is not None:
        live.class_id = class_id
    elif row.is_ready and row.state == "pending":
        leave_line(turn, row.class_id, row.priority, row.seq)
        enter_line(turn, ReadyJobEntry.of(row._replace(class_id=class_id)))


def _requirements(needs: dict[str, Any]) -> Requirements:
    said = dict(needs)
    if "wish" in said:
        said["wish"] = DevicePreference(said["wish"])
    if "backend" in said:
        said["backend"] = Backend(said["backend"])
    return Requirements(**said)


# What is declared about machines: the coordinator's own file, and manifests' policies laid over it by name.


def declare(turn: WriterTransaction, said: Declare) -> QueueCommandResult:
    """Let the coordinator's own file stand as it was read now."""
    turn.book.cluster = said.cluster
    users = said.cluster.users if said.cluster is not None else {}
    turn.book.scheduler.set_policies(users)
    moved = _spread(turn)
    nodes = [] if said.cluster is None else [node.name for node in said.cluster.nodes]
    fields = {"source": plain(said.source), "machines": nodes, **telling({"users": list(users), "by": plain(said.by)})}
    turn.tell(FleetKinds.POLICY_RELOADED, fields=fields)
    return QueueCommandResult(changed=tuple(nodes), data={"jobs_moved": moved})


def put_policies(turn: WriterTransaction, policies: tuple[HostPolicy, ...], *, source: str, by: str) -> None:
    """Lay what a manifest says about machines over what is known of them."""
    book = turn.book
    new = [policy for policy in policies if book.policies.get(policy.name) != policy]
    if not new:
        return
    for policy in new:
        book.policies[policy.name] = policy
        turn.write(turn.statements.put_policy, name=policy.name, policy=policy.model_dump_json(), source=source)
    _spread(turn)
    fields = {"source": source, "machines": [policy.name for policy in new], **telling({"by": by})}
    turn.tell(FleetKinds.POLICY_RELOADED, fields=fields)


def _spread(turn: WriterTransaction) -> int:
    """Tell matching what machines offer now, and put jobs into their classes as lists tell them apart now."""
    book = turn.book
    for machine in book.machines.values():
        machine.away = None
        if machine.is_offered:
            offer(turn, machine)
    was, book.listed = book.listed, listed_words(book.cluster, book.policies.values())
    return reclassify(turn, was ^ book.listed)


# Machines that run only certain code, as they say hello.

_PROGRAMS = frozenset({"command"})


def greet(turn: WriterTransaction, said: Hello) -> Welcome:
    """Take a machine in; from the first on that does not run everybody's code, programs are told apart by theirs."""
    welcome = hello(turn, said)
    if said.accepts and not turn.book.tells_code_apart:
        turn.book.tells_code_apart = True
        reclassify(turn, _PROGRAMS)
    return welcome
