"""What a pool's texts may contain, so that no name, option or path can break out of a script, a command or a manifest.

Pure. Setup commands are the one exception: they are shell commands and are sent as they are, one line each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stoker.core.errors import Diagnostic, InvalidCluster
from stoker.core.pool import Pool, PoolBackend
from stoker.core.text import did_you_mean

POOL_NAME_RULE = "a to z, 0 to 9, and - inside; at most 40 of them"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_TYPE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_OPTION = re.compile(r"[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?")
# Of an SSH destination: a name of ssh's configuration, HOST, USER@HOST; an IPv6 address is written without brackets.
_HOST = re.compile(r"([A-Za-z0-9_.-]+@)?[A-Za-z0-9_][A-Za-z0-9_.:%-]*")
# What has a meaning in no shell, also not after an expansion. A space separates options in a line of `#SBATCH`.
_VALUE = re.compile(r"[A-Za-z0-9_.,:;=+@%/*&|\[\]()<>!?~^-]*")
_PATH = re.compile(r"/[A-Za-z0-9_.,:=+@%/-]*")
_HOLE = "{ticket:"
_LONGEST_VALUE = 500
# Of Kubernetes: names of objects, and keys and values of labels.
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*")
_KEY = r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
_SELECTOR = re.compile(rf"{_KEY}={_LABEL_VALUE}(,{_KEY}={_LABEL_VALUE})*")
_TOLERATION = rf"{_KEY}(={_LABEL_VALUE})?(:(NoSchedule|PreferNoSchedule|NoExecute))?"
_TOLERATIONS = re.compile(rf"{_TOLERATION}(,{_TOLERATION})*")
_NUMBER = r"[0-9]{1,9}(\.[0-9]{1,4})?"
_KNOWN: Mapping[PoolBackend, Mapping[str, tuple[re.Pattern[str], str]]] = {
    PoolBackend.KUBERNETES: {
        "context": (re.compile(r"[A-Za-z0-9_.:/@-]+"), "a context of the kubeconfig"),
        "gpu-resource": (re.compile(r"[a-z0-9.-]+/[A-Za-z0-9_.-]+"), "a resource such as nvidia.com/gpu"),
        "image": (_IMAGE, "an image such as registry.example.org/stoker:1.2"),
        "image-pull-secret": (_OBJECT, "the name of a Secret"),
        "namespace": (_OBJECT, "a namespace"),
        "node-selector": (_SELECTOR, "KEY=VALUE,KEY=VALUE"),
        "priority-class": (_OBJECT, "a PriorityClass"),
        "run-as-user": (re.compile(r"[0-9]{1,9}"), "a user's number"),
        "runtime-class": (_OBJECT, "a RuntimeClass"),
        "service-account": (_OBJECT, "a ServiceAccount"),
        "tolerations": (_TOLERATIONS, "KEY=VALUE:NoSchedule,KEY:NoExecute"),
    },
    PoolBackend.RAY: {
        "address": (
            re.compile(r"https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9_.-]+)*/?"),
            "the dashboard's address, such as http://127.0.0.1:8265",
        ),
        "resources": (
            re.compile(rf"[A-Za-z0-9_.:-]+={_NUMBER}(,[A-Za-z0-9_.:-]+={_NUMBER})*"),
            "NAME=NUMBER,NAME=NUMBER: custom resources of the cluster",
        ),
    },
}
"""Options of backends that pass no others through, with what their values may be."""
_REQUIRED = {PoolBackend.KUBERNETES: "image", PoolBackend.RAY: "address"}
# What a launcher sets by itself; another value would break how allocations are found, fenced or ended.
_OURS = {
    PoolBackend.SLURM: frozenset(
        {
            *("array", "chdir", "comment", "cpus-per-task", "error", "export", "export-file", "gres", "input"),
            *("job-name", "mem", "no-requeue", "nodes", "ntasks", "open-mode", "output", "parsable", "requeue"),
            *("test-only", "time", "wait", "wrap", "time-min", "deadline", "begin", "hold", "signal", "dependency"),
            *("mem-per-cpu", "mem-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"),
            *("ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "cluster", "clusters", "uid", "gid"),
            *("get-user-env", "kill-on-invalid-dep", "quiet", "verbose", "ignore-pbs"),
        }
    )
}
_INSTEAD = {
    "cpus-per-task": "each.cpu_cores",
    "mem": "each.ram_mb",
    "gres": "each.gpus",
    "time": "wall",
}


def pool_faults(pool: Pool) -> tuple[Diagnostic, ...]:
    """Return all faults of a pool's texts, each at its key."""
    return (*_names(pool), *_options(pool), *_setup(pool))


