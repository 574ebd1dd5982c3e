"""Bless an old result under a new key: for a change that a person knows to be without effect.

Writes a record under the new key with the same tree, and with who did it, when, why and from which key.
"""

from __future__ import annotations

from stoker.model.digests import Digest
from stoker.model.errors import NotFound, Refused
from stoker.plan.action import Action
from stoker.plan.cache import Cache
from stoker.store.local import Found
from stoker.store.records import Record


def adopt(cache: Cache, *, old: Digest, action: Action, author: str, reason: str, at_s: float) -> Record:
    """Let the result under `old` stand for an action too. The result must be of the kind that the action gives."""
    found = cache.store.lookup(old)
    if not isinstance(found, Found):
        raise NotFound(f"no result lies under {old[:12]}", hint="it may have been damaged; run the stage instead")
    new = action.key()
    try:
        kept = Action.from_json(found.record.body["action"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"{old[:12]} does not say what made it: {error}", hint="run the stage instead") from None
    if (kept.facts.stage, kept.facts.output) != (action.facts.stage, action.facts.output):
        raise Refused(
            f"{old[:12]} is a {kept.facts.output} of {kept.facts.stage}, "
            f"wanted is a {action.facts.output} of {action.facts.stage}"
        )
    if new == old:
        raise Refused(f"{old[:12]} is already the result of this", hint="nothing has to be adopted")
    adopted = {"from": old, "by": author, "why": reason, "at": at_s}
    body = {**found.record.body, "action": action.to_json(), "adopted": adopted}
    published = cache.store.publish(found.record.under(new, body)).record
    if published.digest != found.record.digest:
        raise Refused(
            f"{new[:12]} already has another result than {old[:12]}", hint="it is used as it is; nothing was changed"
        )
    return published
