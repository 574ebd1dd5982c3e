"""The table of all commands, in the order of `stoker --help`, and that help text.

The table is data: the module of a command is imported when the command is run. `stoker --help`, the reference page and
the suggestions for misspelt words use it.
"""

from __future__ import annotations


class Command:
    """One command: its words, its summary, and the module that performs it."""

    __slots__ = ("grammar", "group", "module", "path", "performer", "summary")

    def __init__(self, words: str, group: str, summary: str, place: str) -> None:
        """`place` is `module`, or `module:entry` if the module holds several commands."""
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
    Command("run", "work", "run a recipe or a program on this machine", "run"),
    Command("submit", "work", "submit a manifest, a recipe or a program to the fleet", "submit"),
    Command("init", "work", "write a manifest and a sweep for a training script", "init"),
    Command("gang", "work", "run several processes that start and stop together", "gang:gang_help"),
    Command("gang run", "work", "run a script as several ranks, like torchrun; reports the first failure", "gang:gang"),
    Command("adapters", "work", "adapters over one base model, trained together", "admin:adapters"),
    Command("adapters run", "work", "train the adapters of a file in one process on this machine", "run:adapters_run"),
    Command("adapters board", "work", "list adapters by their best checkpoint, best first", "compare:board"),
    Command("compare", "work", "compare the trials of a job, best first; or several jobs", "compare"),
    Command("chat", "work", "try adapters beside each other and beside their base", "chat"),
    Command("report", "work", "write a job or a sweep as one HTML, PDF or Markdown file", "report"),
    Command("fetch", "work", "download a model, a dataset or any file, and verify it", "fetch"),
    Command("download-model", "work", "download one model file and its tokenizer into models/", "fetch:download_model"),
    Command("get", "work", "copy a job's results, or a stored tree, into a folder", "job_verbs:get"),
    Command("status", "watch", "show running jobs, recent jobs and the size of the store", "status"),
    Command("top", "watch", "watch jobs and machines on the terminal: the cockpit", "top"),
    Command("jobs", "watch", "list jobs, newest first", "jobs"),
    Command("jobs show", "watch", "show the details of one job", "jobs:jobs_show"),
    Command("jobs wait", "watch", "wait until a job ends; the exit code is the job's", "jobs:jobs_wait"),
    Command("jobs priority", "watch", "change the priority of a fleet job", "jobs:priority"),
    Command("jobs requeue", "watch", "start a fleet job again that has ended", "jobs:requeue"),
    Command("jobs rm", "watch", "delete a job's record; its results stay in the store", "jobs:jobs_rm"),
    Command("logs", "watch", "print the output of a job's stages", "job_verbs:logs"),
    Command("cancel", "watch", "stop a job and confirm that it stopped", "job_verbs:cancel"),
    Command("ui", "watch", "open the web pages in a browser: this machine's jobs, or a fleet", "ui"),
    Command("exec", "watch", "run a command or a shell inside a running fleet job", "exec"),
    Command("explain", "watch", "explain a job's state, and why each stage ran or was reused", "explain"),
    Command("doctor", "machines", "check this machine and print hints", "doctor"),
    Command("preflight", "machines", "check this installation and its optional packages", "doctor:preflight"),
    Command(
        "gpu-preflight",
        "machines",
        "check the accelerators of this machine; --require fails without one",
        "doctor:gpu_preflight",
    ),
    Command("join", "machines", "join a fleet, as a machine or as a user", "join"),
    Command("work", "machines", "run the worker: this machine takes jobs of a coordinator", "work"),
    Command("pause", "machines", "take no jobs on this machine for a while", "join:pause"),
    Command("serve", "machines", "run the coordinator: the queue of the fleet", "serve"),
    Command("machines", "machines", "list the machines of the fleet", "machines:listing"),
    Command("machines show", "machines", "show a machine's devices and the source of each fact", "machines:show"),
    Command("machines invite", "machines", "create a code with which a machine or a user joins", "machines:invite"),
    Command("machines drain", "machines", "let running jobs finish and start no more", "machines:drain"),
    Command("machines cordon", "machines", "start no jobs on a machine or a device", "machines:cordon"),
    Command("machines pause", "machines", "return a machine's jobs to the queue, start no more", "machines:pause"),
    Command("machines open", "machines", "undo drain, cordon or pause: start jobs there again", "machines:open"),
    Command("machines forget", "machines", "remove a machine from the fleet", "machines:forget"),
    Command("machines memory", "machines", "list GPU memory reservations; --wait queues for memory", "memory"),
    Command("machines export", "machines", "write a cluster file for this machine", "machines:export"),
    Command("machines estimate", "machines", "estimate the GPU memory of a training run, term by term", "estimate"),
    Command("pools", "machines", "list the pools whose machines are started when jobs wait", "pools:pools"),
    Command("pools show", "machines", "show a pool and its allocations", "pools:show"),
    Command("pools check", "machines", "check whether pools could start workers", "pools:check"),
    Command("pools pause", "machines", "start no more workers of a pool", "pools:pause"),
    Command("pools resume", "machines", "start workers of a paused pool again", "pools:resume"),
    Command("pools stop", "machines", "stop allocations of a pool", "pools:stop"),
    Command("launch", "machines", "start workers of pools now", "launch:launch"),
    Command("launch watch", "machines", "start workers of pools whenever jobs wait", "launch:watch"),
    Command("cluster", "machines", "list the machines of a cluster file", "cluster:cluster_show"),
    Command("cluster show", "machines", "list the machines of a cluster file", "cluster:cluster_show"),
    Command("cluster check", "machines", "check a cluster file; all errors with their lines", "cluster:cluster_check"),
    Command("cluster place", "machines", "show where jobs would be placed, and why", "cluster:cluster_place"),
    Command("recipes", "things", "list the installed recipes", "recipes:recipes"),
    Command("recipes show", "things", "show a recipe's arguments and an example", "recipes:recipes_show"),
    Command("recipes swaps", "things", "list recipes with the same output kind", "recipes:recipes_swaps"),
    Command("config", "things", "show a configuration with the origin of each value", "recipes:config"),
    Command("config show", "things", "show a configuration with the origin of each value", "recipes:config"),
    Command("check", "things", "verify downloads; check cluster files, manifests and adapters files", "check"),
    Command("completion", "things", "print or install completion for bash, zsh or fish", "completion"),
    Command("store", "things", "show disk usage of the store", "store:du"),
    Command("store du", "things", "show disk usage of the store", "store:du"),
    Command("store put", "things", "store a file or a folder under a name", "store:put"),
    Command("store refs", "things", "list stored trees by name", "store:refs"),
    Command("store verify", "things", "verify the store's files against their digests", "store:verify"),
    Command("store pin", "things", "protect results or stored trees from pruning", "store:pin"),
    Command("store pins", "things", "list the pins", "store:pins"),
    Command("store adopt", "things", "reuse an old result for changed code", "store:adopt"),
    Command("store prune", "things", "free disk space: delete least recently used results first", "prune"),
    Command("clean", "things", "list and clean all folders that Stoker fills", "prune:clean"),
    Command("crossval", "prove", "compare a model with a reference, or two jobs with each other", "crossval"),
    Command("full-crossval", "prove", "fetch the C++ reference, then compare", "crossval:full"),
    Command("reference", "prove", "list the installed C++ references of comparisons", "reference:list"),
    Command("reference list", "prove", "list the installed C++ references of comparisons", "reference:list"),
    Command("reference fetch", "prove", "install llama.cpp, the C++ reference, and check it", "reference:fetch"),
    Command("fixtures", "prove", "write a small model, the same on every machine", "fixtures"),
    Command("gate", "prove", "decide whether a candidate is worse than a baseline", "gate"),
    Command("bench", "prove", "measure a model or a program: throughput, latency, memory, energy", "bench"),
    Command("receipt", "prove", "receipts: evidence of finished work that is verified offline", "receipt:group"),
    Command("receipt show", "prove", "show the receipt of a finished job", "receipt:show"),
    Command("receipt verify", "prove", "verify receipts: digests, limits, signatures; offline", "receipt:verify"),
    Command("receipt sign", "prove", "sign a receipt", "receipt:sign"),
    Command("receipt key", "prove", "make a key that signs receipts", "receipt:key"),
    Command("receipt certify", "prove", "certify a signing key with the fleet's CA", "receipt:certify"),
    Command("admin", "prove", "commands for operators", "admin:admin"),
    Command("admin reload", "prove", "make the coordinator read its files again", "admin:reload"),
    Command("admin tokens", "prove", "list the API tokens of the fleet", "admin:tokens"),
    Command("admin tokens list", "prove", "list the API tokens of the fleet", "admin:tokens"),
    Command("admin tokens make", "prove", "create a token for a user or a program", "admin:tokens_make"),
    Command("admin tokens revoke", "prove", "revoke a token immediately", "admin:tokens_revoke"),
    Command(
        "admin tokens rotate", "prove", "replace a token's secret; the old one stops working", "admin:tokens_rotate"
    ),
    Command("admin notify", "prove", "list webhooks", "notify:list"),
    Command("admin notify list", "prove", "list webhooks", "notify:list"),
    Command("admin notify add", "prove", "send events to a URL, by mail or to the desktop", "notify:add"),
    Command("admin notify rm", "prove", "delete a webhook", "notify:rm"),
    Command("admin notify test", "prove", "send a test event to a webhook", "notify:test"),
    Command("admin torture", "prove", "test the queue's guarantees on this fleet", "torture"),
    Command("admin objects", "prove", "print where the coordinator stores objects", "database:objects"),
    Command("admin objects check", "prove", "check an S3 bucket", "database:objects_check"),
    Command("admin objects move", "prove", "move all objects to S3 or back to disk", "database:objects_move"),
    Command("admin objects adopt", "prove", "take over a bucket after a loss", "database:objects_adopt"),
    Command("admin db", "prove", "list the commands for the queue's database", "database:db_listing"),
    Command("admin db migrate", "prove", "migrate the tables to this version of Stoker", "database:db_migrate"),
    Command("admin db check", "prove", "check the database against the queue's guarantees", "database:db_check"),
    Command("admin db backup", "prove", "write a backup to one file; the coordinator may run", "database:db_backup"),
    Command("admin db restore", "prove", "restore a backup under a new generation", "database:db_restore"),
    Command("admin db move", "prove", "copy to another database: SQLite to PostgreSQL or back", "database:db_move"),
    Command(
        "admin simulate",
        "prove",
        "simulate placement of up to millions of jobs",
        "simulate",
    ),
)

