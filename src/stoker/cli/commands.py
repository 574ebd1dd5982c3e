"""Every command by its words, in the order of the help, and the help that names them all.

The list is data: which module performs a command is a name that is imported when the command is given. The everyday
question `stoker --help` is answered from here, and the reference page and the suggestions for misspelt words are too.
"""

from __future__ import annotations


class Command:
    """One command: its words, what it is for, and the module that performs it."""

    __slots__ = ("grammar", "group", "module", "path", "performer", "summary")

    def __init__(self, words: str, group: str, summary: str, place: str) -> None:
        """Take the place as `module`, or as `module:entry` where a module holds several commands."""
        module, _, entry = place.partition(":")
        self.path = tuple(words.split())
        self.group = group
        self.summary = summary
        self.module = f"stoker.cli.{module}"
        self.grammar = f"{entry.upper()}_GRAMMAR" if entry else "GRAMMAR"
        self.performer = f"perform_{entry}" if entry else "perform"

    @property
    def words(self) -> str:
        return " ".join(self.path)


GROUPS = ("work", "watch", "machines", "things", "prove")

COMMANDS = (
    Command("run", "work", "run a recipe or a plan here, now", "run"),
    Command("submit", "work", "hand a manifest, a recipe or a program to the fleet", "submit"),
    Command("gang", "work", "several processes that start and end together", "gang:gang_help"),
    Command("gang run", "work", "a script as several ranks, as torchrun would, and clear when it fails", "gang:gang"),
    Command("adapters", "work", "many adapters over one base, trained as one", "admin:adapters"),
    Command("adapters run", "work", "train the adapters of a file together, here and now", "run:adapters_run"),
    Command("adapters board", "work", "the adapters of files by their best checkpoints, best first", "adapters_board"),
    Command("compare", "work", "trials beside each other, best first; or two jobs", "compare"),
    Command("fetch", "work", "fetch a model, a dataset or any file, whole and checked", "fetch"),
    Command("download-model", "work", "fetch one model file into models/, with its tokenizer", "fetch:download_model"),
    Command("get", "work", "copy a job's results, or what was put, into a folder", "job_verbs:get"),
    Command("status", "watch", "what runs, what ran last, how full the store is", "status"),
    Command("jobs", "watch", "list jobs, the newest first", "jobs"),
    Command("jobs show", "watch", "everything known of one job", "jobs:jobs_show"),
    Command("jobs wait", "watch", "until a job has ended; its end is the answer", "jobs:jobs_wait"),
    Command("jobs priority", "watch", "put a job of the fleet elsewhere in the line", "jobs:priority"),
    Command("jobs requeue", "watch", "start a job of the fleet again that has ended", "jobs:requeue"),
    Command("jobs rm", "watch", "forget a job; its results stay in the store", "jobs:jobs_rm"),
    Command("logs", "watch", "what a job's stages printed", "job_verbs:logs"),
    Command("cancel", "watch", "stop a running job and confirm that it stopped", "job_verbs:cancel"),
    Command("exec", "watch", "a command or a shell inside a running job of the fleet", "exec"),
    Command("explain", "watch", "why a job is where it is, and why each stage ran or did not", "explain"),
    Command("doctor", "machines", "everything that matters about this machine, with hints", "doctor"),
    Command("preflight", "machines", "what this installation can use, and what is there", "doctor:preflight"),
    Command(
        "gpu-preflight",
        "machines",
        "which accelerators work here; --require fails without one",
        "doctor:gpu_preflight",
    ),
    Command("join", "machines", "let this machine, or a person on it, belong to a fleet", "join"),
    Command("work", "machines", "let this machine work for a coordinator", "work"),
    Command("pause", "machines", "give this machine to its owner for a while: no jobs", "join:pause"),
    Command("serve", "machines", "serve a queue of jobs to workers: the coordinator", "serve"),
    Command("machines", "machines", "the machines that Stoker knows", "machines:listing"),
    Command("machines show", "machines", "one machine's capability, with where each fact came from", "machines:show"),
    Command("machines invite", "machines", "a code by which a machine, or a person, joins", "machines:invite"),
    Command("machines drain", "machines", "what runs there finishes, no more comes", "machines:drain"),
    Command(
        "machines cordon", "machines", "no more work for a machine or a device that is mistrusted", "machines:cordon"
    ),
    Command("machines open", "machines", "let a machine or a device have work again", "machines:open"),
    Command("machines forget", "machines", "remove a machine from the fleet's list", "machines:forget"),
    Command("machines memory", "machines", "who holds how much of which GPU; --wait queues for room", "memory"),
    Command("machines export", "machines", "write a cluster file for this machine", "machines:export"),
    Command("machines estimate", "machines", "how much GPU memory a training will take, term by term", "estimate"),
    Command("cluster", "machines", "the machines of a cluster file", "cluster:cluster_show"),
    Command("cluster show", "machines", "the machines of a cluster file", "cluster:cluster_show"),
    Command("cluster check", "machines", "every fault of a cluster file, with its line", "cluster:cluster_check"),
    Command("cluster place", "machines", "where jobs would go, and why not elsewhere", "cluster:cluster_place"),
    Command("recipes", "things", "list what can be run", "recipes:recipes"),
    Command("recipes show", "things", "a recipe's arguments, and a line to start from", "recipes:recipes_show"),
    Command("recipes swaps", "things", "recipes that could stand in for one", "recipes:recipes_swaps"),
    Command("config", "things", "a configuration, and where each of its values came from", "config"),
    Command("config show", "things", "a configuration, and where each of its values came from", "config"),
    Command("check", "things", "verify downloads; every fault of cluster files, manifests, adapters files", "check"),
    Command("store", "things", "how much is kept: results, what was put, the rest", "store:du"),
    Command("store du", "things", "how much is kept: results, what was put, the rest", "store:du"),
    Command("store put", "things", "take a file or a folder into the store, under a name", "store:put"),
    Command("store refs", "things", "what was put, by name", "store:refs"),
    Command("store verify", "things", "check what is kept against its digests", "store:verify"),
    Command("store pin", "things", "keep results or what was put whatever is pruned", "store:pin"),
    Command("store pins", "things", "list the pins", "store:pins"),
    Command("store adopt", "things", "let an old result stand for changed code", "store:adopt"),
    Command("store prune", "things", "free space: least recently used first", "prune"),
    Command("admin", "prove", "what operators need", "admin:admin"),
    Command("admin reload", "prove", "have the coordinator read its files again", "admin:reload"),
    Command("admin tokens", "prove", "who may ask the coordinator for what, and until when", "admin:tokens"),
    Command("admin tokens list", "prove", "who may ask the coordinator for what, and until when", "admin:tokens"),
    Command("admin tokens make", "prove", "a token for a person or a program", "admin:tokens_make"),
    Command("admin tokens revoke", "prove", "end a token at once", "admin:tokens_revoke"),
    Command("admin tokens rotate", "prove", "a new text in a token's place", "admin:tokens_rotate"),
    Command("admin notify", "prove", "who is told of events elsewhere", "admin:notify"),
    Command("admin notify list", "prove", "who is told of events elsewhere", "admin:notify"),
    Command("admin notify add", "prove", "tell an address of events, signed, at least once", "admin:notify_add"),
    Command("admin notify rm", "prove", "tell an address nothing more", "admin:notify_rm"),
    Command("admin notify test", "prove", "send an address a message that says nothing", "admin:notify_trying"),
    Command("admin torture", "prove", "prove on this very fleet that its queue keeps its promises", "torture"),
    Command("admin db", "prove", "the queue's database: check, back up, restore, move", "database:db_listing"),
    Command("admin db migrate", "prove", "bring the tables to this program's version", "database:db_migrate"),
    Command("admin db check", "prove", "prove that the queue kept its promises, job by job", "database:db_check"),
    Command("admin db backup", "prove", "write everything into one file, while it is served", "database:db_backup"),
    Command("admin db restore", "prove", "go on from a backup, under a new generation", "database:db_restore"),
    Command("admin db move", "prove", "into another database: SQLite to PostgreSQL or back", "database:db_move"),
    Command(
        "admin simulate",
        "prove",
        "place a million jobs on thousands of machines, on a clock of its own",
        "simulate",
    ),
)

