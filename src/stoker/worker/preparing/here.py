"""What of a job's needs this machine has: a quick look, and everything put in its place when nothing is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stoker.host.durable import translated
from stoker.host.identity import ProcessIdentity
from stoker.host.other_user import OtherUser
from stoker.model.artifacts import Tree
from stoker.model.errors import CorruptBytes
from stoker.model.frozen import fresh, frozen
from stoker.store.held import held_tree
from stoker.store.local import LocalStore
from stoker.store.records import Record
from stoker.store.views import open_view
from stoker.wire.leasing import Grant
from stoker.wire.orders import InputBody, InputKind
from stoker.worker.data_trees import known_tree
from stoker.worker.environments.answers import Impossible, Ready
from stoker.worker.environments.making import Maker
from stoker.worker.preparing.data_shelf import DataShelf
from stoker.worker.preparing.missing import Held, Standing, is_repository, name_of
from stoker.worker.preparing.repositories import repository_name
from stoker.worker.preparing.workspaces import Workspaces


@frozen
class Prepared:
    """Everything that a job needs, in its place."""

    workspace: str = ""
    """Where its program runs; empty: in the folder that it was submitted from."""
    paths: Mapping[str, str] = fresh(factory=dict)
    """Where each input lies, by `InputBody.where`."""
    ready: Ready | None = None
    """Its environment."""

    def folder(self, grant: Grant) -> str:
        """Give where its program runs."""
        return os.path.normpath(os.path.join(self.workspace, grant.code_folder)) if self.workspace else grant.folder

    def variables(self, grant: Grant) -> dict[str, str]:
        """Give what its process finds its own packages by."""
        if self.ready is None or not self.workspace:
            return {}
        return {"PYTHONPATH": os.pathsep.join(self.ready.python_path(self.folder(grant)))}

    def facts(self, grant: Grant) -> dict[str, Any]:
        """Give what its papers and its result tell of what it ran with: digests, never places of this machine."""
        told = {"code_tree": grant.code_tree, "commit": grant.commit, "data": data_facts(grant)}
        return {name: value for name, value in told.items() if value}


def data_facts(grant: Grant) -> dict[str, str]:
    """Give what a job reads, by variable or argument: digests, and repositories at their commits."""
    return {name_of(one): one.repo if is_repository(one) else f"tree:{one.tree}" for one in grant.inputs}


class Here:
    """This machine, as far as jobs' code, data and environments go."""

    def __init__(
        self,
        *,
        store: Callable[[], LocalStore],
        maker: Maker,
        workspaces: Workspaces,
        data: Callable[[], DataShelf],
        host: str,
        may_read_in_place: bool = True,
    ) -> None:
        """Make it; `host` is what whoever submits from this machine calls it.

        A program of another user reads no file in place: that may be closed to it.
        """
        self.maker = maker
        self.workspaces = workspaces
        self._store = store
        self._data = data
        self._host = host
        self._may_read_in_place = may_read_in_place

    def look(self, grant: Grant, verified: Collection[str] = (), user: OtherUser | None = None) -> Held:
        """See what is here, without reading or making anything; `verified` inputs were read in place just now.

        `user` is the one that the job will run as, if not as the worker.
        """
        return Held(
            code=bool(grant.code_tree) and held_tree(self._store(), grant.code_tree) is not None,
            inputs={one.where: self._standing(one, verified) for one in grant.inputs},
            environment=self._environment(grant, user),
        )

    def code_tree(self, grant: Grant) -> Tree:
        """Return the tree of a job's code, which is here."""
        return self._record(grant.code_tree).tree

    def code_view(self, grant: Grant) -> str:
        """Return the job's folder in a view of its code, which is here."""
        return os.path.join(open_view(self._store(), self._record(grant.code_tree)), grant.code_folder)

    def put_in_place(self, grant: Grant, run: str, held: Held) -> Prepared:
        """Make an attempt's workspace and give the paths of all that it reads. Nothing is missing."""
        workspace = ""
        paths = {one.where: self._path(one, held.inputs[one.where]) for one in grant.inputs}
        if grant.code_tree:
            workspace = self.workspaces.make(run, grant.code_tree, self._store(), self._record(grant.code_tree))
            with translated(workspace):
                os.makedirs(os.path.join(workspace, grant.code_folder), exist_ok=True)
        ready = held.environment if isinstance(held.environment, Ready) else None
        return Prepared(workspace=workspace, paths=paths, ready=ready)

    def mark(self, grant: Grant, run: str, owner: ProcessIdentity, prepared: Prepared) -> None:
        """Say which process uses what: it stays while that lives."""
        if prepared.ready is not None and prepared.ready.key:
            self.maker.shelf.mark(prepared.ready.key, owner, run)
        names = [os.path.basename(os.path.dirname(path)) for path in prepared.paths.values()]
        names += [os.path.basename(path) for path in prepared.paths.values()]
        if grant.inputs:
            self._data().mark(run, owner, names)

    def leave(self, grant: Grant, run: str, prepared: Prepared) -> None:
        """Take away what was only for one attempt."""
        if prepared.ready is not None and prepared.ready.key:
            self.maker.shelf.unmark(prepared.ready.key, run)
        if grant.inputs:
            self._data().unmark(run)
        if grant.code_tree:
            self.workspaces.remove(run)

    def is_unread(self, needed: InputBody) -> bool:
        """Say whether something lies where an input was submitted from, on this very machine."""
        is_same = bool(needed.path) and needed.host == self._host
        return is_same and os.path.exists(needed.path)

    def _environment(self, grant: Grant, user: OtherUser | None) -> Ready | Impossible | None:
        if not grant.environment:
            return None
        maker = self.maker if user is None else self.maker.for_user(user)
        return maker.look(grant.environment, folder="/" if grant.code_tree else grant.folder)

    def _standing(self, needed: InputBody, verified: Collection[str]) -> Standing:
        if is_repository(needed):
            is_here = os.path.isdir(self._data().place(repository_name(needed.repo)))
            return Standing.HELD if is_here else Standing.ABSENT
        is_unsure = False
        if self._may_read_in_place and self.is_unread(needed):
            if needed.where in verified:
                return Standing.IN_PLACE
            known = known_tree(needed.path, needed.name, memo=self._store().memo)
            if known is not None and known.digest() == needed.tree:
                return Standing.IN_PLACE
            is_unsure = known is None
        if held_tree(self._store(), needed.tree) is not None:
            return Standing.HELD
        return Standing.UNSURE if is_unsure else Standing.ABSENT

    def _path(self, needed: InputBody, standing: Standing) -> str:
        if standing is Standing.IN_PLACE:
            return needed.path
        shelf = self._data()
        if is_repository(needed):
            return shelf.use(repository_name(needed.repo))
        folder = shelf.open(self._record(needed.tree))
        return os.path.join(folder, needed.name) if needed.kind is InputKind.FILE else folder

    def _record(self, tree: str) -> Record:
        record = held_tree(self._store(), tree)
        if record is None:
            # Pruned in this very moment.
            raise CorruptBytes(f"tree {tree[:12]} is no longer here", hint="it is brought again")
        return record
