"""Words that people try first, and what is said here instead: for hints only, none of them is a command."""

from __future__ import annotations

_INSTEAD = {
    "store": {
        "unpin": "stoker store pin NAME --remove",
        "rm": "stoker store refs NAME --remove",
        "remove": "stoker store refs NAME --remove",
        "delete": "stoker store refs NAME --remove",
        "ls": "stoker store refs",
        "list": "stoker store refs",
        "show": "stoker store refs NAME",
        "get": "stoker get NAME",
        "add": "stoker store put NAME",
        "check": "stoker store verify",
        "gc": "stoker store prune",
        "clean": "stoker store prune",
    },
    "jobs": {
        "ls": "stoker jobs",
        "list": "stoker jobs",
        "remove": "stoker jobs rm NAME",
        "delete": "stoker jobs rm NAME",
        "cancel": "stoker cancel NAME",
        "logs": "stoker logs NAME",
        "retry": "stoker jobs requeue NAME",
        "rerun": "stoker jobs requeue NAME",
        "restart": "stoker jobs requeue NAME",
        "watch": "stoker logs -f NAME",
    },
    "recipes": {
        "ls": "stoker recipes",
        "list": "stoker recipes",
        "run": "stoker run NAME",
    },
    "machines": {
        "ls": "stoker machines",
        "list": "stoker machines",
        "gpus": "stoker machines show",
        "devices": "stoker machines show",
        "check": "stoker doctor",
        "uncordon": "stoker machines open NAME",
        "resume": "stoker machines open NAME",
        "remove": "stoker machines forget NAME",
        "rm": "stoker machines forget NAME",
        "pause": "stoker pause 2h",
        "wait": "stoker machines memory --wait 6GiB -- PROGRAM",
        "queue": "stoker machines memory",
        "status": "stoker machines memory",
    },
    "cluster": {
        "ls": "stoker cluster show",
        "list": "stoker cluster show",
        "explain": "stoker cluster place FILE --explain",
        "export": "stoker machines export",
    },
}


_COMMANDS = {"download": "fetch", "pull": "fetch", "wget": "fetch", "clone": "fetch", "verify": "check"}
_COMMANDS |= {"gpu": "machines memory", "gpus": "machines memory", "nvidia-smi": "machines memory"}
_COMMANDS |= {"nodes": "machines", "hosts": "machines", "vram": "machines estimate"}
_NOTHING_BEHIND = {
    "download-model": "stoker download-model --id NAME",
    "cluster place": "stoker cluster place FILE --cluster NAME",
    "machines memory": "stoker machines memory --wait 6GiB -- NAME …",
    "gang run": "stoker gang run --ranks 2 -- python NAME",
}


def instead_of(word: str) -> str:
    """Return a hint for a word that is no command; or an empty text."""
    said = _COMMANDS.get(word, "")
    return f"did you mean `stoker {said}`?" if said else ""


def instead(noun: str, words: list[str]) -> str:
    """Return a hint for words behind a noun that are no verb of it, with their own name in it; or an empty text."""
    if noun in _NOTHING_BEHIND:
        return f"did you mean `{_NOTHING_BEHIND[noun].replace('NAME', words[0])}`?"
    said = _INSTEAD.get(noun, {}).get(words[0], "")
    if words[1:]:
        said = said.replace("NAME", words[1])
    return f"did you mean `{said}`?" if said else ""