COMPLETE = "__complete"
"""The word by which scripts of `stoker completion` ask for words. Help and suggestions do not list it."""

EVERYWHERE = (
    ("--json", "write only JSON to standard output"),
    ("-q, --quiet", "write only results and errors"),
    ("--debug", "print the stack trace of an error"),
    ("-h, --help", "print this help"),
)


def find_command(words: list[str]) -> tuple[Command | None, list[str]]:
    """Return the longest command that the words begin with, and the remaining words."""
    for length in (3, 2, 1):
        path = tuple(words[:length])
        for command in COMMANDS:
            if len(path) == length and command.path == path:
                return command, words[length:]
    return None, words


def verbs_of(words: str) -> list[Command]:
    """Return the commands that are these words and one more: the verbs of a noun."""
    path = tuple(words.split())
    return [command for command in COMMANDS if command.path[:-1] == path]


def top_help() -> str:
    """Return the text of `stoker --help`."""
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
        "`stoker help COMMAND` shows its options. NAME is a job's name, `name/3`, `last`, or an id prefix.",
    ]
    return "\n".join(lines) + "\n"


# Aliases for commands of earlier tools. Help and suggestions do not list them.

ALIASES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("recipe", "list"), ("recipes",)),
    (("recipe", "run"), ("run",)),
    (("recipe",), ("recipes",)),
    (("job", "list"), ("jobs",)),
    (("job", "cancel"), ("cancel",)),
    (("job", "logs"), ("logs",)),
    (("gen-fixtures",), ("fixtures",)),
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
    (("clean-cache",), ("clean",)),
    (("ledger",), ("machines", "memory")),
    (("plan", "inspect"), ("run", "--dry-run")),
    (("plan", "resume"), ("run",)),
    (("plan",), ("run", "--dry-run")),
    (("sweep",), ("run",)),
    (("train",), ("run",)),
    (("leaderboard",), ("jobs", "--rank")),
    (("runs", "diff"), ("compare",)),
    (("runs",), ("jobs",)),
    (("tui",), ("top",)),
)