EVERYWHERE = (
    ("--json", "write JSON and nothing else to standard output"),
    ("-q, --quiet", "write results and errors, nothing in between"),
    ("--debug", "show where an error came from"),
    ("-h, --help", "explain a command"),
)


def find_command(words: list[str]) -> tuple[Command | None, list[str]]:
    """Return the command that words begin with, the longest that there is, and the words that are left."""
    for length in (3, 2, 1):
        path = tuple(words[:length])
        for command in COMMANDS:
            if len(path) == length and command.path == path:
                return command, words[length:]
    return None, words


def verbs_of(words: str) -> list[Command]:
    """Return the commands that are these words and one more: of a noun its verbs."""
    path = tuple(words.split())
    return [command for command in COMMANDS if command.path[:-1] == path]


def top_help() -> str:
    """Return what `stoker --help` says."""
    lines = [
        "Stoker keeps every machine you own busy training.",
        "",
        "usage: stoker COMMAND [TARGET] [key=value …] [options] [-- PROGRAM …]",
    ]
    for group in GROUPS:
        lines += ["", group]
        for command in COMMANDS:
            if command.group == group and len(command.path) == 1:
                verbs = "|".join(verb.path[-1] for verb in verbs_of(command.words))
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


# Words of earlier tools that keep working. The only place that knows them; help and suggestions do not list them.

