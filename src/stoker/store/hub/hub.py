"""A hub, asked: which commit a revision is, what it holds, what is known of one file.

Offline nothing is sent: the answers are those that the cache noted when it was last asked. Asking again is cheap, and
a commit's contents are asked only once.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.host.http.addresses import origin
from stoker.host.names import check_name
from stoker.model.errors import BadAnswer, NotOnServer, StokerError
from stoker.model.frozen import changed
from stoker.store.download.patience import Patience
from stoker.store.download.stop import Stop
from stoker.store.download.tools import Tools
from stoker.store.download.wanted import Wanted
from stoker.store.hub.address import MAIN, Repo, check_revision, file_url, is_commit, revision_url, tree_url
from stoker.store.hub.asking import Asker
from stoker.store.hub.cache import HubCache
from stoker.store.hub.listing import (
    LONGEST_LISTING_BYTES,
    MOST_FILES,
    MOST_PAGES,
    read_commit,
    read_entries,
    read_licence,
    read_next,
)
from stoker.store.hub.metadata import look
from stoker.store.hub.refusing import explained
from stoker.store.hub.repo_file import RepoFile, Revision
from stoker.store.hub.settings import HubSettings
from stoker.store.memo import Memo


class Hub:
    """One hub and its cache, with what a fetch from it needs. Safe to use from several threads."""

    def __init__(self, settings: HubSettings, *, tools: Tools, patience: Patience, stop: Stop, memo: Memo) -> None:
        self.settings = settings
        self.cache = HubCache(settings.cache)
        self.tools = tools
        self.patience = patience
        self.stop = stop
        self.memo = memo
        self.headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self._listings: dict[tuple[Repo, str], tuple[RepoFile, ...]] = {}
        self.has_token = bool(settings.token)
        self._asker = Asker(
            self.headers, tools=tools, patience=patience, stop=stop, has_token=self.has_token, is_hub=True
        )

    def resolve(self, repo: Repo, revision: str = MAIN) -> Revision:
        """Give the commit that a revision is now. Everything after that names the commit, which can't move.

        A plain mirror, which has no such question, gives a revision without commit. Raises `NotOnServer` for an
        unknown repository or revision, `AuthRefused` where a token or its terms are missing.
        """
        check_revision(revision)
        if is_commit(revision):
            return Revision(asked=revision, commit=revision)
        if self.settings.offline:
            return Revision(asked=revision, commit=self._noted_commit(repo, revision))
        url = revision_url(self.settings.endpoint, repo, revision)
        answer = self._asker.get(url, f"{repo} at {revision}")
        if answer is None:
            return Revision(asked=revision, commit="")
        return Revision(asked=revision, commit=read_commit(answer.body, url))

    def files(self, repo: Repo, commit: str) -> tuple[RepoFile, ...]:
        """Give every file of a commit, sorted, as the server says it.

        Raises `NotOnServer` where there is none, and where the server lists nothing: a plain mirror serves files by
        name only (`file`).
        """
        noted = self._listings.get((repo, commit)) or self.cache.read_tree(repo, commit)
        if noted:
            return noted
        if self.settings.offline:
            return self._snapshot_files(repo, commit)
        return self._listed(repo, commit)

    def file(self, repo: Repo, revision: str, path: str) -> tuple[RepoFile, str]:
        """Ask for one file by name: what it is, and the commit that it is at, where the server knows commits.

        For a mirror without listings, and for a file whose commit is not known yet. Offline it is looked up. Raises
        `BadInput` for a name that can't be written.
        """
        check_name(path)
        url = file_url(self.settings.endpoint, repo, check_revision(revision), path)
        if self.settings.offline:
            commit = self.resolve(repo, revision).commit
            found = next((file for file in self.files(repo, commit) if file.path == path), None)
            if found is None:
                raise self._absent(f"{repo} at {revision} has no {path}")
            return found, commit
        return look(self._asker, url, path, label_of(repo, path))

    def named_files(
        self, repo: Repo, revision: Revision, names: Sequence[str]
    ) -> tuple[Revision, tuple[RepoFile, ...]]:
        """Ask for files one by one, where nothing lists them. All are of one commit, if the server knows commits.

        The first file tells the commit, and the others are asked for at that commit: a branch may move meanwhile.
        """
        files: list[RepoFile] = []
        for name in names:
            file, commit = self.file(repo, revision.commit or revision.asked, name)
            revision = changed(revision, commit=revision.commit or commit)
            files.append(file)
        return revision, tuple(files)

    def wanted(self, repo: Repo, revision: str, file: RepoFile) -> Wanted:
        """Give a file as something that can be fetched; `revision` is a commit wherever there are commits."""
        return Wanted(
            url=file_url(self.settings.endpoint, repo, revision, file.path),
            label=label_of(repo, file.path),
            commit=revision if is_commit(revision) else "",
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            git_sha1=file.git_sha1,
            headers=self.headers,
        )

    def headers_for(self, url: str) -> dict[str, str]:
        """Give what any address is sent beside the question: the token, if it is an address of this hub."""
        return dict(self.headers) if self._has(url) else {}

    def explained(self, error: StokerError, url: str, what: str) -> StokerError:
        """Give an error about any address in a hub's words, if it is an address of this hub."""
        return explained(error, url, what, has_token=self.has_token) if self._has(url) else error

    def size_at(self, url: str, name: str) -> int | None:
        """Ask any address how large its file is, as far as it tells. Raises as `Asker` does."""
        headers = self.headers_for(url)
        asker = Asker(headers, tools=self.tools, patience=self.patience, stop=self.stop, has_token=bool(headers))
        return look(asker, url, name, name)[0].size_bytes

    def licence(self, repo: Repo, commit: str) -> str:
        """Give the licence that a repository's card names, or nothing where the server tells none."""
        if self.settings.offline:
            return ""
        url = revision_url(self.settings.endpoint, repo, commit)
        answer = self._asker.get(url, f"{repo} at {commit[:12]}")
        return "" if answer is None else read_licence(answer.body, url)

    def note_listing(self, repo: Repo, commit: str) -> None:
        """Leave what a commit holds in the cache, if it was listed just now: others ask for it there, too."""
        listed = self._listings.get((repo, commit))
        if listed is not None:
            self.cache.write_tree(repo, commit, listed)

    def _has(self, url: str) -> bool:
        return origin(url) == origin(self.settings.endpoint)

    def _listed(self, repo: Repo, commit: str) -> tuple[RepoFile, ...]:
        files: list[RepoFile] = []
        url = tree_url(self.settings.endpoint, repo, commit)
        asked: set[str] = set()
        came_bytes = 0
        while url:
            is_too_much = len(files) > MOST_FILES or came_bytes > LONGEST_LISTING_BYTES
            if url in asked or len(asked) >= MOST_PAGES or is_too_much:
                raise BadAnswer(f"the listing of {repo} has no end", hint="is this a hub? check the address")
            asked.add(url)
            answer = self._asker.get(url, f"{repo} at {commit[:12]}")
            if answer is None:
                hint = "name the files: this server does not list them"
                raise NotOnServer(f"the server lists no files of {repo}", hint=hint, repo=str(repo))
            came_bytes += len(answer.body)
            files += read_entries(answer.body, url)
            url = read_next(answer.headers.all("Link"), url)
        if not files:
            raise NotOnServer(f"{repo} has no files at {commit[:12]}", hint="check the revision", repo=str(repo))
        listed = self._listings[repo, commit] = tuple(sorted(files, key=lambda file: file.path))
        return listed

    def _noted_commit(self, repo: Repo, revision: str) -> str:
        commit = self.cache.read_ref(repo, revision)
        if not commit:
            raise self._absent(f"{repo} at {revision} is not in the cache")
        return commit

    def _snapshot_files(self, repo: Repo, commit: str) -> tuple[RepoFile, ...]:
        files = self.cache.read_snapshot(repo, commit)
        if not files:
            raise self._absent(f"{repo} at {commit[:12]} is not in the cache")
        return files

    def _absent(self, message: str) -> NotOnServer:
        return NotOnServer(message, cache=self.cache.root, reason="offline")


def label_of(repo: Repo, path: str) -> str:
    """Give what people call a file of a repository."""
    return f"{repo}: {path}"
