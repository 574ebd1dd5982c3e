"""Checks of a recipe's arguments before anything runs, all faults at once; their meaning, and the base they name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stoker.authoring import Diagnostic, InvalidArgs
from stoker.cookbooks.language.arguments import (
    DEFAULT_TOKENS,
    EXPORT,
    FULL,
    LORA,
    MERGE,
    NF4_BLOCK,
    SAMPLE,
    AdapterArgs,
    BaseDtype,
    BasePath,
    DataArgs,
    SourceArgs,
)
from stoker.cookbooks.language.bases import (
    SMALL_FILES,
    Outline,
    TrainableBase,
    base_word,
    is_in_hub_cache,
    read_base,
    read_outline,
    still_to_come,
)
from stoker.cookbooks.language.bundled import BASES, PREFERENCES, bundled_base
from stoker.cookbooks.language.compute.base_path import weight_sizes
from stoker.cookbooks.language.compute.frozen_base import EMBEDDING, HEAD
from stoker.cookbooks.language.compute.general_shape import named_as
from stoker.cookbooks.language.compute.matrices import GROUPS, meant_by, settled_targets, unknown_words
from stoker.cookbooks.language.peft import adapter_header, is_dora, modules_of, read_config, tensor_names
from stoker.core.digests import is_digest
from stoker.core.errors import BadInput, Damaged, MissingRepoFiles, StokerError
from stoker.core.text import did_you_mean, format_size
from stoker.engine.recipe import surroundings
from stoker.store.weight_files.headers import shown
from stoker.store.weight_files.safetensors import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from stoker.transfer.hub.hub_cache import HubCache
    from stoker.transfer.hub.listing import Repo


_USES: Mapping[str, str] = {EXPORT: "exported", MERGE: "merged", SAMPLE: "used"}
"""What recipes do with a base, if not train it."""


class _WholeModelArgs(Protocol):
    """Arguments of language/full that depend on each other."""

    @property
    def batch(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def optimizer(self) -> str: ...


class LanguageArgsChecker:
    """Collects the faults of one recipe's arguments."""

    def __init__(self, recipe: str) -> None:
        self._recipe = recipe
        self._faults: list[Diagnostic] = []
        self._lacking: dict[Diagnostic, MissingRepoFiles] = {}
        """Faults that a download may fix, each with the files to download."""
        self._damaged = 0
        """Number of faults that are damaged files."""
        self._judges = "base" not in surroundings().stand_ins
        """True if the base is valid, so that other arguments can be checked against it."""

    @property
    def has_faults(self) -> bool:
        return bool(self._faults)

    def note(self, name: str, message: str, hint: str = "", lack: MissingRepoFiles | None = None) -> None:
        """Add a fault of an argument; with the files of the hub that would correct it, if any."""
        fault = Diagnostic(f"{self._recipe}.{name}", message, hint)
        if fault not in self._faults:
            self._faults.append(fault)
        if lack is not None:
            self._lacking[fault] = lack

    def refuse(self) -> None:
        """Raise `InvalidArgs` with all faults, if any; `Damaged` if the only ones are damaged files."""
        faults = tuple(self._faults)
        if not faults:
            return
        if len(faults) > len(self._lacking) > 0 and surroundings().fetches():
            faults = tuple(one for one in faults if one not in self._lacking)
        if len(faults) == self._damaged == 1:
            only = faults[0]
            raise Damaged(f"{only.where}: {only.message}", hint=only.hint, where=only.where, why=only.message)
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the arguments of {self._recipe}"
        lacks = tuple(self._lacking.values()) if len(self._lacking) == len(self._faults) else ()
        raise InvalidArgs(message, faults=faults, hint=f"stoker recipes show {self._recipe}", lacks=lacks)

    def base(self, text: str) -> TrainableBase | None:
        """Find a base; faults are collected."""
        if not text.strip():
            self.note("base", "is empty", f"a folder, org/name of the hub, or {', '.join(BASES)}")
            return None
        try:
            found = find_base(text, use=_USES.get(self._recipe, "trained"))
            if found.quantised != "auto" and self._recipe in (FULL, MERGE):
                hint = "use the base that it was made from"
                self.note("base", f"{found.name} is quantised on disk ({found.quantised})", hint)
            return found
        except Damaged as error:
            self._note_damage("base", error)
        except StokerError as error:
            self.note("base", error.message, error.hint, lacking(text, "base"))
        return None

    def _note_damage(self, name: str, error: Damaged) -> None:
        self._damaged += 1
        self.note(name, error.message, error.hint)

    def bundled(self, where: str, name: str) -> None:
        """Refuse a bundled data set that this recipe can't learn."""
        if name == PREFERENCES and self._recipe == FULL:
            self.note(where, f"{name} has pairs, which {LORA} learns", "method=dpo or method=orpo of that recipe")

    def method(self, args: AdapterArgs, data: DataArgs, sources: Sequence[SourceArgs]) -> None:
        """Refuse what does not go with the method: pairs are learned as pairs, and are not packed."""
        method = args.method
        judged = () if "data" in surroundings().stand_ins else sources
        odd = [one.bundled for one in judged if one.bundled and (one.bundled == PREFERENCES) is (method == "sft")]
        if odd:
            has, learns = ("pairs", "does not learn") if method == "sft" else ("no pairs", "learns")
            message = f"{odd[0]} has {has}; method={method} {learns} from pairs"
            self.note("data", message, "method=dpo or method=orpo" if method == "sft" else f"data={PREFERENCES}")
        if method == "sft":
            for name in ("beta", "loss_type"):
                if getattr(args, name) is not None:
                    self.note(name, "has no effect with method=sft", "leave it out, or method=dpo")
            return
        texts = [one.name for one in sources if "text" in one.layouts]
        if texts:
            self.note("data", f"{texts[0]} is plain text: it has no pairs", "a JSONL file")
        if data.packing:
            self.note("packing", f"has no effect with method={method}: pairs are not packed", "leave it out")
        if method == "orpo" and args.loss_type is not None:
            self.note("loss_type", "has no effect with method=orpo", "leave it out, or method=dpo")
        if method == "dpo" and data.train_on == "all":
            self.note("train_on", "has no effect with method=dpo: both sides have the same prompt", "leave it out")

    def length(self, wanted: int | None, base: TrainableBase | Outline) -> int:
        """Return the longest row; a length beyond the base's maximum is a fault."""
        if wanted is None:
            return min(DEFAULT_TOKENS, base.positions)
        if wanted > base.positions and self._judges:
            message = f"{wanted:,} tokens, but {base.name} reads {base.positions:,} at most"
            self.note("max_seq_len", message, f"max_seq_len={base.positions}, or leave it out")
        return wanted

    def context(self, wanted: int | None, base: TrainableBase) -> None:
        """Refuse conversations that are longer than the base reads."""
        if wanted is not None and wanted > base.positions and self._judges:
            message = f"{wanted:,} tokens, but {base.name} reads {base.positions:,} at most"
            self.note("context", message, f"{base.positions} at most")

    def path(self, wanted: BasePath, base: TrainableBase | Outline) -> None:
        """Refuse the fast path for a base that can't take it."""
        if wanted != "fast" or not base.differs or not self._judges:
            return
        self.note("path", f"{base.name} can't take the fast path: {base.differs}", "path=general, or leave it out")

    def base_dtype(self, wanted: BaseDtype, base: TrainableBase | Outline, *, is_general: bool) -> None:
        """Refuse a precision of the base that its matrices can't have."""
        if not self._judges:
            return
        if base.quantised != "auto":
            if wanted not in ("auto", base.quantised):
                self.note("base_dtype", f"{wanted}, but {base.name} is {base.quantised} on disk", "leave it out")
            if is_general:
                self.note("path", f"{base.name} is {base.quantised} on disk: fast path only", "leave it out")
            return
        if wanted == "auto":
            return
        odd = [one for one in base.shape.linears if one.inputs * one.outputs % NF4_BLOCK]
        if odd and wanted == "nf4":
            size = f"{odd[0].outputs:,} × {odd[0].inputs:,}"
            self.note("base_dtype", f"{odd[0].name} is {size}, no multiple of {NF4_BLOCK} weights", "leave it out")

    def whole_model(self, args: _WholeModelArgs) -> None:
        """Refuse ranks without rows, and an optimiser that ranks can't divide."""
        if args.batch < args.ranks:
            message = f"{args.ranks} ranks, but a batch has {args.batch} row{'' if args.batch == 1 else 's'}"
            self.note("ranks", message, f"batch={args.ranks}, or ranks={args.batch}")
        if args.optimizer != "adamw" and args.ranks > 1:
            self.note("optimizer", f"{args.optimizer} works with one rank only", "optimizer=adamw, or ranks=1")

    def targets(self, wanted: tuple[str, ...], base: TrainableBase | Outline, rank: int) -> tuple[str, ...]:
        """Return the targets that words mean; a word that matches nothing is a fault.

        Of another family than those of the fast path they are settled when its module is loaded.
        """
        names = [one.name for one in base.matrices]
        if not self._judges or (not names and wanted):
            return settled_targets(GROUPS, names) or wanted
        real = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
        known = [*GROUPS, *real]
        if not wanted:
            self.note("targets", "no target matrices", f"one of {', '.join(known)}")
        for word in unknown_words(wanted, names):
            hint = did_you_mean(word, known) or f"its matrices are {', '.join(real)}; or {', '.join(GROUPS)}"
            self.note("targets", f"no matrix {word!r} in this {base.shape.family} model", hint)
        meant = {name for word in wanted for name in meant_by(word, names)}
        chosen = [one for one in base.matrices if one.name in meant]
        smallest = min(chosen, key=lambda one: min(one.inputs, one.outputs), default=None)
        if smallest is not None and rank > min(smallest.inputs, smallest.outputs):
            most = min(smallest.inputs, smallest.outputs)
            size = f"{smallest.outputs:,} × {smallest.inputs:,}"
            short = smallest.name.rpartition(".")[2]
            self.note("rank", f"{rank:,} is larger than {short}, which is {size}", f"rank={most} at most")
        return wanted if base.differs else settled_targets(wanted, names)

    def modules_to_save(self, words: tuple[str, ...], base: TrainableBase | Outline) -> None:
        """Refuse words that mean neither the embedding nor the head."""
        names = _outer_names(base) if words and self._judges else []
        for word in words if names else ():
            if not _meant_outside(word, names):
                message = f"{word!r} is neither embedding nor head of this {base.shape.family} model"
                self.note("modules_to_save", message, f"these are {' and '.join(names)}")

    def adapter(self, text: str, base: TrainableBase | None) -> Path:
        """Check an adapter's folder; its faults, and what does not fit the base, are collected."""
        folder = Path(os.path.expanduser(text))
        if not text.strip() or not folder.is_dir():
            hint = f"a folder with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}, such as stoker-out/lora"
            self.note("adapter", f"folder not found: {text}" if text.strip() else "is empty", hint)
            return folder
        try:
            config = read_config(folder)
            header = adapter_header(folder)
            modules, whole = modules_of(folder, header.tensors, config)
        except Damaged as error:
            self._note_damage("adapter", error)
            return folder
        except StokerError as error:
            within = folder / "best"
            hint = f"adapter={text.rstrip('/')}/best is one" if (within / ADAPTER_CONFIG).is_file() else error.hint
            self.note("adapter", error.message, hint)
            return folder
        if base is not None and self._judges:
            self._fit(modules, {name: one.shape for name, one in header.tensors.items()}, config, base)
            sizes = {name: [header.tensors[one].shape for one in of] for name, of in whole.items()}
            self._fit_whole(sizes, base, is_tied=bool(config.get("ensure_weight_tying")))
        return folder

    def _fit(
        self,
        modules: tuple[str, ...],
        shapes: Mapping[str, tuple[int, ...]],
        config: Mapping[str, Any],
        base: TrainableBase,
    ) -> None:
        """Add a fault for the first target matrix of an adapter that the base lacks, or has in another size."""
        rank, dora = config["r"], is_dora(config)
        sizes = {one.name: (one.inputs, one.outputs) for one in base.matrices}
        known_as = named_as(sizes, modules)
        for module in modules:
            if module not in known_as:
                self.note(
                    "adapter",
                    f"target matrix {shown(module)} is not in {base.name}",
                    "use the base that it was trained on",
                )
                return
            inputs, outputs = sizes[known_as[module]]
            found = [shapes[name] for name in tensor_names(module, dora=dora)]
            # Some keep their matrices transposed.
            ways = [(inputs, outputs), *[(outputs, inputs)][: bool(base.differs)]]
            fits = [[(rank, one), (other, rank), *[(other,)][:dora]] for one, other in ways]
            if found not in fits:
                sizes_found, wanted = (" and ".join("×".join(map(str, one)) for one in of) for of in (found, fits[0]))
                message = f"its matrices for {shown(module)} are {sizes_found}; {base.name} requires {wanted}"
                self.note("adapter", message, "use the base that it was trained on")
                return

    def _fit_whole(self, sizes: Mapping[str, list[tuple[int, ...]]], base: TrainableBase, *, is_tied: bool) -> None:
        """Add a fault for each module of an adapter's own that is not the base's embedding or head.

        `is_tied`: the adapter was trained with both as one, if they are in its base.
        """
        if is_tied and len(sizes) == 1 and base.shape.is_tied:
            message = f"no weight of the module tied to {shown(next(iter(sizes)))}, a module to save"
            self.note("adapter", message, "copy the adapter again, or train it again")
        words, hidden = base.shape.vocabulary, base.shape.hidden
        known = named_as(_outer_names(base), sizes) if sizes else {}
        for module, found_sizes in sizes.items():
            if module not in known:
                message = f"it has a copy of {shown(module)}, which is neither embedding nor head of {base.name}"
                self.note("adapter", message, "merge it with PEFT: merge_and_unload()")
            # A head may have a bias.
            elif found_sizes not in ([(words, hidden)], [(words, hidden), (words,)]):
                found = " and ".join("×".join(map(str, one)) for one in found_sizes)
                message = f"its copy of {shown(module)} is {found}; {base.name} requires "
                hint = "use the base that it was trained on"
                self.note("adapter", f"{message}{words}×{hidden}", hint)