def require_valid(pool: Pool) -> None:
    """Raise `InvalidCluster` with all faults of a pool's texts."""
    if faults := pool_faults(pool):
        raise InvalidCluster(f"pool {pool.name[:60]!r}: {faults[0]}", faults=faults)


def _names(pool: Pool) -> tuple[Diagnostic, ...]:
    faults = []
    if not _NAME.fullmatch(pool.name):
        faults.append(Diagnostic("name", f"{pool.name[:80]!r} is not a pool's name", POOL_NAME_RULE))
    if pool.via and not _HOST.fullmatch(pool.via):
        faults.append(Diagnostic("via", f"{pool.via[:80]!r} is not an SSH destination", "HOST or USER@HOST"))
    for number, gpu in enumerate(pool.each.gpus):
        if not _TYPE.fullmatch(gpu.type):
            where = f"each.gpus[{number}].type"
            faults.append(Diagnostic(where, f"{gpu.type[:80]!r} is not a type", "letters, digits, and _ . - inside"))
    for name, path in (("python", pool.python), ("folder", pool.folder)):
        if path and not _PATH.fullmatch(path):
            message = f"{path[:80]!r} is not an absolute path of plain characters"
            faults.append(Diagnostic(name, message, "no spaces, quotes or characters of a shell"))
    if pool.backend is PoolBackend.SLURM and pool.via and not pool.folder:
        hint = "an absolute path that the host and the pool's machines share"
        faults.append(Diagnostic("folder", "required with `via`", hint))
    if pool.backend is PoolBackend.SSH and not pool.via:
        faults.append(Diagnostic("via", "required: the SSH host on which workers start", "HOST or USER@HOST"))
    if pool.backend in (PoolBackend.LOCAL, PoolBackend.SSH) and pool.max > 1 and pool.each.gpus:
        hint = "one worker with several slots: max: 1, each: { slots: N }"
        faults.append(Diagnostic("max", "workers of one machine would all offer its first devices", hint))
    return tuple(faults)


def _options(pool: Pool) -> tuple[Diagnostic, ...]:
    faults = []
    ours = _OURS.get(pool.backend, frozenset())
    known = _KNOWN.get(pool.backend)
    required = _REQUIRED.get(pool.backend)
    if known is not None and required is not None and required not in pool.options:
        faults.append(Diagnostic(f"options.{required}", f"required for {pool.backend}", known[required][1]))
    for name, value in pool.options.items():
        where = f"options.{name[:80]}"
        if not _OPTION.fullmatch(name):
            faults.append(Diagnostic(where, f"{name[:80]!r} is not an option's name", "letters, digits, and - inside"))
        elif known is not None and name not in known:
            hint = did_you_mean(name, known) or f"{pool.backend} has {', '.join(known)}"
            faults.append(Diagnostic(where, f"{name[:80]!r} is not an option of {pool.backend}", hint))
        elif name in ours or any(one.startswith(name) for one in ours):
            # Slurm takes the beginning of an option for the option.
            instead = _INSTEAD.get(name)
            faults.append(Diagnostic(where, "set by the launcher", f"use {instead}" if instead else "remove it"))
        if known is not None and name in known:
            pattern, rule = known[name]
            if len(value) > _LONGEST_VALUE or not pattern.fullmatch(value):
                faults.append(Diagnostic(where, f"{value[:80]!r} is not valid", rule))
        elif len(value) > _LONGEST_VALUE or not _VALUE.fullmatch(value):
            faults.append(
                Diagnostic(where, f"{value[:80]!r} has characters that are not allowed", "no spaces, quotes or $")
            )
    return tuple(faults)


def _setup(pool: Pool) -> tuple[Diagnostic, ...]:
    faults = []
    for number, line in enumerate(pool.setup):
        if any((ord(character) < 0x20 and character != "\t") or ord(character) == 0x7F for character in line):
            faults.append(Diagnostic(f"setup[{number}]", "has a line break or a control character", "one command each"))
        elif _HOLE in line:
            faults.append(Diagnostic(f"setup[{number}]", f"{_HOLE} stands for a ticket"))
        elif line.lstrip().startswith("#SBATCH"):
            faults.append(Diagnostic(f"setup[{number}]", "#SBATCH is not a command", "use options"))
    return tuple(faults)
