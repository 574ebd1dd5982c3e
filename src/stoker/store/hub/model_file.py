"""One model file and its tokenizer, in a folder of plain files, with validators beside them."""

from __future__ import annotations

import os

from stoker.model.digests import Digest
from stoker.model.errors import Cancelled, NotOnServer, StokerError, Terminated
from stoker.model.events import Event, Kinds
from stoker.model.frozen import changed
from stoker.store.download.engine import fetch_file
from stoker.store.download.wanted import Fetched, Landing, Wanted
from stoker.store.hub.address import Repo, file_url
from stoker.store.hub.fetching import not_expected
from stoker.store.hub.hub import Hub, label_of
from stoker.store.hub.plain import wanted_at
from stoker.store.hub.repo_file import RepoFile
from stoker.store.hub.taking import look_nearby, take_nearby

TOKENIZERS = ("tokenizer.json", "tokenizer.model")
"""Tried in this order once the model is there; the first one that the repository has is enough."""


class ModelFolder:
    """Files of one repository at one revision on their way into one folder, under the last parts of their paths."""

    def __init__(self, hub: Hub, repo: Repo, revision: str, folder: str, *, force: bool = False) -> None:
        self._hub = hub
        self._repo = repo
        self._revision = revision
        self._folder = folder
        self._force = force

    def fetch(self, path: str, *, sha256: Digest | None = None) -> Fetched:
        """Have a file there. Bytes that the hub's cache has do not come again. Raises as `fetch_file` does."""
        hub = self._hub
        landing = Landing(folder=self._folder, name=path.rpartition("/")[2], keeps_validators=True)
        wanted, file = self._wanted(path)
        if file is not None and sha256 is not None and file.sha256 not in {None, sha256}:
            raise not_expected(wanted.label, sha256, str(file.sha256))
        taken = None if file is None else self._take_from_cache(file, wanted, landing, sha256)
        if taken is not None:
            return taken
        return fetch_file(
            wanted if sha256 is None else changed(wanted, sha256=sha256),
            landing,
            tools=hub.tools,
            patience=hub.patience,
            stop=hub.stop,
            force=self._force,
            offline=hub.settings.offline,
        )

    def fetch_tokenizer(self) -> Fetched | None:
        """Try the repository's tokenizer. That there is none is no failure; that it can't be had is a warning."""
        for name in TOKENIZERS:
            try:
                return self.fetch(name)
            except (Cancelled, Terminated):
                raise
            except NotOnServer:
                continue
            except StokerError as error:
                message = f"the model is there, {name} is not: {error}"
                self._hub.tools.say(Event(Kinds.WARNING, {"message": message}))
                return None
        return None

    def _wanted(self, path: str) -> tuple[Wanted, RepoFile | None]:
        """Give a file with all that the hub knows of it: the commit that it is at, its size and its digest."""
        hub, repo = self._hub, self._repo
        if hub.settings.offline:
            # The folder is all that counts then: the cache may never have heard of the repository.
            url = file_url(hub.settings.endpoint, repo, self._revision, path)
            return wanted_at(hub, url, label_of(repo, path)), None
        file, commit = hub.file(repo, self._revision, path)
        return hub.wanted(repo, commit or self._revision, file), file

    def _take_from_cache(
        self, file: RepoFile, wanted: Wanted, landing: Landing, sha256: Digest | None
    ) -> Fetched | None:
        hub = self._hub
        if not file.blob or self._force or os.path.lexists(landing.path):
            return None
        found = look_nearby(hub, os.path.join(hub.cache.blobs(self._repo), file.blob), file)
        if found is None:
            return None
        if sha256 not in {None, found.sha256}:
            raise not_expected(wanted.label, str(sha256), str(found.sha256))
        return take_nearby(hub, found, wanted, landing, etag=f'"{file.blob}"')