def whole_modules(words: tuple[str, ...], base: TrainableBase | Outline) -> set[str]:
    """Return the embedding and the head that words mean, as the files of a base name them."""
    return {name for word in words for name in _meant_outside(word, _outer_names(base))}


def _meant_outside(word: str, names: Sequence[str]) -> list[str]:
    # Files may leave out the name of the outermost module.
    short = word.rpartition(".")[2]
    return [] if word in GROUPS else meant_by(word, names) or meant_by(short, names)


def _outer_names(base: TrainableBase | Outline) -> list[str]:
    """Return the names of the embedding and the head; empty if they are not known without the weights."""
    usual = [name.removesuffix(".weight") for name in (EMBEDDING, HEAD)]
    if not base.differs:
        return usual
    if isinstance(base, Outline):
        return []
    size, blocks = (base.shape.vocabulary, base.shape.hidden), {one.name for one in base.matrices}
    found = [name.removesuffix(".weight") for name, one in weight_sizes(base.folder).items() if one == size]
    names = [name for name in found if name not in blocks]
    # A head that is the embedding is not in the files.
    return names if len(names) > 1 else [*names, usual[1]]


# Lookup of a base by the argument `base`.
#
# `tiny` is bundled; a folder is a folder; `org/name` (or `org/name@revision`) is looked up in the hub's cache;
# `lacking` returns what is missing there.