def expand(words: list[str]) -> list[str]:
    """Return the words with an alias replaced by its command."""
    for old, new in ALIASES:
        if tuple(words[: len(old)]) == old:
            return [*new, *words[len(old) :]]
    return words


def bare_command(flags: Flags) -> list[str]:
    """Return what `stoker` without words does: the cockpit on a terminal if its library is installed, else `status`."""
    import os
    import sys

    streams = (sys.stdin, sys.stdout, sys.stderr)
    is_terminal = all(stream is not None and stream.isatty() for stream in streams)
    if flags.json or flags.quiet or not is_terminal or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return ["status"]
    return ["top"] if has_cockpit() else ["status"]


def has_cockpit() -> bool:
    """Return True if the library of the cockpit is installed."""
    from importlib.util import find_spec

    return find_spec("textual") is not None


# Flags of every command, at any position. Separate from the grammar, because `stoker --help` needs them.


class Flags:
    """The flags that every command takes."""

    __slots__ = ("debug", "help", "json", "quiet", "version")

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.debug = False
        self.help = False
        self.version = False


GLOBAL_FLAGS = {
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
    """Remove the flags of every command from the words before a `--`; return words and flags."""
    flags = Flags()
    words: list[str] = []
    for position, word in enumerate(argv):
        if word == "--":
            return [*words, *argv[position:]], flags
        if word in GLOBAL_FLAGS:
            setattr(flags, GLOBAL_FLAGS[word], True)
        else:
            words.append(word)
    return words, flags
