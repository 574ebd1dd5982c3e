"""The fences of the fleet, each with the edit that takes it away and the tests that must notice.

A fence is what keeps a late, doubled or forged word from counting. Only a list: `mutate_fences.py` goes through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

QUEUE = "coordinator/queue"
TOKENS = "tests/contract/test_queue_tokens.py"
FENCES_TEST = "tests/contract/test_queue_fences.py"
ENDINGS = "tests/contract/test_queue_endings.py"
CANCELLING = "tests/contract/test_queue_cancelling.py"
CLAIMS = "tests/contract/test_queue.py"
OWN_LEASES = "tests/contract/test_queue_trust.py::test_a_machine_speaks_for_its_own_leases_only"
DECIDING = "tests/unit/worker/test_keeper_deciding.py"


@dataclass(frozen=True, slots=True)
class Fence:
    """One fence, and the edit that takes it away. `old` occurs once in the file."""

    name: str
    path: str
    """Below `src/stoker`."""
    old: str
    new: str
    tests: tuple[str, ...]

    def take_away(self, source: Path) -> None:
        file = source / self.path
        text = file.read_text()
        assert text.count(self.old) == 1, f"{self.name}: {self.old!r} occurs {text.count(self.old)} times"
        file.write_text(text.replace(self.old, self.new))


FENCES = (
    Fence(
        "a live token's epoch is compared",
        f"{QUEUE}/book.py",
        "token.epoch == self.epoch",
        "True",
        (f"{TOKENS}::test_a_word_whose_token_is_wrong_in_one_part_is_stale",),
    ),
    Fence(
        "a live token's attempt is compared",
        f"{QUEUE}/book.py",
        "token.attempt == self.attempt",
        "True",
        (f"{TOKENS}::test_a_word_whose_token_is_wrong_in_one_part_is_stale",),
    ),
    Fence(
        "a live token's generation is compared",
        f"{QUEUE}/book.py",
        "token.generation == self.generation",
        "True",
        (f"{TOKENS}::test_a_word_whose_token_is_wrong_in_one_part_is_stale",),
    ),
    Fence(
        "a late token's epoch is compared",
        f"{QUEUE}/late.py",
        "attempts[0][:2] != (said.epoch, said.generation)",
        "attempts[0][1] != said.generation",
        (f"{TOKENS}::test_a_repeat_of_a_word_whose_token_is_wrong_in_one_part_is_stale",),
    ),
    Fence(
        "a late token's generation is compared",
        f"{QUEUE}/late.py",
        "attempts[0][:2] != (said.epoch, said.generation)",
        "attempts[0][0] != said.epoch",
        (f"{TOKENS}::test_a_repeat_of_a_word_whose_token_is_wrong_in_one_part_is_stale",),
    ),
    Fence(
        "a result that comes back is of this generation",
        f"{QUEUE}/late.py",
        "generation == turn.book.generation and ending",
        "ending",
        (f"{TOKENS}::test_a_late_result_from_before_a_restore_is_stale_though_nobody_else_has_the_job",),
    ),
    Fence(
        "a result that comes back finds its job still waiting",
        f"{QUEUE}/late.py",
        'row.state == "pending"\n        and ',
        "",
        (f"{TOKENS}::test_a_result_that_comes_back_after_a_cancel_is_stale",),
    ),
    Fence(
        "a result that comes back is of the job's epoch",
        f"{QUEUE}/late.py",
        "and row.epoch == token.epoch\n",
        "\n",
        (f"{TOKENS}::test_a_result_that_comes_back_after_a_requeue_is_stale",),
    ),
    Fence(
        "only a job that was to go on may come back",
        f"{QUEUE}/late.py",
        'and loads(row.spec).get("on_partition") == Partition.KEEP.value',
        "",
        (f"{FENCES_TEST}::test_a_late_result_is_refused_even_before_anybody_else_has_the_job",),
    ),
    Fence(
        "another result of a finished attempt is a conflict",
        f"{QUEUE}/late.py",
        "if tree == said.tree:",
        "if True:",
        (f"{FENCES_TEST}::test_finishing_twice_with_one_result_is_a_repeat_and_with_another_a_conflict",),
    ),
    Fence(
        "a job's row is changed only in the state that was decided about",
        f"{QUEUE}/statements.py",
        'guard = and_(_at(JOBS), JOBS.c.state == bindparam("was_state"))',
        "guard = _at(JOBS)",
        (f"{TOKENS}::test_a_job_whose_state_somebody_else_changed_is_looked_at_again",),
    ),
    Fence(
        "a row is changed only under the epoch that was decided about",
        f"{QUEUE}/statements.py",
        'and_(table.c.seq == bindparam("at_seq"), table.c.epoch == bindparam("was_epoch"))',
        'table.c.seq == bindparam("at_seq")',
        (f"{FENCES_TEST}::test_a_row_that_somebody_else_changed_is_not_overwritten",),
    ),
    Fence(
        "an attempt ends once",
        f"{QUEUE}/statements.py",
        "update(ATTEMPTS).where(attempt, is_open),",
        "update(ATTEMPTS).where(attempt),",
        (f"{TOKENS}::test_an_attempt_that_somebody_else_ended_is_not_ended_again",),
    ),
    Fence(
        "changed rows are counted",
        f"{QUEUE}/batch.py",
        "!= len(rows) and statement in guarded",
        "< 0",
        (f"{FENCES_TEST}::test_a_row_that_somebody_else_changed_is_not_overwritten",),
    ),
    Fence("every grant raises the epoch", f"{QUEUE}/claiming.py", "epoch=job.epoch + 1", "epoch=job.epoch", (CLAIMS,)),
    Fence(
        "every requeue raises the epoch",
        f"{QUEUE}/operating.py",
        "        was_state=row.state,\n        epoch=row.epoch + 1,",
        "        was_state=row.state,\n        epoch=row.epoch,",
        (f"{TOKENS}::test_a_result_that_comes_back_after_a_requeue_is_stale",),
    ),
    Fence(
        "a repeated claim gets what it got",
        f"{QUEUE}/claiming.py",
        "if before is not None:",
        "if False:",
        (CLAIMS,),
    ),
    Fence(
        "what a claim got is written down",
        f"{QUEUE}/loading.py",
        "for request_id, incarnation, at_s, granted in connection.read(queries.claims):",
        "for request_id, incarnation, at_s, granted in ():",
        (CLAIMS,),
    ),
    Fence(
        "a request id belongs to one start of a worker",
        f"{QUEUE}/claiming.py",
        "if before.incarnation != asked.incarnation:",
        "if False:",
        (CLAIMS,),
    ),
    Fence(
        "a submission's key stands for one submission",
        f"{QUEUE}/submitting.py",
        "if asked.key and not asked.dry_run:",
        "if False:",
        ("tests/contract/test_queue_submissions.py",),
    ),
    Fence(
        "a result needs its bytes",
        f"{QUEUE}/settling.py",
        "    see_archive(turn, said.archive_sha256, said.size_bytes)\n    ending",
        "    ending",
        (f"{FENCES_TEST}::test_a_result_whose_bytes_are_not_here_is_refused",),
    ),
    Fence(
        "a checkpoint needs its bytes",
        f"{QUEUE}/settling.py",
        "    see_archive(turn, body.archive_sha256, body.size_bytes)\n",
        "",
        (f"{FENCES_TEST}::test_a_checkpoint_whose_bytes_are_not_here_is_refused",),
    ),
    Fence(
        "bytes have the size that was said",
        f"{QUEUE}/results.py",
        "if found_bytes != size_bytes:",
        "if False:",
        (f"{FENCES_TEST}::test_a_result_whose_bytes_are_not_here_is_refused",),
    ),
    Fence(
        "a lease ends no earlier than it is over",
        f"{QUEUE}/sweeping.py",
        "if live.until_tick_s <= turn.tick_s]",
        "]",
        (ENDINGS,),
    ),
    Fence(
        "a lease that is over ends",
        f"{QUEUE}/sweeping.py",
        "if live.until_tick_s <= turn.tick_s]",
        "if False]",
        (ENDINGS,),
    ),
    Fence(
        "nothing expires until all workers had a whole lease after a start",
        f"{QUEUE}/sweeping.py",
        "if turn.tick_s < settles_at_tick_s(turn):",
        "if False:",
        (f"{TOKENS}::test_nothing_expires_after_a_start_until_the_longer_leases_of_a_large_fleet_are_over",),
    ),
    Fence(
        "a worker that says its process is dead renews nothing",
        f"{QUEUE}/renewing.py",
        "if report.is_alive and live",
        "if live",
        (ENDINGS,),
    ),
    Fence(
        "leases from before a restore end at the start",
        f"{QUEUE}/writer.py",
        "    end_leases_of_the_past(turn)\n",
        "",
        (f"{FENCES_TEST}::test_leases_from_before_a_restore_are_over",),
    ),
    Fence(
        "a restore has a generation of its own",
        "coordinator/database/restoring.py",
        "return max(highest + 1, int(now_s) - _BEGAN_S)",
        "return highest",
        (f"{TOKENS}::test_an_epoch_that_a_restored_coordinator_gives_again_is_told_apart_by_its_generation",),
    ),
    Fence(
        "a restore forgets who was the newest start of a worker",
        "coordinator/database/restoring.py",
        '[{"incarnation": ""}]',
        "[]",
        (f"{TOKENS}::test_a_worker_that_was_started_after_the_backup_says_hello_again_and_works_on",),
    ),
    Fence(
        "an old start of a worker is refused",
        f"{QUEUE}/roster.py",
        "if machine.incarnation != incarnation:",
        "if False:",
        (f"{FENCES_TEST}::test_a_new_start_of_a_worker_ends_what_the_old_one_held",),
    ),
    Fence(
        "a late hello of an old start is refused",
        f"{QUEUE}/roster.py",
        "if machine is not None and said.incarnation in machine.outdated:",
        "if False:",
        (f"{FENCES_TEST}::test_a_late_hello_of_the_old_start_does_not_take_over_again",),
    ),
    Fence(
        "a new start of a worker ends what the old one held",
        f"{QUEUE}/roster.py",
        'lose(turn, live, "its worker was started anew")',
        "pass",
        (f"{FENCES_TEST}::test_a_new_start_of_a_worker_ends_what_the_old_one_held",),
    ),
    Fence(
        "cancel beats a retry and a lost worker",
        "model/budgets.py",
        "    if is_cancelling:\n",
        "    if False:\n",
        (CANCELLING,),
    ),
    Fence(
        "cancel beats a release",
        f"{QUEUE}/settling.py",
        "    if live.is_cancelling:\n        return _cancelled(turn, live, plain(said.why))\n",
        "",
        (CANCELLING,),
    ),
    Fence(
        "cancel beats a decline",
        f"{QUEUE}/settling.py",
        "    if live.is_cancelling:\n        return _cancelled(turn, live, plain(said.reason))\n",
        "",
        (CANCELLING,),
    ),
    Fence(
        "a wish to cancel is written down",
        f"{QUEUE}/loading.py",
        "is_cancelling=bool(row.is_cancelling),",
        "is_cancelling=False,",
        (CANCELLING,),
    ),
    Fence(
        "a live job is not requeued",
        f"{QUEUE}/operating.py",
        "if row.state in (JobState.CLAIMED.value, JobState.RUNNING.value):",
        "if False:",
        (CANCELLING,),
    ),
    Fence(
        "only a claimed job is declined",
        f"{QUEUE}/settling.py",
        "if live.state != JobState.CLAIMED.value:",
        "if False:",
        (ENDINGS,),
    ),
    Fence(
        "a lost worker is charged",
        f"{QUEUE}/losing.py",
        "    live.lost += 1\n",
        "",
        (ENDINGS,),
    ),
    Fence(
        "a job under which two workers went away is given up",
        "model/budgets.py",
        "if spent.workers_lost >= budgets.poisoned:",
        "if False:",
        (ENDINGS,),
    ),
    Fence(
        "stored time never goes back",
        f"{QUEUE}/setting.py",
        "self._last_s = max(self._clock.wall_s(), self._last_s + tick_s - self._last_tick_s)",
        "self._last_s = self._clock.wall_s()",
        (ENDINGS,),
    ),
    Fence(
        "leases are judged by no wall clock",
        f"{QUEUE}/setting.py",
        '"""Give the time by which leases are judged."""\n        return self._clock.monotonic_s()',
        '"""Give the time by which leases are judged."""\n        return self._clock.wall_s()',
        (ENDINGS,),
    ),
    Fence(
        "one coordinator has a database",
        "coordinator/database/opening.py",
        "            self._lock.acquire()\n",
        "            pass\n",
        ("tests/unit/coordinator/test_queue_opening.py",),
    ),
    Fence(
        "what is answered was synced",
        "coordinator/database/opening.py",
        '"synchronous=FULL"',
        '"synchronous=OFF"',
        ("tests/unit/coordinator/test_queue_opening.py",),
    ),
    Fence(
        "files are taken from whoever holds the job alone",
        "coordinator/service/file_routes.py",
        "if not self._office.queue.is_current(token, who.name):",
        "if False:",
        ("tests/contract/test_fleet_api.py::test_a_stale_epoch_is_refused_by_every_word_and_every_file",),
    ),
    Fence(
        "a machine without a lease sends nothing",
        "coordinator/service/file_routes.py",
        "if who.role is Role.WORKER and who.name and not self._office.queue.may_send(who.name):",
        "if False:",
        ("tests/fault/test_fleet_trust.py::test_a_machine_without_a_lease_gets_no_room_for_any_body",),
    ),
    Fence(
        "what a request has beside its body is bounded",
        "coordinator/service/connection.py",
        "if self._framing_bytes > self.patience.head_bytes + self._body_bytes // 4:",
        "if False:",
        ("tests/unit/coordinator/test_service_connection.py::test_what_a_body_has_around_it_is_bounded_too",),
    ),
    Fence(
        "all that is kept leaves the floor of the disk free",
        "coordinator/keeping/keeping.py",
        "if coming_bytes > free - floor_bytes:",
        "if False:",
        ("tests/unit/coordinator/test_keeping_contents.py::test_whatever_is_kept_leaves_the_floor_of_the_disk_free",),
    ),
    Fence(
        "a machine speaks for its own leases only",
        f"{QUEUE}/settling.py",
        'if asked.machine not in ("", live.machine):',
        "if False:",
        (OWN_LEASES,),
    ),
    Fence(
        "a late word is its own machine's",
        f"{QUEUE}/late.py",
        'if machine not in ("", holder):',
        "if False:",
        (OWN_LEASES,),
    ),
    Fence(
        "a heartbeat keeps its own machine's leases only",
        f"{QUEUE}/renewing.py",
        "live.machine != machine.name or ",
        "",
        (OWN_LEASES,),
    ),
    Fence(
        "a certificate that was taken back is refused",
        "coordinator/authority/standing.py",
        "if found.revoked_s is not None:",
        "if False:",
        ("tests/unit/coordinator/test_service_access.py",),
    ),
    Fence(
        "a keeper notices by its own clock that a lease is over",
        "worker/keeper/turning.py",
        "if held.is_over or self.now_s < held.ends_s or held.is_harmless:",
        "if True:",
        (DECIDING,),
    ),
    Fence(
        "a keeper counts a grant from before it asked",
        "worker/keeper/deciding.py",
        "ends_s=given.asked_s + grant.lease_s",
        "ends_s=given.now_s + grant.lease_s",
        (DECIDING,),
    ),
    Fence(
        "a keeper counts a renewal from before it asked",
        "worker/keeper/deciding.py",
        "answered.asked_s + answer.lease_s)",
        "answered.now_s + answer.lease_s)",
        (DECIDING,),
    ),
    Fence(
        "a lease that was over does not come back to a keeper",
        "worker/keeper/deciding.py",
        "is_past = lease.is_over and not lease.keeps_on",
        "is_past = False",
        (DECIDING,),
    ),
    Fence(
        "a keeper notices first that it was suspended",
        "worker/keeper/deciding.py",
        "        turn.end_leases()\n    _TAKERS",
        "        pass\n    _TAKERS",
        (DECIDING,),
    ),
    Fence(
        "a keeper says nothing under a lease that is over at that moment",
        "worker/keeper/acting.py",
        "is_over = lease.is_over or self._hands.site.clock.boottime_s() >= lease.ends_s",
        "is_over = False",
        ("tests/unit/worker/test_keeper_speaking.py",),
    ),
    Fence(
        "a keeper drops what the coordinator calls stale",
        "worker/keeper/deciding.py",
        "turn.stop(lease, LastWord(word=Word.NOTHING, why=stale.message))",
        "pass",
        (DECIDING,),
    ),
    Fence(
        "an attempt ends without its keeper when its lease is over",
        "worker/attempt/assignment.py",
        "if partition == Partition.KEEP or now_s < float(ends):",
        "if ends:",
        ("tests/unit/worker/test_keeper_parts.py",),
    ),
)
