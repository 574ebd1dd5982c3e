"""Which inputs of a job this machine has, and how they are placed when nothing is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from stoker.core.digests import Tree, digest_value
from stoker.core.errors import BadInput, CorruptBytes, StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.job import InputKind, JobInput
from stoker.core.text import format_size
from stoker.host.durable import remove_tree, translated
from stoker.host.identity import ProcessIdentity
from stoker.host.interpreter import FOLDER_ENVIRONMENTS, find_python
from stoker.host.users import OtherUser
from stoker.jobs.program import RECIPE
from stoker.protocol.environment_messages import PYTHON
from stoker.protocol.job_checks import AT, code_of, start_of, why_not_accepted, why_not_in_tree
from stoker.protocol.lease_messages import Grant
from stoker.store.environment_cache import EnvironmentImpossible, EnvironmentReady
from stoker.store.local_store import LocalStore
from stoker.store.memo import known_tree
from stoker.store.records import Record
from stoker.store.tree_views import open_view
from stoker.transfer.hub.client import Hub
from stoker.transfer.hub.listing import Repo, Revision, is_commit, read_repo
from stoker.transfer.hub.repository import RepoRequest, fetch_repository, first_cause
from stoker.transfer.trees.holdings import held_tree
from stoker.worker.environments.environment_builder import Maker, gather_choice
from stoker.worker.preparation.workspaces import NEW, REPOSITORY, DataCache, Workspaces, place_data

# What a job needs and this machine lacks. Pure: checks and fetches are elsewhere.

CODE = "code"


class InputStatus(StrEnum):
    """The status of one input on this machine."""

    IN_PLACE = "in_place"
    """It is at the submitter's path, unchanged."""
    UNSURE = "unsure"
    """There is something at the path; whether it is unchanged is only known after reading it."""
    HELD = "held"
    """It is in this machine's store, or its cache."""
    ABSENT = "absent"


@frozen
class PresentInputs:
    """The result of a quick check."""

    code: bool = False
    """The code's tree is in the store; meaningless for a job without one."""
    inputs: Mapping[str, InputStatus] = fresh(factory=dict)
    """By `JobInput.where`."""
    environment: EnvironmentReady | EnvironmentImpossible | None = None
    """None: it has to be built, or the job has none."""


@frozen
class MissingInputs:
    """What has to be fetched before a job can start."""

    code: bool = False
    inputs: tuple[JobInput, ...] = ()
    environment: bool = False
    impossible: str = ""
    """Why fetching can't help: its environment is impossible on this machine."""

    @property
    def is_nothing(self) -> bool:
        return not (self.code or self.inputs or self.environment or self.impossible)

    @property
    def is_code_alone(self) -> bool:
        return self.code and not (self.inputs or self.environment or self.impossible)

    def words(self) -> str:
        """Return it as a line: `code, DATA (12.1 GiB), environment`."""
        named = [CODE] if self.code else []
        named += [f"{name_of(one)} ({format_size(one.size_bytes)})" for one in self.inputs]
        return ", ".join([*named, *(["environment"] if self.environment else [])])


def what_is_missing(grant: Grant, held: PresentInputs) -> MissingInputs:
    """Return what a job needs and was not found."""
    if isinstance(held.environment, EnvironmentImpossible):
        return MissingInputs(impossible=held.environment.why)
    here = (InputStatus.IN_PLACE, InputStatus.HELD)
    return MissingInputs(
        code=bool(grant.spec.code_tree) and not held.code,
        inputs=tuple(one for one in grant.spec.inputs if held.inputs.get(one.where, InputStatus.ABSENT) not in here),
        environment=bool(grant.spec.environment) and held.environment is None,
    )


def name_of(needed: JobInput) -> str:
    """Return the name of an input for people: its variable or argument."""
    return needed.where.partition(":")[2]


def is_repository(needed: JobInput) -> bool:
    """Return True if each machine fetches it from the hub itself."""
    return needed.kind is InputKind.REPO


# Repositories of the hub as data: fetched by this machine itself, at one commit, into the machine's cache, verified.
#
# Jobs read a plain folder of the data cache, which shares the hub cache's bytes where the disk can.


def split_repository(text: str) -> tuple[Repo, str]:
    """Parse `org/name@commit`. Raises `BadInput`."""
    name, _, commit = text.rpartition("@")
    if not name or not is_commit(commit):
        raise BadInput(f"not a repository at a commit: {text[:200]!r}")
    return read_repo(name), commit


def repository_name(text: str) -> str:
    """Return the name of its folder in the data cache."""
    return f"{REPOSITORY}{digest_value('repository', text)}"


