"""Output folders of members: each belongs to one training while that runs, in any run.

Two trainings with one folder would replace and delete each other's files; so would one whose folder is a checkpoint of
the other.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from stoker.cookbooks.language.compute.banks import Pairs
from stoker.cookbooks.language.compute.base_weights import FrozenBase
from stoker.cookbooks.language.kinds import Adapter
from stoker.cookbooks.language.peft import write_adapter
from stoker.cookbooks.language.schemas import (
    BEST,
    BaseFacts,
    LanguageCurve,
    LanguageTrainingRecord,
    Metadata,
    Method,
    read_metadata,
    significant,
    write_metadata,
    write_training,
)
from stoker.cookbooks.language.shared.members import AdapterMember, TrainedMember
from stoker.core.clock import Clock
from stoker.core.digests import Digest, digest_value, is_digest
from stoker.core.errors import BadInput, LocalFile, LockHeld, StokerError
from stoker.engine.scratch import choose_checkpoint
from stoker.host.durable import remove_tree, translated
from stoker.host.locks import DEFAULT_WAIT_S, FileLock, is_locked, read_owner
from stoker.trainer.stoker_trainer import keep_checkpoint

# Requested folders, which outlive the run: `epoch-N` after every epoch, `best` at the best evaluation.
#
# Each is an adapter for PEFT with `metadata.json`, and is written atomically. `best` replaces the previous one; a crash
# in that moment leaves `best.old`, which `best_folder` finds.

_HINT = "move it, or use another folder for the checkpoints"


_NAMED = re.compile(r"best|epoch-[1-9][0-9]*")
_PARTS = re.compile(r"metadata\.json|(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
"""Files of a checkpoint that another may lack: weights in more or fewer files, leftovers of an interrupted deletion."""


def is_checkpoint_name(name: str) -> bool:
    """Return True if trainings write and replace folders of that name."""
    return _NAMED.fullmatch(name) is not None


def refuse_strangers(root: Path) -> None:
    """Raise `LocalFile` if a file or folder below `root` has the name of a checkpoint and is none."""
    with translated(str(root)):
        for there in sorted(root.iterdir()):
            if is_checkpoint_name(there.name):
                _refuse_stranger(there)


def write_checkpoint(root: Path, name: str, metadata: Metadata, write_adapter: Callable[[Path], None]) -> Path:
    """Make a folder of that name below `root`, replacing an existing one; `write_adapter` fills an empty one.

    Raises `LocalFile` if the existing one is not a checkpoint, or has other files in it; it is kept then.
    """
    target, new, old = root / name, root / f".{name}.new", root / f"{name}.old"
    with translated(str(target)):
        _refuse_stranger(target)
        root.mkdir(parents=True, exist_ok=True)
        remove_tree(new)
        try:
            new.mkdir()
            write_adapter(new)
            write_metadata(metadata, new)
            for there in (target, old):
                _refuse_more(there, new)
        except BaseException:
            # Most often the disk is full, and half of a checkpoint would prevent freeing space.
            with suppress(StokerError):
                remove_tree(new)
            raise
        if target.exists():
            remove_tree(old)
            os.rename(target, old)
        os.rename(new, target)
        remove_tree(old)
    return target


def _refuse_stranger(there: Path) -> None:
    if os.path.lexists(there) and not _is_checkpoint(there):
        raise LocalFile(f"file exists and is not a checkpoint: {there}", hint=_HINT, path=str(there))


def _refuse_more(there: Path, new: Path) -> None:
    """Raise if a folder to replace has files that the new checkpoint does not have."""
    if not os.path.lexists(there):
        return
    more = sorted(set(os.listdir(there)) - set(os.listdir(new))) if there.is_dir() else [there.name]
    strange = [name for name in more if not _PARTS.fullmatch(name)]
    if strange:
        where = str(there / strange[0])
        raise LocalFile(f"file exists and is not part of a checkpoint: {where}", hint=_HINT, path=where)


def _is_checkpoint(there: Path) -> bool:
    try:
        read_metadata(there)
    except BadInput:
        return False
    return True


def epoch_folder(epoch: int) -> str:
    """Return the name of an epoch's folder, counted from 1."""
    return f"epoch-{epoch}"


# The outputs of a member: its adapter with `training.json`, and the requested folders.