_OF_NO_MEANING = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_WHOLE = (*SMALL_FILES, "model*.safetensors")


def find_base(text: str, *, use: str = "trained") -> TrainableBase:
    """Find a base and check it. Raises `BadInput` with all faults, in one line."""
    name, folder = _folder_of(text.strip())
    stamps = _stamps(folder)
    looked = _LOOKED.get((name, folder))
    # The trials of a sweep look up the same base again and again.
    if looked is None or looked[0] != stamps:
        looked = _LOOKED[name, folder] = stamps, read_base(folder, name=name, use=use)
    return looked[1]


def bases_here() -> dict[str, TrainableBase]:
    """Return every base that can be used by name: the bundled ones, and those in the hub's cache."""
    found: dict[str, TrainableBase] = {}
    for name in (*BASES, *(repo.name for repo in open_hub_cache().models())):
        with suppress(StokerError):
            found[name] = find_base(name)
    return found


def outline_of(text: str) -> Outline | None:
    """Return the facts of a base whose weights may be missing; None if nothing is known, or it is invalid."""
    try:
        name, folder = _folder_of(text.strip())
    except BadInput:
        return None
    return read_outline(folder, name)


def lacking(text: str, argument: str) -> MissingRepoFiles | None:
    """Return the files of the hub that the named base lacks; None if a download would not help."""
    repo = _repository(text.strip())
    # Below an existing folder, a missing name is a typo.
    if repo is None or os.path.isdir(text.strip().partition("/")[0]):
        return None
    folder = _snapshot(*repo)
    names = SMALL_FILES if folder is None else still_to_come(folder)
    return MissingRepoFiles(argument=argument, repo=text.strip(), names=names, whole=_WHOLE) if names else None


