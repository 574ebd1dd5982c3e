"""Classes: jobs of one user with equal requirements, the same recipe or program, and the same stated duration.

A job's name and recipe are part of its class only if a machine's allow or deny list has them, and for a program its
name, so that a thousand trials are one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stoker.coordinator.queue.allocations import refuse_ended, serve
from stoker.coordinator.queue.commands import Declare, QueueCommandResult
from stoker.coordinator.queue.machines import hello, offer
from stoker.coordinator.queue.pools import declare_pools
from stoker.coordinator.queue.queue_state import (
    JobKind,
    QueueState,
    RegisteredMachine,
    choices_in,
    learn,
    unable,
    unaccepted,
)
from stoker.coordinator.queue.ready_jobs import ReadyJobEntry
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.transaction import WriterTransaction, enter_line, leave_line, plain, telling
from stoker.core.device import Backend
from stoker.core.digests import digest_value
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed, fields_of
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import verified_name
from stoker.core.machine import Cluster, DevicePreference, Requirements, SchedulableJob, code_word, environment_word
from stoker.core.text import point_name
from stoker.protocol.environment_messages import environment_digest
from stoker.protocol.job_checks import code_of
from stoker.protocol.job_messages import HostPolicy
from stoker.protocol.lease_messages import Hello, Welcome
from stoker.scheduler.job_types import rounded_s

_PROGRAM = "command"


def like_of(recipe: str, name: str) -> str:
    """Return the key of learned durations: the recipe, or for programs, which have one recipe, the job's name."""
    return name if recipe == _PROGRAM else recipe


def user_of(submitter: str) -> str:
    """Return the user whose share a job is charged to: the verified name of its submitter, if there is one.

    A verified name comes before the client's claim, or a user would have a share for each computer.
    """
    return verified_name(submitter) or submitter


def class_of(transaction: WriterTransaction, spec: dict[str, Any], submitter: str) -> int:
    """Return the class of a submitter's job; a new one is stored."""
    book, user = transaction.book, user_of(submitter)
    stated_s = spec.get("expected_s")
    if stated_s is not None:
        stated_s = rounded_s(stated_s)
    like = like_of(spec["recipe"], spec["name"])
    name, recipe = _listed_names(spec, book.listed)
    # The fast path: of thousands of jobs nearly all are alike.
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
            _deny(transaction, environment_word(environment_digest(choices)), unable)
        sort = (*sort, None, environment_digest(choices))
    if code := _code_in(book, spec):
        if code not in book.code_words:
            book.code_words.add(code)
            _deny(transaction, code, unaccepted)
        sort = (*sort, None, code)
    class_id = book.class_sorts.get(sort)
    if class_id is None:
        kind = JobKind(_wanted(spec, name, recipe, code), like, user, stated_s)
        class_id = book.class_sorts[sort] = _class_of_kind(transaction, kind)
    return class_id


def _code_in(book: QueueState, spec: dict[str, Any]) -> str:
    """Return a job's code word; empty: not needed, or the code is a recipe's, which is installed on the machine.

    Without a machine that accepts only some code no class has a code word. From the first one on
    (`QueueState.is_code_in_classes`), a program's class has a word for its tree and commit, and machines that do not
    accept it deny the word: no extra cost per grant.
    """
    if not book.is_code_in_classes or spec["recipe"] != _PROGRAM:
        return ""
    return code_word(*code_of(spec))


def _deny(
    transaction: WriterTransaction, word: str, denied: Callable[[QueueState, RegisteredMachine], dict[str, str]]
) -> None:
    """Offer machines again that deny a new word, of an environment or of code."""
    for machine in transaction.book.machines.values():
        if machine.is_offered and word in denied(transaction.book, machine):
            offer(transaction, machine)


def _class_of_kind(transaction: WriterTransaction, kind: JobKind) -> int:
    book, wanted = transaction.book, kind.wanted
    known = book.classes.get(kind)
    if known is not None:
        return known
    book.class_id += 1
    book.classes[kind] = book.class_id
    body = wanted_to_dict(wanted)
    optional = (("like", kind.like), ("user", kind.user), ("stated_s", kind.stated_s))
    body |= {name: value for name, value in optional if value}
    if wanted.environment:
        body["choices"] = [fields_of(one) for one in book.environments[wanted.environment]]
    transaction.write(
        transaction.statements.add_class,
        id=book.class_id,
        key=digest_value("requirement class", body),
        wanted=dumps(body),
    )
    book.put_class(book.class_id, kind)
    return book.class_id


def with_checkpoint(transaction: WriterTransaction, class_id: int) -> int:
    """Return the class of jobs of a class that have saved a checkpoint; a new one is stored."""
    book = transaction.book
    if book.scheduler.wanted[class_id].has_checkpoint:
        return class_id
    kind = next((kind for kind, known in book.classes.items() if known == class_id), None)
    if kind is None:
        # A row of an older coordinator, in which new jobs have another class.
        return class_id
    return _class_of_kind(transaction, kind._replace(wanted=changed(kind.wanted, has_checkpoint=True)))


def listed_words(cluster: Cluster | None, policies: Iterable[HostPolicy]) -> frozenset[str]:
    """Return all words of allow and deny lists."""
    nodes = cluster.nodes if cluster is not None else ()
    words = [word for node in nodes for word in (*node.allow_jobs, *node.deny_jobs)]
    words += [word for policy in policies for word in (*(policy.allow_jobs or ()), *(policy.deny_jobs or ()))]
    return frozenset(words)


