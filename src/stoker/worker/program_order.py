"""From a line like `stoker run lr=1e-2 -- python train.py --lr {lr}` to arguments of the recipe `command`.

What the recipe declares (`inputs`, `outputs`, `memory` …) is taken as that; everything else that is set is a parameter
of the program, and `{name}` in its words stands for one. A parameter is put in as it was typed; one from a file as it
would be typed.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any

from stoker.config.values import fill_text
from stoker.model.digests import Digest, digest_value
from stoker.model.faults import Fault
from stoker.model.frozen import frozen
from stoker.model.resources import Capacity
from stoker.model.suggest import did_you_mean, nearest
from stoker.plan.filling import fill_some, places_in, required_in
from stoker.worker.program_files import ProgramFiles, program_name

RECIPE = "command"
PLACES = ("out", "scratch")
"""Places that are filled when the program starts: where its result and its checkpoints go."""
FOUND = ("argv", "params", "folder", "workspace", "code", "machine_gpus", "machine_cpus")
"""Arguments of the recipe that are found out here, and that nobody types."""

# Parameters may be called anything: only one that is spelt nearly like a setting is taken for a slip.
_MISSPELT = 0.8


def is_found(recipe: str, name: str) -> bool:
    """Say whether an argument, by its dotted name, is one that Stoker found out for a program."""
    return recipe == RECIPE and name.partition(".")[0] in FOUND and not name.startswith(("argv", "params"))


@frozen
class ProgramWords:
    """A program as it was given, its places unfilled."""

    argv: tuple[str, ...]
    folder: str
    capacity: Capacity
    gpus: int = 0
    """How many this machine has."""
    at_once: int = 1
    """How many of it share the machine's cores, if nothing says how many one takes."""

    def faults(self, paths: Iterable[str], settings: Collection[str] = ()) -> list[Fault]:
        """Return a fault for each place that nothing fills and each parameter that has a reserved name.

        `paths` are the parameters that are set, `settings` those of Stoker's own: no place takes one of them.
        """
        paths = list(paths)
        known = {*paths, *PLACES}
        faults = [
            _setting_as_place(place)
            if not only_params([place], settings)
            else Fault(
                f"{{{place}}}",
                "nothing gives it a value",
                did_you_mean(place, known) or f"set {place}=VALUE before --, or write {{{{{place}}}}} for plain braces",
            )
            for place in dict.fromkeys(place for word in self.argv for place in required_in(word))
            if place not in known
        ]
        faults += [
            Fault(place, "names a place of its own, where the program's files go", "call the parameter something else")
            for place in PLACES
            if place in paths
        ]
        return faults

    def remarks(self, paths: Iterable[str], settings: Iterable[str] = ()) -> list[str]:
        """Say which parameters no place takes, and which of those may be a misspelt setting of the recipe."""
        used = {place for word in self.argv for place in places_in(word)}
        unused = [path for path in dict.fromkeys(paths) if path not in used]
        if not unused:
            return []
        settings = list(settings)
        near = [(path, nearest(path, settings, likeness=_MISSPELT)) for path in unused]
        misspelt = [f"{path} is no setting of a program's run (did you mean {one!r}?)" for path, one in near if one]
        return [
            *misspelt,
            f"no {{…}} of the program takes {', '.join(unused)}: it can ask stoker_trainer or $STOKER_PARAMS",
        ]

    def args(
        self,
        settings: Mapping[str, Any],
        params: Mapping[str, Any],
        texts: Mapping[str, str],
        files: ProgramFiles,
    ) -> dict[str, Any]:
        """Give the recipe's arguments for one trial. `texts` are parameters as they were typed."""
        words = {path: texts[path] if path in texts else fill_text(value) for path, value in flat(params).items()}
        filled = tuple(fill_some(word, words, PLACES) for word in self.argv)
        return {
            **settings,
            "argv": filled,
            "params": dict(params),
            "folder": self.folder,
            **self.today(files.of(filled, settings.get("outputs", ()))),
        }

    def today(self, code: Mapping[str, str]) -> dict[str, Any]:
        """Give those arguments that do not depend on what was typed, but on how things are."""
        return {
            "code": code,
            "machine_gpus": self.gpus,
            "machine_cpus": max(1, self.capacity.cpu // self.at_once),
        }

    def name(self) -> str:
        """Give what a job of this program is called."""
        return program_name(self.argv)

    def family(self) -> Digest:
        """Give what sweeps of this program have in common."""
        return digest_value("sweep-family", [list(self.argv), self.folder])


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give the leaves of nested values by their dotted paths."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def only_params(paths: Iterable[str], declared: Container[str]) -> list[str]:
    """Return the dotted paths that the recipe does not declare: those of the program's parameters."""
    return [path for path in paths if path not in declared and path.partition(".")[0] not in declared]


def split(values: Mapping[str, Any], declared: Container[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give what the recipe declares, and the rest: the program's parameters."""
    settings = {name: value for name, value in values.items() if name in declared}
    return settings, {name: value for name, value in values.items() if name not in declared}


def _setting_as_place(place: str) -> Fault:
    hint = f"set a parameter as well: x=VALUE before --, {{x}} after it; or write {{{{{place}}}}} for plain braces"
    return Fault(f"{{{place}}}", "is a setting of Stoker's own, not a parameter of the program", hint)