def is_another_base(named: object, base: TrainableBase) -> bool:
    """Return True if the base name in an adapter means another base than this one.

    The same bytes are the same base wherever they are. Of a folder only its last name is known; a digest or a commit as
    a name means nothing.
    """
    if not isinstance(named, str) or not named.strip() or _OF_NO_MEANING.fullmatch(base.name):
        return False
    theirs, ours = (text.partition("@")[0].strip().rstrip("/") for text in (named, base.name))
    if not (_is_repository_name(theirs) and _is_repository_name(ours)):
        theirs, ours = theirs.rpartition("/")[2], ours.rpartition("/")[2]
    if theirs.lower() == ours.lower() or _OF_NO_MEANING.fullmatch(theirs):
        return False
    with suppress(StokerError, OSError, ValueError):
        return base_word(_folder_of(named.strip())[1]) != base.word
    return True


def _is_repository_name(text: str) -> bool:
    return text.count("/") == 1 and not text.startswith(("/", ".", "~"))


_Stamps = tuple[tuple[str, int, int, int], ...]
_LOOKED: dict[tuple[str, Path], tuple[_Stamps, TrainableBase]] = {}
"""The result of a check by folder, and the folder's stamp then."""


def _stamps(folder: Path) -> _Stamps:
    stamps = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                info = entry.stat()
                stamps.append((entry.name, info.st_ino, info.st_mtime_ns, info.st_size))
    return tuple(sorted(stamps))