def wanted_to_dict(wanted: SchedulableJob) -> dict[str, Any]:
    """Return a class as stored in its row."""
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
        **({"has_checkpoint": True} if wanted.has_checkpoint else {}),
    }


def wanted_from_dict(body: dict[str, Any]) -> SchedulableJob:
    """Return a class from its stored form."""
    return SchedulableJob(
        name=body["name"],
        model=body["model"],
        requirements=_requirements(body["requirements"]),
        allowed_hosts=tuple(body["allowed_hosts"]),
        preferred_hosts=tuple(body["preferred_hosts"]),
        environment=body.get("environment", ""),
        code=body.get("code", ""),
        has_checkpoint=body.get("has_checkpoint", False),
    )


def reclassify(transaction: WriterTransaction, words: frozenset[str]) -> int:
    """Update the class of open jobs whose name or recipe is one of these words; return how many moved."""
    if not words:
        return 0
    names = words | {word.rpartition("/")[0] for word in words}
    recipes = [
        recipe
        for (recipe,) in transaction.read(transaction.queries.open_recipes)
        if recipe in words or recipe.rpartition("/")[2] in words
    ]
    rows = transaction.read(
        transaction.queries.open_called, names=transaction.many(sorted(names)), recipes=transaction.many(recipes)
    )
    moved = 0
    for row in (JobRow(*row) for row in rows):
        class_id = class_of(transaction, loads(row.spec), row.submitter)
        if row.checkpoint:
            class_id = with_checkpoint(transaction, class_id)
        if class_id != row.class_id:
            _move_class(transaction, row, class_id)
            moved += 1
    return moved


def _listed_names(spec: dict[str, Any], listed: frozenset[str]) -> tuple[str, str]:
    """Return a job's name and recipe, each empty if no list has it."""
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
        environment=environment_digest(choices_in(spec)) if spec.get("environment") else "",
        code=code,
    )


def _move_class(transaction: WriterTransaction, row: JobRow, class_id: int) -> None:
    transaction.move(row.seq)
    transaction.write(
        transaction.statements.set_class, at_seq=row.seq, was_epoch=row.epoch, was_state=row.state, class_id=class_id
    )
    live = transaction.book.live_by_seq.get(row.seq)
    if live is not None:
        live.job.class_id = class_id
    elif row.is_ready and row.state == "pending":
        leave_line(transaction, row.class_id, row.priority, row.seq)
        enter_line(transaction, ReadyJobEntry.of(row._replace(class_id=class_id)))


def _requirements(needs: dict[str, Any]) -> Requirements:
    fields = dict(needs)
    if "wish" in fields:
        fields["wish"] = DevicePreference(fields["wish"])
    if "backend" in fields:
        fields["backend"] = Backend(fields["backend"])
    return Requirements(**fields)


# Declarations of machines: the coordinator's cluster file, and policies of manifests over it, by name.


def declare(transaction: WriterTransaction, command: Declare) -> QueueCommandResult:
    """Apply the coordinator's cluster file."""
    cluster, by = command.cluster, plain(command.by)
    transaction.book.cluster = cluster
    users = cluster.users if cluster is not None else {}
    transaction.book.scheduler.set_policies(users)
    declare_pools(transaction, cluster.all_pools if cluster is not None else ())
    moved = _spread(transaction)
    nodes = [] if cluster is None else [node.name for node in cluster.nodes]
    fields = {"source": plain(command.source), "machines": nodes, **telling({"users": list(users), "by": by})}
    transaction.tell(FleetKinds.POLICY_RELOADED, fields=fields)
    return QueueCommandResult(changed=tuple(nodes), data={"jobs_moved": moved})


def put_policies(transaction: WriterTransaction, policies: tuple[HostPolicy, ...], *, source: str, by: str) -> None:
    """Apply a manifest's policies of machines."""
    book = transaction.book
    new = [policy for policy in policies if book.policies.get(policy.name) != policy]
    if not new:
        return
    for policy in new:
        book.policies[policy.name] = policy
        transaction.write(
            transaction.statements.put_policy, name=policy.name, policy=policy.model_dump_json(), source=source
        )
    _spread(transaction)
    fields = {"source": source, "machines": [policy.name for policy in new], **telling({"by": by})}
    transaction.tell(FleetKinds.POLICY_RELOADED, fields=fields)


def _spread(transaction: WriterTransaction) -> int:
    """Offer machines again, and update the classes of jobs for the new allow and deny lists."""
    book = transaction.book
    for machine in book.machines.values():
        machine.away = None
        if machine.is_offered:
            offer(transaction, machine)
    was, book.listed = book.listed, listed_words(book.cluster, book.policies.values())
    return reclassify(transaction, was ^ book.listed)


def greet(transaction: WriterTransaction, message: Hello) -> Welcome:
    """Register a machine; with the first that runs only certain code, classes of programs get a code word."""
    refuse_ended(transaction, message.worker)
    welcome = hello(transaction, message)
    serve(transaction, transaction.book.machines[message.worker])
    if message.accepts and not transaction.book.is_code_in_classes:
        transaction.book.is_code_in_classes = True
        reclassify(transaction, frozenset({_PROGRAM}))
    return welcome
