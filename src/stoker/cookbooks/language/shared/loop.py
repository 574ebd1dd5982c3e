"""The loop of the shared process: admit members, train those whose turn it is, evaluate, report, checkpoint, release.

    new members ──▶ loaded ──▶ [ whose turn ──▶ one update each ──▶ evaluations ──▶ reports, checkpoints, ends ] ──▶ …

Whatever goes wrong with one member ends that member alone. A request to end this process is heard between steps, when
each member's state is whole, and each one's state is kept before it takes effect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stoker.authoring import Member, SharedContext
from stoker.cookbooks.language.arguments import ALL_LINEAR, LoraArgs, device_of
from stoker.cookbooks.language.compute.banks import AdapterState, Optim, Pairs, fresh_adapter
from stoker.cookbooks.language.compute.base_loading import open_base
from stoker.cookbooks.language.compute.base_weights import FrozenBase
from stoker.cookbooks.language.compute.general_base import GeneralBase
from stoker.cookbooks.language.compute.matrices import adaptable, settled_targets, unknown_words
from stoker.cookbooks.language.compute.module_copies import chosen_modules
from stoker.cookbooks.language.compute.objectives import ReferenceLogps
from stoker.cookbooks.language.compute.slots import Slots
from stoker.cookbooks.language.shared.background_copies import BackgroundCopies
from stoker.cookbooks.language.shared.curves import (
    AnswerRanking,
    MemberDivergence,
    after_evaluation,
    after_update,
    diverged,
    is_evaluation_due,
    judge,
    ranking_metrics,
    should_stop,
)
from stoker.cookbooks.language.shared.device_memory import (
    AllocatorLimit,
    CurrentDeviceAllocator,
    ResizableSlots,
    undisturbed,
)
from stoker.cookbooks.language.shared.members import AdapterMember
from stoker.cookbooks.language.shared.outputs import (
    LOOK_S,
    OwnFolders,
    folders_due,
    keep,
    recall,
    write_folder,
    write_result,
)
from stoker.cookbooks.language.shared.pass_schedule import (
    COUNTED_S,
    is_checkpoint_due,
    is_report_due,
    progress_text,
    whose_turn,
)
from stoker.cookbooks.language.shared.step import MultiAdapterStepper, Tally
from stoker.cookbooks.language.shared.time_shares import Activity, TimeShares, shares_text
from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import BadInput, Cancelled
from stoker.core.text import counted, format_duration

_BEGINS = "first step: compiling kernels, or loading them from an earlier run"
_MOST_DRAWING = 8
_WAIT_S = 1.0
"""Wait for a member while there is none."""


def train_members(shared: SharedContext, clock: Clock | None = None) -> None:
    """Train all members until the shared process is done."""
    _Running(shared, clock or SystemClock()).run()


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Times of a member's last report and checkpoint, and counts since then."""

    reported_s: float
    kept_s: float
    kept_update: int
    counted_s: float
    """Start of the token count."""
    begun: dict[Activity, float]
    """What the process had spent when it joined."""
    begun_s: float
    keeping_s: float = 0.0
    """Duration of its last checkpoint."""
    tokens: int = 0
    tokens_in_all: int = 0


