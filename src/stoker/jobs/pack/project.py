"""Which project a folder belongs to, and which of its files make it up: what git tracks, or all that lies there.

    project = find_project(folder, environment=…)
    listed = list_files(project, include=("configs/local.yaml",), environment=…)

In a git repository: every tracked file as it lies on the disk now, changed or not, and untracked ones that are named.
Elsewhere: everything below the folder but the usual rubbish. `.stokerignore` at the top of the project leaves files
out in both. Nothing is read here but names, and nothing is written.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence

from stoker.core.errors import BadInput, Diagnostic, InvalidInput, LocalFile
from stoker.core.frozen import fresh, frozen
from stoker.core.text import format_size
from stoker.host.durable import read_regular, translated
from stoker.host.folders import FolderWalk
from stoker.host.git import FILTERS, NOT_THERE, ask_git, without_filters
from stoker.jobs.pack.ignore import IgnorePatterns
from stoker.store.results import SIDECAR, files_written

# A folder without git as a project: everything below it except caches, environments and similar files.

MOST_FILES = 10_000
MOST_BYTES = 100 << 20
_RUBBISH = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".hypothesis",
        ".ipynb_checkpoints",
        ".tox",
        ".nox",
        ".cache",
        ".eggs",
        "node_modules",
        "stoker-out",
        ".DS_Store",
    }
)
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""Files that mark a folder as a Python environment, whatever its name."""
_HINT = "exclude files in .stokerignore, or select them with git init and git add; --in-place sends nothing"
_MOST_NAMED = 3


def is_rubbish(name: str) -> bool:
    """Return True if a file or folder of this name is left out silently."""
    return name in _RUBBISH or name.endswith((".pyc", ".egg-info"))


def is_left_out_folder(path: str, ours: Collection[str]) -> bool:
    """Return True if a folder is a Python environment, or one of `ours` by its real path."""
    if any(os.path.lexists(os.path.join(path, mark)) for mark in _ENVIRONMENTS):
        return True
    return bool(ours) and os.path.realpath(path) in ours


def walk_folder(
    root: str, ignored: IgnorePatterns, ours: Sequence[str], *, with_results: bool = False
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return all files below a folder with their sizes, and notes for the user.

    `ours` are folders that are left out, by their absolute paths; without `with_results`, so are results that Stoker
    copied there. Raises `BadInput`, with numbers, if there is far too much.
    """
    walk = _Walk(root, ignored, frozenset(os.path.realpath(one) for one in ours))
    walk.run()
    if not with_results:
        walk.leave_out_results()
    total_bytes = sum(walk.sizes.values())
    if total_bytes > MOST_BYTES:
        largest = sorted(walk.sizes.items(), key=lambda one: -one[1])[:_MOST_NAMED]
        named = ", ".join(f"{path} {format_size(size)}" for path, size in largest)
        most = format_size(MOST_BYTES)
        raise BadInput(
            f"{root}, which git does not track, has {format_size(total_bytes)}, more than {most}: {named}",
            hint=f"data = {{ NAME = PATH }} carries data; {_HINT}",
            size_bytes=total_bytes,
        )
    return walk.sizes, walk.notes()


class _Walk(FolderWalk):
    def __init__(self, root: str, ignored: IgnorePatterns, ours: frozenset[str]) -> None:
        super().__init__(root)
        self.sizes: dict[str, int] = {}
        self._ignored = ignored
        self._ours = ours
        self._odd: list[str] = []
        self._sidecars: list[str] = []
        """Folders, each with its `/`, that have results of Stoker."""
        self._results: list[str] = []

    def leave_out_results(self) -> None:
        """Leave out files that Stoker copied there: they would change the code at every submit."""
        for folder in sorted(self._sidecars):
            written = [f"{folder}{path}" for path in files_written(os.path.join(self._root, folder))]
            found = [path for path in written if self.sizes.pop(path, None) is not None]
            if found:
                self._results.append(folder or "./")

    def notes(self) -> tuple[str, ...]:
        notes = []
        if self._odd:
            notes.append(f"not sent, neither files nor folders: {_listed(self._odd)}")
        if self._results:
            notes.append(f"not sent, results of jobs: {_listed(self._results)}; --include sends them")
        return tuple(notes)

    def _take(self, path: str, entry: os.DirEntry[str]) -> None:
        if entry.name == SIDECAR:
            self._sidecars.append(path.removesuffix(SIDECAR))
            return
        if is_rubbish(entry.name):
            return
        if entry.is_dir(follow_symlinks=False):
            if not self._ignored.leaves_out_folder(path) and not is_left_out_folder(entry.path, self._ours):
                self._enter(path)
        elif self._ignored and self._ignored.leaves_out(path):
            return
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            self.sizes[path] = entry.stat(follow_symlinks=False).st_size
            if len(self.sizes) > MOST_FILES:
                raise self._too_many()
        else:
            kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
            self._odd.append(f"{path} ({_SORTS.get(kind, 'a device')})")

    def _too_many(self) -> BadInput:
        counts: dict[str, int] = {}
        for path in self.sizes:
            top, slash, _ = path.partition("/")
            if slash:
                counts[top] = counts.get(top, 0) + 1
        fullest = sorted(counts.items(), key=lambda one: -one[1])[:_MOST_NAMED]
        named = "".join(f", {top}/ {count:,}" for top, count in fullest)
        return BadInput(
            f"{self._root}, which git does not track, has more than {MOST_FILES:,} files{named}",
            hint=_HINT,
            most_files=MOST_FILES,
        )


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_MOST_NAMED]) + (", …" if len(paths) > _MOST_NAMED else "")


_SORTS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


IGNORE_FILE = ".stokerignore"
_LARGEST_IGNORE_BYTES = 1 << 20
_SUBMODULE = "160000"
_NO_COMMIT = "(initial)"
_MOST_FILES_NAMED = 5
# Submodules have settings of their own, which are not looked at either.
_STATUS = ("--untracked-files=no", "--no-renames", "--ignore-submodules=all")


@frozen
class Project:
    """A project on this machine."""

    root: str
    """Its top folder: the repository's, or the folder itself."""
    folder: str = ""
    """The requested folder below the top; `/`-separated, empty: the top."""
    identity: str
    """The same wherever the project is: its first commit and the folder; without a commit, the path."""
    is_git: bool = False
    quiet: tuple[str, ...] = ()
    """Arguments that make git ignore the filters of the repository itself."""


@frozen
class ProjectFiles:
    """The files of a project, by their paths below its top; `/`-separated, sorted."""

    files: tuple[str, ...]
    commit: str = ""
    """Their commit; empty: there is no commit."""
    uncommitted: tuple[str, ...] = ()
    """Paths that differ from the commit: changed, new, deleted, or untracked and included."""
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, int] = fresh(factory=dict)
    """Sizes of files that are already known."""