def write_result(member: AdapterMember, weights: Pairs, base: FrozenBase) -> Adapter:
    """Write the adapter into the member's staging folder, and return its handle."""
    job, args = member.attempt.job, member.args
    name = _base_name(member)
    write_adapter(job.out, member.spec, weights, base_name=name)
    is_best = args.keep == "best" and member.best is not None
    record = training_record(
        member,
        method="lora",
        base=BaseFacts(name=name, family=base.shape.model.family, parameters=base.shape.model.parameters),
        weights=sum(matrix.numel() for pair in weights.values() for matrix in pair),
        kept=member.judged.best_update if is_best else member.update,
        device=base.device.partition(":")[0],
        dtype=str(base.dtype).rpartition(".")[2],
    )
    write_training(record, job.out)
    return job.made(Adapter)


def training_record(  # noqa: PLR0913 - what a record is made of
    member: TrainedMember[Any], *, method: Method, base: BaseFacts, weights: int, kept: int, device: str, dtype: str
) -> LanguageTrainingRecord:
    """Return the content of `training.json`; `weights` were trained, those of update `kept` are the result."""
    before = None if member.before is None else significant(member.before)
    curve = LanguageCurve(points=member.curve.points, kept=kept, before=before)
    # Under dpo the base does not rank: rewards are relative to it.
    is_relative = isinstance(member, AdapterMember) and member.args.method == "dpo"
    if member.before_ranking is not None and not is_relative:
        curve["before_accuracy"] = significant(member.before_ranking.accuracy)
        curve["before_margin"] = significant(member.before_ranking.margin)
    return LanguageTrainingRecord(
        method=method,
        base=base,
        data=dict(member.examples.facts),
        settings=member.settings,
        weights=weights,
        curve=curve,
        device=device,
        dtype=dtype,
        notes=list(member.notes),
        versions={library: version(library) for library in ("numpy", "safetensors", "torch")},
    )


def write_folder(member: AdapterMember, name: str, weights: Pairs) -> None:
    """Write one of the requested folders, if any."""
    if member.args.checkpoints is None:
        return
    base = _base_name(member)
    write_checkpoint(
        Path(member.args.checkpoints).expanduser(),
        name,
        metadata_of(member),
        lambda folder: write_adapter(folder, member.spec, weights, base_name=base),
    )


def folders_due(member: TrainedMember[Any], *, is_improved: bool) -> tuple[str, ...]:
    """Return the folders to write after an update: for a finished epoch, and for a new best."""
    if member.args.checkpoints is None:
        return ()
    epoch = (epoch_folder(member.epoch),) if member.is_at_epoch_end else ()
    # Without held-out examples there is no evaluation: the newest counts as the best.
    is_best = is_improved or (member.is_at_epoch_end and not member.held_out)
    return (*epoch, BEST) if is_best else epoch


def metadata_of(member: TrainedMember[Any]) -> Metadata:
    """Return the content of a checkpoint's `metadata.json`."""
    args, curve = member.args, member.curve
    is_adapter = isinstance(member, AdapterMember)
    losses = {"train_loss": curve.last_loss, "val_loss": member.judged.last, "avg_loss": curve.mean_loss}
    rounded = {name: None if loss is None else significant(loss) for name, loss in losses.items()}
    return Metadata(
        mode="lora" if is_adapter else "full",
        adapter_index=args.adapter_index if is_adapter else 0,
        epoch=member.epoch,
        train_loss=rounded["train_loss"],
        val_loss=rounded["val_loss"],
        avg_loss=rounded["avg_loss"],
        rank=args.rank if is_adapter else 0,
        alpha=args.alpha if is_adapter else 0.0,
        global_step=member.update,
        label=args.label or member.attempt.job.node,
    )


def _base_name(member: AdapterMember) -> str:
    return member.args.base_name or Path(member.args.base).resolve().name


LOOK_S = 0.1
"""Interval between two tries to lock a folder."""
_NAME = ".lock"
_NO_LOCKS = frozenset({"ENOLCK", "ENOSYS", "EOPNOTSUPP", "ENOTSUP"})
"""Errors of a file system without locks."""


