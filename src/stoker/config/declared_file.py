"""Reading a file that declares things: a cluster file or a manifest.

They may be larger than a configuration: ten thousand machines with two devices each are 350,000 values of YAML.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from stoker.config.config_file import read_config
from stoker.config.fields import Reading
from stoker.config.located import Located
from stoker.model.errors import Faults
from stoker.model.faults import Fault

T = TypeVar("T")

MOST_DECLARED: Final = 500_000
"""Values in one file, each alias counted with all that it stands for."""


def read_as(what: str, name: str, path: str, make: Callable[[Reading, Located | None], T]) -> T:
    """Read a file that is to be such a thing, and make it of its tree.

    `make` raises `Faults`. It is given no tree if the file can't be read to its end; the faults say why. A file that is
    not there, may not be read or is too large is an error at once.
    """
    try:
        return make(*_opened(what, name, path, is_placed=False))
    except Faults:
        if not path.endswith(".toml"):
            raise
    # Now there is something to point at.
    return make(*_opened(what, name, path, is_placed=True))


def _opened(what: str, name: str, path: str, *, is_placed: bool) -> tuple[Reading, Located | None]:
    faults: list[Fault] = []
    source, tree = read_config(name, path, faults, what=what, most_values=MOST_DECLARED, is_placed=is_placed)
    is_torn = bool(faults) and not source.text
    return Reading(source, faults), None if is_torn else tree