def find_project(folder: str, *, environment: Mapping[str, str]) -> Project:
    """Find the project of a folder. Raises `BadInput` if it is in a repository that git can't read."""
    real = os.path.realpath(folder)
    top = _top_of(real)
    if not top:
        return Project(root=real, identity=real)
    where, first, filters = ask_git(
        real,
        ("rev-parse", "--show-toplevel", "--show-prefix", "--is-shallow-repository"),
        ("rev-list", "--max-parents=0", "--first-parent", "HEAD"),
        FILTERS,
        environment=environment,
    )
    if not where.is_good:
        hint = "--in-place runs in this folder"
        if where.exit_code == NOT_THERE:
            raise BadInput(f"{top} is a git repository, and {where.err}", hint=f"install git; {hint}")
        raise BadInput(f"git does not read the repository {top}: {where.err}", hint=hint)
    root, prefix, shallow = (*where.lines(), "", "", "")[:3]
    if not root:
        # Inside `.git` itself, or in a bare repository.
        return Project(root=real, identity=real)
    if os.path.realpath(root) != top:
        # Its settings may point anywhere: to a home with keys in it.
        hint = "git config --unset core.worktree; or --in-place, which runs in this folder"
        raise BadInput(f"core.worktree of the repository {top} is {root}, not its own folder", hint=hint)
    below = prefix.rstrip("/")
    # The first commit of a shallow clone is unknown.
    commits = first.lines() if first.is_good and shallow != "true" else []
    identity = f"{commits[-1]}/{below}".rstrip("/") if commits else os.path.join(root, below).rstrip("/")
    return Project(root=root, folder=below, identity=identity, is_git=True, quiet=without_filters(filters))


def list_files(
    project: Project,
    *,
    environment: Mapping[str, str],
    include: Sequence[str] = (),
    needed: Iterable[str] = (),
    ours: Sequence[str] = (),
) -> ProjectFiles:
    """List the files of a project.

    `include` are patterns for untracked files, `needed` files that are always sent: both relative to the project's
    `folder`. `ours` are Stoker's own folders, which are never sent. Raises `BadInput` if a pattern matches nothing or
    leaves the project, if there is far too much, or if git fails; `InvalidInput` with every invalid name.
    """
    ignored = IgnorePatterns(read_ignore_file(project.root))
    named = _named(project, include, needed, ours)
    if project.is_git:
        listed = _list_tracked(project, ignored, named, environment)
    else:
        sizes, oddities = walk_folder(project.root, ignored, ours)
        sizes.update(dict.fromkeys((path for path in named if path not in sizes), 0))
        listed = ProjectFiles(files=tuple(sorted(sizes)), sizes=sizes, notes=oddities)
    _refuse_odd_names(listed.files)
    return listed


