"""Every command by its words, in the order of the help, and the help that names them all.

The list is data: which module performs a command is a name that is imported when the command is given. The everyday
question `stoker --help` is answered from here, and the reference page and the suggestions for misspelt words are too.
"""

from __future__ import annotations


class Command:
    """One command: its words, what it is for, and the module that performs it."""

    __slots__ = ("group", "module", "path", "summary")

    def __init__(self, words: str, group: str, summary: str, module: str) -> None:
        self.path = tuple(words.split())
        self.group = group
        self.summary = summary
        self.module = f"stoker.faces.cli.{module}"

    @property
    def words(self) -> str:
        return " ".join(self.path)


GROUPS = ("work", "watch", "machines", "things", "prove")

COMMANDS = (
    Command("run", "work", "run a recipe or a plan here, now", "run"),
    Command("compare", "work", "trials beside each other, best first; or two jobs", "compare"),
    Command("fetch", "work", "fetch a model, a dataset or any file, whole and checked", "fetch.command"),
    Command("download-model", "work", "fetch one model file into models/, with its tokenizer", "download_model"),
    Command("get", "work", "copy a job's results, or what was put, into a folder", "get"),
    Command("status", "watch", "what runs, what ran last, how full the store is", "status"),
    Command("jobs", "watch", "list jobs, the newest first", "jobs"),
    Command("jobs show", "watch", "everything known of one job", "jobs_show"),
    Command("jobs rm", "watch", "forget a job; its results stay in the store", "jobs_rm"),
    Command("logs", "watch", "what a job's stages printed", "logs"),
    Command("cancel", "watch", "stop a running job and confirm that it stopped", "cancel"),
    Command("explain", "watch", "why each stage ran or did not, field by field", "explain"),
    Command("doctor", "machines", "everything that matters about this machine, with hints", "machines.doctor"),
    Command("preflight", "machines", "what this installation can use, and what is there", "machines.preflight"),
    Command(
        "gpu-preflight",
        "machines",
        "which accelerators work here; --require fails without one",
        "machines.gpu_preflight",
    ),
    Command("machines", "machines", "the machines that Stoker knows", "machines.listing"),
    Command("machines show", "machines", "one machine's capability, with where each fact came from", "machines.show"),
    Command(
        "machines memory", "machines", "who holds how much of which GPU; --wait queues for room", "machines.memory"
    ),
    Command("machines export", "machines", "write a cluster file for this machine", "machines.export"),
    Command(
        "machines estimate", "machines", "how much GPU memory a training will take, term by term", "machines.estimate"
    ),
    Command("cluster", "machines", "the machines of a cluster file", "machines.cluster_show"),
    Command("cluster show", "machines", "the machines of a cluster file", "machines.cluster_show"),
    Command("cluster check", "machines", "every fault of a cluster file, with its line", "machines.cluster_check"),
    Command("cluster place", "machines", "where jobs would go, and why not elsewhere", "machines.cluster_place"),
    Command("recipes", "things", "list what can be run", "recipes"),
    Command("recipes show", "things", "a recipe's arguments, and a line to start from", "recipes_show"),
    Command("recipes swaps", "things", "recipes that could stand in for one", "recipes_swaps"),
    Command("config", "things", "a configuration, and where each of its values came from", "config_show"),
    Command("config show", "things", "a configuration, and where each of its values came from", "config_show"),
    Command("check", "things", "verify downloads, receipts, lock lists, cluster files and manifests, offline", "check"),
    Command("store", "things", "how much is kept: results, what was put, the rest", "store.du"),
    Command("store du", "things", "how much is kept: results, what was put, the rest", "store.du"),
    Command("store put", "things", "take a file or a folder into the store, under a name", "store.put"),
    Command("store refs", "things", "what was put, by name", "store.refs"),
    Command("store verify", "things", "check what is kept against its digests", "store.verify"),
    Command("store pin", "things", "keep results or what was put whatever is pruned", "store.pin"),
    Command("store pins", "things", "list the pins", "store.pins"),
    Command("store adopt", "things", "let an old result stand for changed code", "store.adopt"),
    Command("store prune", "things", "free space: least recently used first", "store.prune"),
    Command("admin", "prove", "what operators need", "admin.listing"),
    Command(
        "admin simulate",
        "prove",
        "place a million jobs on thousands of machines, on a clock of its own",
        "admin.simulate",
    ),
)

EVERYWHERE = (
    ("--json", "write JSON and nothing else to standard output"),
    ("-q, --quiet", "write results and errors, nothing in between"),
    ("--debug", "show where an error came from"),
    ("-h, --help", "explain a command"),
)


def find_command(words: list[str]) -> tuple[Command | None, list[str]]:
    """Give the command that words begin with, two words before one, and the words that are left."""
    for length in (2, 1):
        path = tuple(words[:length])
        for command in COMMANDS:
            if len(path) == length and command.path == path:
                return command, words[length:]
    return None, words


def verbs_of(noun: str) -> list[Command]:
    """Give the commands of two words that begin with a noun."""
    return [command for command in COMMANDS if len(command.path) == 2 and command.path[0] == noun]


def top_help() -> str:
    """Give what `stoker --help` says."""
    lines = [
        "Stoker keeps every machine you own busy training.",
        "",
        "usage: stoker COMMAND [TARGET] [key=value …] [options] [-- PROGRAM …]",
    ]
    for group in GROUPS:
        lines += ["", group]
        for command in COMMANDS:
            if command.group == group and len(command.path) == 1:
                verbs = "|".join(verb.path[1] for verb in verbs_of(command.path[0]))
                lines.append(f"  {command.words:<14} {command.summary}{f' [{verbs}]' if verbs else ''}")
    lines += ["", "everywhere"]
    lines += [f"  {name:<12} {text}" for name, text in EVERYWHERE]
    lines += [
        "",
        "try",
        "  stoker recipes",
        "  stoker run tabular/gbt data=iris lr=0.05 --dry-run",
        "  stoker run tabular/compare",
        "  stoker run lr=1e-2,1e-3 -- python train.py --lr {lr}",
        "  stoker explain last",
        "",
        "`stoker help COMMAND` says more. NAME is a job's name, `name/3`, `last`, or the beginning of an id.",
    ]
    return "\n".join(lines) + "\n"