class OwnFolders:
    """The locked folders, by slot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[int, FileLock] = {}
        self._asked_s: dict[int, float] = {}

    def take(self, slot: int, folder: str | None, who: str) -> bool:
        """Make and lock a member's folder, if it has one; return False if another training has it: try again later.

        The other one may be about to end. Raises `LockHeld` with its owner after a timeout, and errors of a folder that
        can't be made: before training, not after the first epoch.
        """
        if folder is None or slot in self._locks:
            return True
        root = Path(folder).expanduser()
        with translated(root):
            root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / _NAME, f"trains {who}", wait_s=0.0, clock=self._clock, removes_file=True)
        try:
            _refuse_nested(root)
            lock.acquire()
        except LockHeld as held:
            asked_s = self._asked_s.setdefault(slot, self._clock.monotonic_s())
            if self._clock.monotonic_s() - asked_s < DEFAULT_WAIT_S:
                return False
            raise _taken(root, held) from None
        except LocalFile as error:
            if error.data.get("errno") not in _NO_LOCKS:
                raise
        self._locks[slot] = lock
        refuse_strangers(root)
        return True

    def give_back(self, slot: int) -> None:
        """Release a member's folder."""
        self._asked_s.pop(slot, None)
        lock = self._locks.pop(slot, None)
        if lock is not None:
            lock.release()

    def close(self) -> None:
        """Release all folders."""
        for slot in list(self._locks):
            self.give_back(slot)


@contextmanager
def own_folder(folder: str | None, who: str, clock: Clock) -> Iterator[None]:
    """Lock a folder during a block. Raises what `OwnFolders.take` raises."""
    folders = OwnFolders(clock)
    try:
        while not folders.take(0, folder, who):
            clock.sleep(LOOK_S)
        yield
    finally:
        folders.close()


def _refuse_nested(root: Path) -> None:
    """Raise `LockHeld` if a checkpoint around the folder, or one in it, belongs to a running training."""
    whole = root.resolve()
    around = [place.parent for place in (whole, *whole.parents) if is_checkpoint_name(place.name)]
    within = [place for place in whole.iterdir() if is_checkpoint_name(place.name)]
    for other in (*around, *within):
        if is_locked(other / _NAME):
            owner = read_owner(other / _NAME)
            known: dict[str, Any] = (
                {} if owner is None else {"owner": {"pid": owner.identity.pid}, "purpose": owner.purpose}
            )
            raise LockHeld(f"{other} belongs to another training", path=str(other), **known)


def _taken(root: Path, held: LockHeld) -> LockHeld:
    owner, purpose = held.data.get("owner"), held.data.get("purpose")
    who = f"process {owner['pid']}, which {purpose}" if isinstance(owner, dict) else "an unknown process"
    message = f"checkpoint folder in use by another training: {root} ({who})"
    hint = "use another folder (checkpoints=FOLDER, `checkpoint` in a file of adapters), or wait for that training"
    return LockHeld(message, hint=hint, **held.data)


# A member's checkpoint in its scratch folder: everything to resume as if it had not been interrupted.
#
# One file with the keys model, opt, config, step, rng, sched and best; numbers and names only, no code. The newest two
# are kept, as for programs, so a fleet transfers them to the next machine. A checkpoint of another configuration or
# other data, or a damaged one, is refused with a note.

CONTRACT = 1
_KEEPING_NAME = "adapter.pt"
_KEYS = ("model", "opt", "config", "step", "rng", "sched", "best")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResumeState:
    """The state in a scratch folder to resume from, if there is a valid one, and notes for the user."""

    state: dict[str, Any] | None
    notes: tuple[str, ...]


def keep(scratch: Path, state: dict[str, Any]) -> None:
    """Write a state durably; the previous one is kept beside it. Raises `OSError`."""
    file = scratch / f".{state['step']}-{_KEEPING_NAME}"
    try:
        torch.save({name: state[name] for name in _KEYS}, file)
        keep_checkpoint(str(file), state["step"], str(scratch), resume_key(scratch, state["config"]))
    finally:
        file.unlink(missing_ok=True)


def recall(scratch: Path, config: dict[str, Any]) -> MemberResumeState:
    """Return the newest state of this configuration."""
    choice = choose_checkpoint(str(scratch), resume_key(scratch, config))
    notes = list(choice.refused)
    if choice.checkpoint is None:
        return MemberResumeState(state=None, notes=tuple(notes))
    name = os.path.basename(choice.checkpoint.path)
    try:
        raw = torch.load(choice.checkpoint.path, map_location="cpu", weights_only=True)
        state = {key: raw[key] for key in _KEYS}
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        return MemberResumeState(state=None, notes=(*notes, f"{name} can't be used ({type(error).__name__})"))
    if state["config"] != config:
        return MemberResumeState(
            state=None, notes=(*notes, f"{name} was made from another configuration or other data")
        )
    return MemberResumeState(state=state, notes=tuple(notes))


def resume_key(scratch: Path, config: dict[str, Any]) -> Digest:
    """Return the key of checkpoints: the name of a stage's scratch folder, which is the stage's key."""
    return Digest(scratch.name) if is_digest(scratch.name) else digest_value("resume", [CONTRACT, config])