def _top_of(folder: str) -> str:
    """Return the nearest folder at or above one that has a `.git`; git is started only then."""
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above


def _list_tracked(
    project: Project, ignored: IgnorePatterns, named: dict[str, None], environment: Mapping[str, str]
) -> ProjectFiles:
    tracked, status = ask_git(
        project.root,
        ("ls-files", "-z", "--stage"),
        (*project.quiet, "status", "--porcelain=v2", "--branch", "-z", *_STATUS),
        environment=environment,
    )
    for said in (tracked, status):
        if not said.is_good:
            raise BadInput(
                f"git can't list the files of {project.root}: {said.err}",
                hint="git status shows what is wrong; --in-place runs in this folder",
            )
    files: dict[str, None] = {}
    submodules: list[str] = []
    for row in os.fsdecode(tracked.out).split("\0")[:-1]:
        about, _, path = row.partition("\t")
        if about.startswith(_SUBMODULE):
            submodules.append(path)
        else:
            # During a merge a path is listed several times.
            files[path] = None
    commit, changed = _read_status(os.fsdecode(status.out))
    if ignored:
        files = {path: None for path in files if not ignored.leaves_out(path)}
        changed = [path for path in changed if not ignored.leaves_out(path)]
    untracked = [path for path in named if path not in files]
    files.update(dict.fromkeys(untracked))
    return ProjectFiles(
        files=tuple(sorted(files)),
        commit=commit,
        uncommitted=tuple(dict.fromkeys((*changed, *untracked))),
        notes=tuple(_of_submodules(submodules, files)),
    )


def _read_status(text: str) -> tuple[str, list[str]]:
    """Return the commit, and the tracked paths that differ from it."""
    commit, changed = "", []
    for row in text.split("\0"):
        if row.startswith("# branch.oid "):
            commit = row.removeprefix("# branch.oid ")
        elif row.startswith("1 "):
            _, _, submodule, *_, path = row.split(" ", 8)
            if submodule.startswith("N"):
                changed.append(path)
        elif row.startswith("u "):
            changed.append(row.split(" ", 10)[-1])
    return "" if commit == _NO_COMMIT else commit, changed


def _of_submodules(submodules: Sequence[str], files: Mapping[str, None]) -> Iterable[str]:
    left = [path for path in submodules if not any(file.startswith(f"{path}/") for file in files)]
    if left:
        listed = ", ".join(left[:_MOST_FILES_NAMED]) + (", …" if len(left) > _MOST_FILES_NAMED else "")
        yield f"submodules are not sent unless `include` names them: {listed}"


def _named(project: Project, include: Sequence[str], needed: Iterable[str], ours: Sequence[str]) -> dict[str, None]:
    """Resolve the included files, relative to the project's folder, to paths below its top."""
    start = os.path.join(project.root, project.folder)
    found: dict[str, None] = {}
    for pattern in include:
        matches = glob.glob(pattern, root_dir=start, recursive=True, include_hidden=True)
        if not matches:
            raise BadInput(f"include: {pattern} matches nothing in {start}", hint="patterns such as configs/*.yaml")
        for match in matches:
            found.update(dict.fromkeys(_below(project, match, ours)))
    for path in needed:
        found[_inside(project, path)] = None
    return found


def _below(project: Project, match: str, ours: Sequence[str]) -> Iterable[str]:
    """Return a file, or all files of a folder except ignored ones."""
    path = _inside(project, match)
    whole = os.path.join(project.root, path)
    if os.path.islink(whole) or not os.path.isdir(whole):
        if not is_rubbish(os.path.basename(path)):
            yield path
        return
    for name in walk_folder(whole, IgnorePatterns(""), ours, with_results=True)[0]:
        yield f"{path}/{name}" if path else name


def _inside(project: Project, path: str) -> str:
    below = os.path.normpath(os.path.join(project.folder, path))
    if os.path.isabs(below) or below == ".." or below.startswith("../"):
        raise BadInput(
            f"include: {path} is outside of the project {project.root}",
            hint="copy it into the project; for data use data = { NAME = PATH }",
        )
    return "" if below == "." else below


def _refuse_odd_names(files: Iterable[str]) -> None:
    odd = [path for path in files if not path.isascii() and not _is_text(path)]
    if odd:
        faults = tuple(Diagnostic(ascii(path), "the name is not valid Unicode") for path in odd)
        headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} files have names that are not Unicode"
        raise InvalidInput(headline, faults=faults, hint=f"rename them, or exclude them in {IGNORE_FILE}")


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_ignore_file(root: str) -> str:
    """Return the text of a project's `.stokerignore`; empty if it has none."""
    path = os.path.join(root, IGNORE_FILE)
    try:
        with translated(path):
            return read_regular(path, _LARGEST_IGNORE_BYTES).decode(errors="surrogateescape")
    except LocalFile:
        if os.path.lexists(path):
            raise
        return ""
