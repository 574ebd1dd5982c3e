"""What to do about an error of a download, in the words of the command line: the floors below know no options.

An error is known by its code and by the `reason` in its data.
"""

from __future__ import annotations

from stoker.core.errors import NetworkFailed, RateLimited, StokerError

_LISTS = "lists what there is"
_NO_HUB = "HF_ENDPOINT or --base-url names another hub or a mirror; --offline takes what is on this machine"
_NO_HUB_FOR_JOB = "HF_ENDPOINT names another hub or a mirror; {argument}=FOLDER takes what is on this machine"
_SAME = "the same command"
_AGAIN = f"{_SAME} tries again"
_NOT_REACHED = frozenset({"dns", "refused", "unreachable", "connect_timeout"})
_HINTS = {
    ("not_on_server", "offline"): "without --offline it is fetched",
    ("hash_mismatch", "offline"): "without --offline it is fetched anew",
    ("not_on_server", "EntryNotFound"): f"--dry-run {_LISTS}",
    ("local_file", "not_ours"): "or replace it with --force",
    ("bad_answer", "web_page"): "give the address of the file itself, or --sha256",
    ("bad_answer", "bad_names"): "leave them out with --exclude, or choose files by name",
    ("bad_answer", "unknown_version"): "if it is right, start anew with --force",
    ("bad_answer", "needs_folder"): "name a folder with --out",
    ("bad_input", "needs_folder"): "name a folder with --out",
}


def hinted(error: StokerError) -> StokerError:
    """Add to an error's hint what the command line offers about it, once."""
    if _is_unreached(error):
        error.hint = f"check this computer's network; {_NO_HUB}"
    is_passing = isinstance(error, NetworkFailed | RateLimited) and not error.data.get("is_lasting")
    if is_passing and _SAME not in error.hint:
        # Nothing of this file is kept, or its hint would say so.
        error.add_hint(_AGAIN)
        return error
    more = _HINTS.get((error.code, str(error.data.get("reason"))), "")
    if more and more not in error.hint and _LISTS not in error.hint:
        error.add_hint(more)
    return error


def hinted_for_job(error: StokerError, argument: str) -> StokerError:
    """Return of a job, which has none of a download's options, what to do if the hub is not reached for an argument."""
    if _is_unreached(error):
        error.hint = f"check this computer's network; {_NO_HUB_FOR_JOB.format(argument=argument)}"
    return error


def _is_unreached(error: StokerError) -> bool:
    is_hub = isinstance(error, NetworkFailed) and bool(error.data.get("is_hub"))
    return is_hub and error.data.get("reason") in _NOT_REACHED