def fetch_to_shelf(hub: Hub, text: str, place: str) -> None:
    """Have a repository's files in a folder that appears whole; what came of it before is used. Raises `StokerError`.

    Several machines' processes may do so at once: each file is fetched by one of them.
    """
    if os.path.isdir(place):
        return
    repo, commit = split_repository(text)
    files = hub.files(repo, commit)
    making = os.path.join(os.path.dirname(place), f"{NEW}{os.getpid()}-{os.path.basename(place)[:16]}")
    with translated(making):
        os.makedirs(making, exist_ok=True)
    try:
        order = RepoRequest(repo=repo, revision=Revision(asked=commit, commit=commit), files=files, out=making)
        error = first_cause(fetch_repository(hub, order))
        if error is not None:
            raise error
        with translated(place):
            try:
                os.rename(making, place)
            except OSError:
                if not os.path.isdir(place):
                    raise
    finally:
        remove_tree(making)


def why_not_fetched(text: str, error: StokerError) -> str:
    """Return in a line why a repository could not be fetched."""
    return f"{text} can't be fetched: {error.message}"


@frozen
class PreparedInputs:
    """The inputs of a job, placed."""

    workspace: str = ""
    """Where its program runs; empty: in the folder that it was submitted from."""
    paths: Mapping[str, str] = fresh(factory=dict)
    """The path of each input, by `JobInput.where`."""
    ready: EnvironmentReady | None = None
    """Its environment."""

    def folder(self, grant: Grant) -> str:
        """Return where its program runs."""
        return (
            os.path.normpath(os.path.join(self.workspace, grant.spec.code_folder))
            if self.workspace
            else grant.spec.folder
        )

    def variables(self, grant: Grant) -> dict[str, str]:
        """Return the variables by which its process finds its own packages."""
        if self.ready is None or not self.workspace:
            return {}
        return {"PYTHONPATH": os.pathsep.join(self.ready.python_path(self.folder(grant)))}

    def facts(self, grant: Grant) -> dict[str, Any]:
        """Return what its job folder and its result record of its inputs: digests, never paths of this machine."""
        facts = {"code_tree": grant.spec.code_tree, "commit": grant.spec.commit, "data": data_facts(grant)}
        return {name: value for name, value in facts.items() if value}


def data_facts(grant: Grant) -> dict[str, str]:
    """Return what a job reads, by variable or argument: digests, and repositories at their commits."""
    return {name_of(one): one.repo if is_repository(one) else f"tree:{one.tree}" for one in grant.spec.inputs}


class LocalInputs:
    """This machine's code, data and environments for jobs."""

    def __init__(
        self,
        *,
        store: Callable[[], LocalStore],
        maker: Maker,
        workspaces: Workspaces,
        data: Callable[[], DataCache],
        host: str,
        may_read_in_place: bool = True,
    ) -> None:
        """Create it; `host` is this machine's name in submissions from it.

        A program of another user reads no file in place: that may be closed to it.
        """
        self.maker = maker
        self.workspaces = workspaces
        self._store = store
        self._data = data
        self._host = host
        self._may_read_in_place = may_read_in_place

    def look(self, grant: Grant, verified: Collection[str] = (), user: OtherUser | None = None) -> PresentInputs:
        """Check what is here, without reading or making anything; `verified` inputs were read in place just now.

        `user` is the one that the job will run as, if not as the worker.
        """
        return PresentInputs(
            code=bool(grant.spec.code_tree) and held_tree(self._store(), grant.spec.code_tree) is not None,
            inputs={one.where: self._standing(one, verified) for one in grant.spec.inputs},
            environment=self._environment(grant, user),
        )

    def code_tree(self, grant: Grant) -> Tree:
        """Return the tree of a job's code, which is here."""
        return self._record(grant.spec.code_tree).tree

    def code_view(self, grant: Grant) -> str:
        """Return the job's folder in a view of its code, which is here."""
        return os.path.join(open_view(self._store(), self._record(grant.spec.code_tree)), grant.spec.code_folder)

    def put_in_place(self, grant: Grant, run: str, held: PresentInputs) -> PreparedInputs:
        """Make an attempt's workspace; return the paths of its inputs. Nothing may be missing."""
        workspace = ""
        paths = {one.where: self._path(one, held.inputs[one.where]) for one in grant.spec.inputs}
        if grant.spec.code_tree:
            workspace = self.workspaces.make(
                run, grant.spec.code_tree, self._store(), self._record(grant.spec.code_tree)
            )
            with translated(workspace):
                os.makedirs(os.path.join(workspace, grant.spec.code_folder), exist_ok=True)
        for where, path in paths.items():
            if where.startswith(AT):
                place_data(workspace, grant.spec.code_folder, where.removeprefix(AT), path)
        ready = held.environment if isinstance(held.environment, EnvironmentReady) else None
        return PreparedInputs(workspace=workspace, paths=paths, ready=ready)

    def mark(self, grant: Grant, run: str, owner: ProcessIdentity, prepared: PreparedInputs) -> None:
        """Record which process uses which inputs: they stay while it lives."""
        if prepared.ready is not None and prepared.ready.key:
            self.maker.shelf.mark(prepared.ready.key, owner, run)
        names = [os.path.basename(os.path.dirname(path)) for path in prepared.paths.values()]
        names += [os.path.basename(path) for path in prepared.paths.values()]
        if grant.spec.inputs:
            self._data().mark(run, owner, names)

    def leave(self, grant: Grant, run: str, prepared: PreparedInputs) -> None:
        """Delete what was only for one attempt."""
        if prepared.ready is not None and prepared.ready.key:
            self.maker.shelf.unmark(prepared.ready.key, run)
        if grant.spec.inputs:
            self._data().unmark(run)
        if grant.spec.code_tree:
            self.workspaces.remove(run)

    def is_unread(self, needed: JobInput) -> bool:
        """Return True if there is something at an input's path, and it was submitted from this machine."""
        is_same = bool(needed.path) and needed.host == self._host
        return is_same and os.path.exists(needed.path)

    def _environment(self, grant: Grant, user: OtherUser | None) -> EnvironmentReady | EnvironmentImpossible | None:
        if not grant.spec.environment:
            return None
        maker = self.maker if user is None else self.maker.for_user(user)
        return maker.look(grant.spec.environment, folder="/" if grant.spec.code_tree else grant.spec.folder)

    def _standing(self, needed: JobInput, verified: Collection[str]) -> InputStatus:
        if is_repository(needed):
            is_here = os.path.isdir(self._data().place(repository_name(needed.repo)))
            return InputStatus.HELD if is_here else InputStatus.ABSENT
        is_unsure = False
        # Files of placed data may be links: a program would change the submitter's own files through them.
        if self._may_read_in_place and not needed.where.startswith(AT) and self.is_unread(needed):
            if needed.where in verified:
                return InputStatus.IN_PLACE
            known = known_tree(needed.path, needed.name, memo=self._store().memo)
            if known is not None and known.digest() == needed.tree:
                return InputStatus.IN_PLACE
            is_unsure = known is None
        if held_tree(self._store(), needed.tree) is not None:
            return InputStatus.HELD
        return InputStatus.UNSURE if is_unsure else InputStatus.ABSENT

    def _path(self, needed: JobInput, standing: InputStatus) -> str:
        if standing is InputStatus.IN_PLACE:
            return needed.path
        shelf = self._data()
        if is_repository(needed):
            return shelf.use(repository_name(needed.repo))
        folder = shelf.open(self._record(needed.tree))
        return os.path.join(folder, needed.name) if needed.kind is InputKind.FILE else folder

    def _record(self, tree: str) -> Record:
        record = held_tree(self._store(), tree)
        if record is None:
            # Pruned at this moment.
            raise CorruptBytes(f"tree {tree[:12]} is no longer here", hint="it is brought again")
        return record


