"""The settings: where things lie and what they are called, as the environment says."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.text import parse_duration

_LINGER_S = 2.0
_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
_TRITON = "TRITON_CACHE_DIR"


@frozen
class AppSettings:
    """Where things lie and what they are called."""

    home: str
    folder: str
    """Where the command was given."""
    environment: Mapping[str, str]

    @property
    def store(self) -> str:
        return os.path.join(self.home, "store")

    @property
    def runs(self) -> str:
        return os.path.join(self.home, "runs")

    @property
    def state(self) -> str:
        return os.path.join(self.home, "state")

    @property
    def peaks(self) -> str:
        """What trainings took of devices beside what was foretold."""
        return os.path.join(self.state, "vram.json")

    @property
    def scratch(self) -> str:
        return os.path.join(self.home, "scratch")

    @property
    def envs(self) -> str:
        """Python environments that jobs run in."""
        return os.path.join(self.home, "envs")

    @property
    def kernels(self) -> str:
        """What was compiled for devices, kept from one run to the next."""
        return os.path.join(self.home, "kernels")

    @property
    def fleet(self) -> str:
        """What a coordinator of this home keeps."""
        return os.path.join(self.home, "fleet")

    @property
    def queue(self) -> str:
        """The address of its database, unless another one is named."""
        return f"sqlite:///{os.path.join(self.fleet, 'queue.db')}"

    @property
    def companies(self) -> str:
        """Where processes that work for several runs are found: STOKER_RUNTIME, else where this session keeps such."""
        named = self.environment.get("STOKER_RUNTIME", "")
        if named:
            return os.path.abspath(os.path.join(self.folder, os.path.expanduser(named)))
        session = self.environment.get("XDG_RUNTIME_DIR", "")
        if session and _is_own(session):
            return os.path.join(session, "stoker-companies")
        from tempfile import gettempdir

        return os.path.join(gettempdir(), f"stoker-companies-{os.geteuid()}")

    @property
    def company_linger_s(self) -> float:
        """How long such a process waits for others when nobody is left: STOKER_COMPANY_LINGER, else two seconds."""
        text = self.environment.get("STOKER_COMPANY_LINGER", "")
        try:
            return parse_duration(text) if text else _LINGER_S
        except ValueError as error:
            hint = "a time, as 2s or 0.5: STOKER_COMPANY_LINGER=10s"
            raise BadInput(f"STOKER_COMPANY_LINGER={text!r} is no time: {error}", hint=hint) from None

    @property
    def out(self) -> str:
        return os.path.join(self.folder, "stoker-out")


def with_kernels_kept(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return an environment in which torch and Triton keep what they compile below a folder, unless it says where.

    Left to itself torch keeps it in a temporary folder, which is gone after the machine's next start.
    """
    if environment.get(_INDUCTOR):
        # Triton's part goes below the folder that is named, or wherever it says itself.
        return dict(environment)
    triton = environment.get(_TRITON) or os.path.join(folder, "triton")
    return {**environment, _INDUCTOR: os.path.join(folder, "inductor"), _TRITON: triton}


def _is_own(folder: str) -> bool:
    """Return whether a folder is this user's; `su` and `sudo` leave another's in the environment."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def read_settings(environment: Mapping[str, str], folder: str) -> AppSettings:
    """Read the settings: STOKER_HOME, else the data folder that XDG names, else its default."""
    home = environment.get("STOKER_HOME", "")
    if not home:
        data = environment.get("XDG_DATA_HOME", "") or os.path.join(os.path.expanduser("~"), ".local", "share")
        home = os.path.join(data, "stoker")
    return AppSettings(
        home=os.path.abspath(os.path.join(folder, os.path.expanduser(home))), folder=folder, environment=environment
    )