def _folder_of(text: str) -> tuple[str, Path]:
    """Return the folder that a user means: a bundled base, a folder, or a model in the hub's cache."""
    if text in BASES:
        return text, bundled_base(text)
    if not text or "\0" in text:
        raise BadInput("base is missing", hint=f"a folder, org/name of the hub, or {', '.join(BASES)}")
    path = Path(os.path.expanduser(text))
    with suppress(OSError):
        if path.is_dir():
            return path.resolve().name, path
        if path.exists():
            hint = "use the folder with config.json, the tokenizer and the weights as safetensors"
            raise BadInput(f"{text} is a file; a base is a folder", hint=hint)
    repo = _repository(text)
    if repo is None:
        raise BadInput(
            f"folder not found: {text}",
            hint=did_you_mean(text, BASES) or f"a folder, org/name of the hub, or {', '.join(BASES)}",
        )
    found = _snapshot(*repo)
    if found is None:
        raise BadInput(f"{text} is neither a folder nor in the hub's cache", hint=f"stoker fetch {text}")
    return text, found


def _repository(text: str) -> tuple[Repo, str] | None:
    """Return the repository and the revision in a text; None if it is something else."""
    from stoker.transfer.hub.listing import read_repo_at

    name = text.partition("@")[0]
    if "/" not in name.rstrip("/") or name.startswith(("/", ".", "~")) or os.path.exists(text):
        return None
    with suppress(BadInput):
        repo, revision = read_repo_at(text)
        if repo.kind == "model":
            return repo, revision
    return None


def _snapshot(repo: Repo, revision: str) -> Path | None:
    cache = open_hub_cache()
    commit = cache.commit_at(repo, revision)
    return Path(cache.snapshot(repo, commit)) if commit else None


def open_hub_cache() -> HubCache:
    """Return the hub's cache on this machine."""
    from stoker.transfer.hub.hub_cache import HubCache

    return HubCache(surroundings().hub_cache() or os.path.expanduser("~/.cache/huggingface/hub"))


# Facts of a base that are shown before training: size, source, completeness.


def base_facts(base: TrainableBase, digest_of: Callable[[str], str]) -> str:
    """Return the facts of a base in one line; files in the hub's cache are named by their SHA-256."""
    said = [f"base {base.name}", format_size(base.size_bytes)]
    if base.name in BASES:
        said.append("bundled")
        return ", ".join(said)
    names = {one: os.path.basename(os.path.realpath(base.folder / one)) for one in base.weight_files}
    if all(map(is_digest, names.values())):
        found = {one: digest_of(str(base.folder / one)).removeprefix("sha256:") for one in names}
        others = [one for one, sha256 in names.items() if found[one] != sha256]
        said.append(f"sha256 ✗ ({', '.join(others)})" if others else "sha256 ✓")
    if is_in_hub_cache(base.folder):
        said.append("from the hub's cache")
    return ", ".join(said)