# The code of a job on this machine: whether it is accepted, and what is beside it.
#
# Workspaces are made in `workspaces`; the preparing child fetches code.


def refusal_of(grant: Grant, accepts: Sequence[str]) -> str:
    """Return why a machine that accepts only some code does not run a job; empty: it does, as far as its words tell.

    A recipe's code is the machine's own, and always accepted. Which files the tree has is asked of `refusal_by_tree`.
    """
    return why_not_accepted(accepts, *code_of(grant.spec)) if grant.spec.recipe == RECIPE else ""


def refusal_by_tree(grant: Grant, accepts: Sequence[str], tree: Tree, show: Callable[[], str]) -> str:
    """Return why a machine that accepts only some code does not start a job, whose code is this tree.

    `show` returns the job's folder in a view of the tree. An environment is accepted if it is made from files of that
    folder, and not because this machine has built it for another job.
    """
    if not accepts or grant.spec.recipe != RECIPE:
        return ""
    refused = refusal_of(grant, accepts)
    if refused:
        return refused
    if tree.digest() not in accepts:
        return f"the code that came is not tree {grant.spec.code_tree[:12]}"
    files = {entry.path: entry.executable for entry in tree.entries if entry.link_to is None}
    why = why_not_in_tree(start_of(grant.spec.args.get("argv") or ()), grant.spec.code_folder, files)
    if why:
        return f"accepts only programs of their trees, and this {why}"
    try:
        for choice in grant.spec.environment:
            if choice.kind != PYTHON:
                gather_choice(show(), choice)
    except BadInput as error:
        return f"accepts only environments of their trees: {error.message}"
    return ""


def python_beside(args: Mapping[str, Any], folder: str, *, environment: Mapping[str, str], own_prefix: str) -> str:
    """Return the interpreter of a packed program beside its submitted folder, if this machine has that folder.

    A project's `.venv` or `venv` is no part of its code. On a machine that has the project's folder, its programs are
    run with it all the same, as `stoker run` would there. Empty: no such environment is meant, or it is not here.
    """
    said = str(args.get("python") or "")
    if not folder or not os.path.isdir(folder):
        return ""
    if said:
        path = os.path.join(folder, said)
        return path if not os.path.isabs(os.path.expanduser(said)) and os.path.exists(path) else ""
    word = str((args.get("argv") or ("",))[0])
    try:
        found = find_python("", folder=folder, environment=environment, own_prefix=own_prefix, word=word).path
    except StokerError:
        return ""
    own = (os.path.join(folder, name) for name in FOLDER_ENVIRONMENTS)
    return next((prefix for prefix in own if found.startswith(os.path.join(prefix, ""))), "")