class _Running:
    def __init__(self, shared: SharedContext, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self._places: ResizableSlots | None = None
        self._references: dict[str, ReferenceLogps] = {}
        """By the digest of the examples."""
        self._path = ""
        """How the base is computed, and why."""
        self._members: dict[int, AdapterMember] = {}
        self._watches: dict[int, _Watch] = {}
        self._folders = OwnFolders(clock)
        self._waiting: list[Member] = []
        """Members that wait for a folder of another training."""
        self._device, note = device_of(shared.devices)
        self._notes = [note] if note else []
        self._cap = AllocatorLimit(None if self._device == "cpu" else CurrentDeviceAllocator())
        self._copies = BackgroundCopies()
        self._stepping = self._new_stepper()
        self._times = TimeShares(self._clock)
        self._loaded_s = 0.0
        """When the first members were loaded."""
        self._tokens = self._joined = 0
        """Trained by all members since there were none, without padding; and the number of these members."""
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._writing: tuple[AdapterMember, Future[float]] | None = None
        self._step = 0

    def run(self) -> None:
        shared = self._shared
        try:
            while not shared.is_over:
                is_idle = not self._members and not self._waiting
                attempts = self._new_members(_WAIT_S if is_idle else 0.0)
                if is_idle and not attempts:
                    self._reset()
                self._admit(attempts)
                if self._members:
                    with undisturbed():
                        self._one_step()
                elif self._waiting:
                    self._clock.sleep(LOOK_S)
        except Cancelled:
            for member in list(self._members.values()):
                self._keep(member)
            raise
        finally:
            # Free the base's memory now, not at the next garbage collection.
            self._places = None
            self._finish_writing()
            self._writer.shutdown()
            self._copies.close()
            self._folders.close()

    def _reset(self) -> None:
        """Free the slots of earlier members, and count from zero for those to come: of another run, after a while."""
        if self._places is None or self._places.slots is None:
            return
        self._places.release()
        self._stepping = self._new_stepper()
        self._times = TimeShares(self._clock)
        self._loaded_s, self._tokens, self._joined = 0.0, 0, 0

    def _new_stepper(self) -> MultiAdapterStepper:
        return MultiAdapterStepper(is_gpu=self._device != "cpu", tell=self._tell_all, free=self._copies.wait)

    # Joining

    def _new_members(self, wait_s: float) -> list[Member]:
        attempts = self._shared.new_members(wait_s)
        # Before memory is reserved for them, and after others have left.
        self._cap.follow(self._shared.ceiling_bytes)
        return attempts

    def _admit(self, attempts: list[Member]) -> None:
        if attempts and self._places is None:
            # Members that joined meanwhile are admitted at the same time.
            self._try_to_open(attempts[0].args)
            attempts = [*attempts, *self._new_members(0.0)]
        if attempts or self._waiting:
            # A stop request concerns all members; it is not a failure of one.
            with undisturbed():
                self._take_in(attempts)

    def _try_to_open(self, args: LoraArgs) -> None:
        try:
            self._opened(args)
        except Cancelled:
            raise
        except Exception:  # noqa: BLE001 - what is wrong with the base is reported to each member
            return

    def _take_in(self, attempts: list[Member]) -> None:
        if attempts:
            # A member whose run was killed and started again finds its folder free.
            self._check_all()
        begun: dict[int, AdapterMember] = {}
        fresh: dict[int, Future[AdapterState]] = {}
        waiting, self._waiting = self._waiting, []
        # Random numbers of one seed come one after another; those of several adapters need not.
        with ThreadPoolExecutor(max_workers=_MOST_DRAWING) as pool:
            for attempt in (*waiting, *attempts):
                try:
                    base = self._opened(attempt.args).base
                    if not self._has_folder(attempt):
                        self._waiting.append(attempt)
                        continue
                    member = begun[attempt.number] = self._begun(attempt, base)
                    fresh[attempt.number] = pool.submit(fresh_adapter, base.shape, member.spec)
                except Exception as error:  # noqa: BLE001 - whatever is wrong with it is its own business
                    self._turn_away(attempt, error)
        newcomers: dict[int, tuple[AdapterState, Optim]] = {}
        for slot, drawn in fresh.items():
            member = begun[slot]
            try:
                newcomers[slot] = (_resumed(member, drawn.result()), member.optim)
            except Exception as error:  # noqa: BLE001 - the same
                self._turn_away(member.attempt, error)
        if newcomers:
            self._load(newcomers, begun)

    def _load(self, newcomers: dict[int, tuple[AdapterState, Optim]], begun: dict[int, AdapterMember]) -> None:
        """Load new adapters all at once; if there is not enough memory, one by one: those that do not fit fail."""
        if self._places is None:
            return
        try:
            self._places.load(newcomers)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who were here go on
            for slot, newcomer in newcomers.items():
                self._places.clear(slot)
                if len(newcomers) > 1:
                    self._load({slot: newcomer}, begun)
                else:
                    self._turn_away(begun[slot].attempt, error)
            return
        now_s = self._clock.monotonic_s()
        self._loaded_s = self._loaded_s or now_s
        self._joined += len(newcomers)
        for slot in newcomers:
            self._stepping.take_place(slot)
            self._members[slot] = begun[slot]
            self._watches[slot] = _Watch(
                reported_s=now_s,
                counted_s=now_s,
                kept_s=now_s,
                kept_update=begun[slot].update,
                begun=self._times.so_far(),
                begun_s=now_s,
            )

    def _turn_away(self, attempt: Member, error: Exception) -> None:
        self._folders.give_back(attempt.number)
        attempt.failed(error)

    def _opened(self, args: LoraArgs) -> ResizableSlots:
        if self._places is None:
            if args.threads is not None:
                torch.set_num_threads(min(args.threads, os.cpu_count() or 1))
            base, self._path = open_base(
                Path(args.base), device=self._device, dtype=args.dtype, base_dtype=args.base_dtype, path=args.path
            )
            self._places = ResizableSlots(base)
        return self._places

    def _has_folder(self, attempt: Member) -> bool:
        attempt.job.check()
        return self._folders.take(attempt.number, attempt.args.checkpoints, attempt.args.label or attempt.job.node)

    def _begun(self, attempt: Member, base: FrozenBase) -> AdapterMember:
        for note in self._notes:
            attempt.job.log(note)
        if isinstance(base, GeneralBase):
            attempt.job.tell(self._path)
        else:
            attempt.job.log(self._path)
        if self._shared.in_pass:
            attempt.job.log(f"memory is reserved for {counted(self._shared.in_pass, 'adapter')} in one pass")
        mixes = isinstance(base, GeneralBase) and not base.packs
        member = AdapterMember(
            attempt,
            vocabulary=base.shape.vocabulary,
            closes_up=_closes_up(base),
            mixes=base.shape.model.family if mixes else "",
            targets=_targets(attempt.args.targets, base),
            whole=_whole(attempt.args.modules_to_save, base),
            is_transposed=isinstance(base, GeneralBase) and base.is_transposed,
        )
        if member.args.method == "dpo":
            # Adapters with the same data compare themselves with the same numbers.
            digest = str(attempt.inputs["examples"].digest)
            table = ReferenceLogps(len(member.examples.lengths), base.device)
            member.reference = self._references.setdefault(digest, table)
        return member

    # Training

    def _one_step(self) -> None:
        self._check_all()
        self._stepping.reserve(self._shared.in_pass or None)
        entered_s = self._clock.monotonic_s()
        is_first = self._step == 0 and self._device != "cpu"
        if is_first:
            self._tell_all(_BEGINS)
        self._evaluate_base()
        turn = whose_turn(self._step, [member.standing for member in self._members.values()])
        self._step += 1
        chosen = {slot: self._members[slot] for slot in turn}
        if not chosen or self._places is None or self._places.slots is None:
            return
        begun_s = self._clock.monotonic_s()
        slots = self._places.slots
        with self._times.spent_on("updates", self._unless_compiling(slots)):
            stepped = self._stepping.train(slots, chosen)
            if self._device != "cpu":
                # The device is busy; reading its results would wait for it.
                for slot in stepped.done:
                    chosen[slot].prepare()
            finished = {slot: (tally.loss, tally.is_finite, tally.ranking) for slot, tally in stepped.done.items()}
        if is_first:
            self._tell_all(f"first step {format_duration(self._clock.monotonic_s() - entered_s)}")
        for slot, error in stepped.failed.items():
            self._part(chosen[slot], error)
        self._share_cost(stepped.done, self._clock.monotonic_s() - begun_s)
        went_on = [chosen[slot] for slot, figures in finished.items() if self._note_update(chosen[slot], *figures)]
        due = [
            member
            for member in went_on
            if member.held_out
            and is_evaluation_due(
                member.update, updates=member.updates, per_epoch=member.per_epoch, every=member.args.eval_every
            )
        ]
        improved = self._evaluate(due)
        with self._times.spent_on("files"):
            for member in went_on:
                if member.slot in self._members:
                    self._of(member, self._settle, member, member in due, member.slot in improved)

    def _unless_compiling(self, slots: Slots) -> Callable[[], Activity | None]:
        shapes = slots.shapes_prepared
        return lambda: None if self._device == "cpu" or slots.shapes_prepared == shapes else "compiling"

    def _share_cost(self, done: dict[int, Tally], spent_s: float) -> None:
        everything = sum(tally.padded_tokens for tally in done.values())
        for slot, tally in done.items():
            self._members[slot].cost_s += spent_s * tally.padded_tokens / max(1, everything)

    def _note_update(
        self,
        member: AdapterMember,
        loss: float,
        is_finite: bool,  # noqa: FBT001 - as a step tells it
        ranking: AnswerRanking | None,
    ) -> bool:
        """Record the result of an update; return True if the member continues."""
        verdict = after_update(member.left_out, loss=loss, is_finite=is_finite)
        if isinstance(verdict, MemberDivergence):
            self._part(member, diverged(verdict, member.update + 1))
            return False
        if verdict.left_out:
            member.notes.append(f"Update {member.update + 1} was skipped: its gradient was not finite.")
            member.attempt.job.log(member.notes[-1])
        update, lr = member.look_ahead(), member.rate
        member.left_out = verdict.left_out
        member.updated()
        member.curve.note_update(member.update, loss=loss, tokens=update.weight, lr=lr, ranking=ranking)
        watch = self._watches[member.slot]
        watch.tokens += update.tokens
        watch.tokens_in_all += update.tokens
        self._tokens += update.tokens
        return True

    def _evaluate_base(self) -> None:
        """Evaluate the base for new members: they change nothing yet, so one result is that of all with equal data."""
        if self._places is None or self._places.slots is None:
            return
        while new := [m for m in self._members.values() if m.update == 0 and m.before is None and m.held_out]:
            speakers = {member.evaluation_key: member for member in reversed(new)}
            self._evaluate(speakers.values())
            for member in new:
                speaker = speakers[member.evaluation_key]
                member.before, member.before_ranking = speaker.before, speaker.before_ranking

    def _evaluate(self, members: Iterable[AdapterMember]) -> set[int]:
        """Evaluate members; return the slots of those with a new best."""
        chosen = {member.slot: member for member in members}
        if not chosen or self._places is None or self._places.slots is None:
            return set()
        slots = self._places.slots
        # The first one compiles. Later ones may be recorded, which takes a tenth of their time.
        unless = self._unless_compiling(slots) if self._step == 0 else lambda: None
        with self._times.spent_on("evaluation", unless):
            return self._evaluated(chosen, self._places, slots)

    def _evaluated(self, chosen: dict[int, AdapterMember], places: ResizableSlots, slots: Slots) -> set[int]:
        evaluated = self._stepping.evaluate(slots, chosen)
        for slot, error in evaluated.failed.items():
            self._part(chosen[slot], error)
        improved: set[int] = set()
        for slot, loss in evaluated.losses.items():
            member = chosen[slot]
            verdict = after_evaluation(loss)
            if verdict is not None:
                self._part(member, diverged(verdict, member.update))
            elif member.update == 0:
                member.before, member.before_ranking = loss, evaluated.rankings.get(slot)
            else:
                ranking = evaluated.rankings.get(slot)
                member.curve.note_evaluation(member.update, loss=loss, lr=member.last_rate, ranking=ranking)
                member.judged = judge(member.judged, loss, update=member.update, ranking=ranking)
                if member.judged.best_update == member.update:
                    self._of(member, self._copy_best, places, member)
                    improved.add(slot)
        return improved

    def _copy_best(self, places: ResizableSlots, member: AdapterMember) -> None:
        member.set_best(self._copies.start(partial(places.snapshot, member.slot)))

    def _settle(self, member: AdapterMember, was_evaluated: bool, is_improved: bool) -> None:  # noqa: FBT001 - two facts of a step
        """Report, checkpoint, and end members after an update."""
        stops = member.update < member.updates and was_evaluated and should_stop(member.judged, member.args.patience)
        ends = stops or member.update >= member.updates
        self._report(member, was_evaluated=was_evaluated, ends=ends)
        folders = folders_due(member, is_improved=is_improved)
        if folders:
            weights = self._weights(member, is_best=is_improved)
            for name in folders:
                write_folder(member, name, weights)
        if stops:
            member.notes.append(
                f"Stopped after update {member.update} of {member.updates}: "
                f"{member.judged.worse_in_a_row} evaluations in a row without improvement."
            )
            member.attempt.job.log(member.notes[-1])
        if ends:
            self._finish(member)
            return
        watch = self._watches[member.slot]
        since_s = self._clock.monotonic_s() - watch.kept_s
        every = member.args.checkpoint_every
        if is_checkpoint_due(
            member.update - watch.kept_update, every=every, since_s=since_s, cost_s=watch.keeping_s
        ) and (every is not None or not self._is_writing):
            # By time: written beside the training, one member after another. By count: at exactly this update.
            self._keep(member, beside=every is None)

    def _report(self, member: AdapterMember, *, was_evaluated: bool, ends: bool) -> None:
        watch, now_s = self._watches[member.slot], self._clock.monotonic_s()
        is_special = was_evaluated or ends or member.update == 1
        if not is_report_due(now_s - watch.reported_s, is_special=is_special):
            return
        metrics = {"loss": member.curve.last_loss or 0.0, "lr": member.last_rate}
        counted_s = now_s - watch.counted_s
        if counted_s > 0:
            metrics["tokens_per_s"] = watch.tokens / counted_s
        judged, judged_ranking = member.judged.last, member.judged.last_ranking
        if ends:
            judged, judged_ranking = member.kept_loss, member.kept_ranking
        if was_evaluated and judged is not None:
            metrics["eval_loss"] = judged
        metrics |= ranking_metrics(member.curve.last_ranking, judged_ranking if was_evaluated else None)
        if ends:
            metrics["cost_s"] = member.cost_s
            if self._device != "cpu":
                metrics["peak_bytes"] = float(torch.cuda.max_memory_reserved())
        if is_special:
            member.attempt.job.log(progress_text(member.update, member.updates, metrics))
        watch.reported_s = now_s
        if counted_s >= COUNTED_S or member.update == 1:
            # The first update includes compilation and loading.
            watch.counted_s, watch.tokens = now_s, 0
        member.attempt.job.step(member.update, of=member.updates, **metrics)

    # Checkpoints and leaving

    def _keep(self, member: AdapterMember, *, beside: bool = False) -> None:
        """Write a checkpoint, perhaps beside the training. A failure is reported and has no other effect."""
        if self._places is None or member.attempt.is_gone or member.update == 0:
            return
        self._finish_writing()
        try:
            adapter, own = self._places.adapter(member.slot), member.state()
        except RuntimeError as error:
            member.attempt.job.log(f"checkpoint not written: {error}")
            return
        opt = {"first": adapter.first, "second": adapter.second, "steps": adapter.steps}
        state = {**own, "model": adapter.weights, "opt": opt}
        watch = self._watches[member.slot]
        watch.kept_s, watch.kept_update = self._clock.monotonic_s(), member.update
        self._writing = (member, self._writer.submit(self._write, member.attempt.job.scratch, state))
        if not beside:
            self._finish_writing()

    def _write(self, scratch: Path, state: dict[str, Any]) -> float:
        begun_s = self._clock.monotonic_s()
        keep(scratch, state)
        return self._clock.monotonic_s() - begun_s

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing[1].done()

    def _finish_writing(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._writing is None:
            return
        (member, writing), self._writing = self._writing, None
        try:
            took_s = writing.result()
        except (OSError, RuntimeError) as error:
            member.attempt.job.log(f"checkpoint not written: {error}")
        else:
            if member.slot in self._watches:
                self._watches[member.slot].keeping_s = took_s

    def _weights(self, member: AdapterMember, *, is_best: bool) -> Pairs:
        """Return the best weights of a member, if it was evaluated, or those of now."""
        best = member.best if is_best else None
        if best is not None:
            return best
        if self._places is None:
            raise IndexError("no members")
        return self._places.weights(member.slot)

    def _finish(self, member: AdapterMember) -> None:
        if self._places is None:
            return
        weights = self._weights(member, is_best=member.args.keep == "best")
        watch = self._watches[member.slot]
        spent = self._times.since(watch.begun)
        took_s = self._clock.monotonic_s() - watch.begun_s
        if self._joined > 1:
            member.attempt.job.log(shares_text(spent, tokens=watch.tokens_in_all, took_s=took_s))
        if len(self._members) == 1:
            # The last one speaks for all that were trained here.
            took_s = self._clock.monotonic_s() - self._loaded_s
            text = shares_text(self._times.so_far(), tokens=self._tokens, took_s=took_s)
            together = f"{self._joined} adapters, " if self._joined > 1 else ""
            member.attempt.job.tell(f"{together}{text}", at_once=True)
        made = write_result(member, weights, self._places.base)
        self._leave(member)
        # Released before the end is reported: another training may take it then.
        self._places.leave_out(member.slot)
        member.attempt.finished(made)

    def _check_all(self) -> None:
        """Release members that are cancelled, or whose run is gone."""
        for member in list(self._members.values()):
            self._of(member, member.attempt.job.check)

    def _of(self, member: AdapterMember, do: Callable[..., None], *given: Any) -> None:
        """Call a function for one member; an error ends that member only."""
        try:
            do(*given)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._part(member, error)

    def _part(self, member: AdapterMember, error: Exception) -> None:
        if isinstance(error, Cancelled):
            with suppress(Exception):
                self._keep(member)
        self._stepping.keep_place(member.slot)
        self._leave(member)
        member.attempt.failed(error)

    def _leave(self, member: AdapterMember) -> None:
        if self._writing is not None and self._writing[0] is member:
            # Its folder belongs to the next attempt from now on.
            self._finish_writing()
        self._members.pop(member.slot, None)
        self._watches.pop(member.slot, None)
        self._folders.give_back(member.slot)
        if self._places is not None:
            self._places.clear(member.slot)

    def _tell_all(self, text: str) -> None:
        for member in self._members.values():
            member.attempt.job.tell(text)


def _resumed(member: AdapterMember, adapter: AdapterState) -> AdapterState:
    """Return the adapter as it was at the member's checkpoint, if there is one."""
    job = member.attempt.job
    kept = recall(job.scratch, member.config)
    for why in kept.notes:
        job.log(f"checkpoint: {why}")
    if kept.state is not None:
        member.resume(kept.state)
        adapter.weights = kept.state["model"]
        opt = kept.state["opt"]
        adapter.first, adapter.second, adapter.steps = opt["first"], opt["second"], opt["steps"]
        job.tell(f"resumed after update {member.update} of {member.updates}", at_once=True)
    return adapter


def _targets(words: tuple[str, ...], base: FrozenBase) -> tuple[str, ...]:
    """Return the targets that words mean in a base. Raises `BadInput` if one means nothing."""
    names = [matrix.name for matrix in adaptable(base.shape)]
    unknown = unknown_words(words, names)
    if unknown:
        known = ", ".join(settled_targets([ALL_LINEAR], [re.sub(r"\d+", "N", name) for name in names]))
        message = f"targets: no matrix {', '.join(map(repr, unknown))} in this {base.shape.model.family} model"
        raise BadInput(message, hint=f"its matrices are {known}")
    others = base.shape.others if isinstance(base, GeneralBase) else ()
    return settled_targets(words, names, others)


def _whole(words: tuple[str, ...], base: FrozenBase) -> tuple[str, ...]:
    """Return the full names of the modules that words mean. Raises `BadInput` if one means nothing."""
    if not words:
        return ()
    return tuple(one.name for one in chosen_modules(words, base.outer_modules(), base.shape.model.family))


def _closes_up(base: FrozenBase) -> bool:
    """Return True if rows may be concatenated: only with a kernel that knows where sequences start."""
    return base.takes_ragged
