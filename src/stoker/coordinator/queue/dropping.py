"""What is kept for nobody: old events, and classes that no job is of. The writer drops some of them with each sweep.

The events of a job that has ended go together, once the youngest of them is older than events are kept; those of
machines go one by one. Jobs that have not ended keep all of theirs, and the newest event of all stays: no number is
given twice. How far it went is written down, so that whoever goes on from an older event can be told, and `db check`
knows what it can't find.
"""

from __future__ import annotations

from itertools import takewhile

from stoker.coordinator.database.tables import EVENTS_DROPPED_TO, EVENTS_FROM_S
from stoker.coordinator.queue.turn import Turn

MOST_AT_ONCE = 200
"""Events, or classes, that are looked at in one commit; with an event, its job's whole story may go."""
_LOOK_EVERY_S = 3600.0


def drop_old(turn: Turn) -> None:
    """Look at some more events, then classes, until all were looked at; then an hour later again."""
    if turn.tick_s < turn.book.dropping.next_tick_s:
        return
    if _drop_events(turn) and _drop_classes(turn):
        turn.book.dropping.next_tick_s = turn.tick_s + _LOOK_EVERY_S


def _drop_events(turn: Turn) -> bool:
    """Drop what is too old of the next few events; say whether there are no more such."""
    book, before_s = turn.book, turn.now_s - turn.setting.times.events_kept_s
    rows = turn.read(turn.queries.events_behind, after_id=book.dropping.looked_to, most=MOST_AT_ONCE)
    # The journal's time never goes back.
    old = list(takewhile(lambda row: row[2] < before_s and row[0] < book.event_id, rows))
    if not old:
        return True
    book.dropping.looked_to = old[-1][0]
    dropped = [number for number, seq, _ in old if seq is None]
    for number in dropped:
        turn.write(turn.statements.drop_event, at_id=number)
    seqs = sorted({seq for _, seq, _ in old if seq is not None})
    for seq, newest in turn.read(turn.queries.told_jobs, seqs=turn.many(seqs), before_s=before_s):
        if newest < book.event_id:
            turn.write(turn.statements.drop_events_of, at_seq=seq)
            dropped.append(newest)
    if dropped:
        book.dropping.dropped_to = max(book.dropping.dropped_to, *dropped)
        turn.write(turn.statements.put_meta, key=EVENTS_FROM_S, value=repr(before_s))
        turn.write(turn.statements.put_meta, key=EVENTS_DROPPED_TO, value=str(book.dropping.dropped_to))
    return len(old) < MOST_AT_ONCE


def _drop_classes(turn: Turn) -> bool:
    """Drop those of the next few classes that no job is of, whatever its state; say whether these were the last.

    The scheduler may remember them until the coordinator starts anew: nothing is ever of such a class again.
    """
    book = turn.book
    after_id = book.dropping.class_looked_to
    to_id = after_id + MOST_AT_ONCE
    rows = turn.read(turn.queries.unused_classes, after_id=after_id, to_id=to_id)
    is_last = to_id >= book.class_id
    book.dropping.class_looked_to = 0 if is_last else to_id
    if rows:
        unused = {class_id for (class_id,) in rows}
        for class_id in unused:
            turn.write(turn.statements.drop_class, at_id=class_id)
            turn.write(turn.statements.drop_count, at_key=f"class:{class_id}")
        book.classes = {kind: class_id for kind, class_id in book.classes.items() if class_id not in unused}
        for stated in book.stated_on.values():
            for class_id in unused & stated.keys():
                del stated[class_id]
        book.class_sorts = {sort: class_id for sort, class_id in book.class_sorts.items() if class_id not in unused}
        # Before anybody asks for such a class anew: its row would be there twice.
        turn.settle()
    return is_last