ALIASES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("recipe", "list"), ("recipes",)),
    (("recipe", "run"), ("run",)),
    (("recipe",), ("recipes",)),
    (("job", "list"), ("jobs",)),
    (("job", "cancel"), ("cancel",)),
    (("job", "logs"), ("logs",)),
    (("requeue",), ("jobs", "requeue")),
    (("reload",), ("admin", "reload")),
    (("worker", "start"), ("work",)),
    (("worker", "list"), ("machines",)),
    (("worker", "run"), ("work",)),
    (("worker",), ("machines",)),
    (("workers",), ("machines",)),
    (("job",), ("jobs",)),
    (("log",), ("logs",)),
    (("cache",), ("store",)),
    (("clean-cache",), ("store", "prune", "--everywhere")),
    (("ledger",), ("machines", "memory")),
    (("plan", "inspect"), ("run", "--dry-run")),
    (("plan", "resume"), ("run",)),
    (("plan",), ("run", "--dry-run")),
    (("sweep",), ("run",)),
    (("train",), ("run",)),
)


def expand(words: list[str]) -> list[str]:
    """Return the words as today's commands spell them."""
    for old, new in ALIASES:
        if tuple(words[: len(old)]) == old:
            return [*new, *words[len(old) :]]
    return words


# Flags that every command takes, wherever they stand. Kept apart from parsing, because `stoker --help` needs them.


class Flags:
    """What was asked of every command alike."""

    __slots__ = ("debug", "help", "json", "quiet", "version")

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.debug = False
        self.help = False
        self.version = False


_FLAGS = {
    "--json": "json",
    "--quiet": "quiet",
    "-q": "quiet",
    "--debug": "debug",
    "--help": "help",
    "-h": "help",
    "--version": "version",
    "-V": "version",
}


def take_flags(argv: list[str]) -> tuple[list[str], Flags]:
    """Take the flags of every command out of the words, wherever they stand before a `--`."""
    flags = Flags()
    words: list[str] = []
    for position, word in enumerate(argv):
        if word == "--":
            return [*words, *argv[position:]], flags
        if word in _FLAGS:
            setattr(flags, _FLAGS[word], True)
        else:
            words.append(word)
    return words, flags
