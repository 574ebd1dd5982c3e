"""Which coordinator is meant: the one that was named, else the environment's, else the one that serves this home."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.model.fleet_errors import NoCoordinator
from stoker.model.frozen import frozen
from stoker.wire.serve_file import living_coordinator, read_serve_file

COORDINATOR = "STOKER_COORDINATOR"
OPERATOR_TOKEN = "STOKER_OPERATOR_TOKEN"  # noqa: S105 - the variable's name
_PORT = 7717


@frozen
class Found:
    """A coordinator's address, and the token to show it."""

    url: str
    token: str
    how: str
    """What named it: `--at`, the variable, or the file of a coordinator that serves this home."""

    @property
    def is_named(self) -> bool:
        """Whether somebody named it, and did not merely have it running."""
        return self.how != "serve.json"


def find_coordinator(at: str, *, environment: Mapping[str, str], state: str) -> Found | None:
    """Give the coordinator that is meant, or nothing if none is known. Nobody is asked whether it answers."""
    here = living_coordinator(state)
    token = environment.get(OPERATOR_TOKEN, "").strip()
    named, how = (at, "--at") if at else (environment.get(COORDINATOR, "").strip(), COORDINATOR)
    if named:
        url = whole_address(named)
        # The token of this home's coordinator is shown to nobody else.
        is_here = here is not None and here.url.rstrip("/") == url.rstrip("/")
        return Found(url=url, token=token or (here.token() if here is not None and is_here else ""), how=how)
    if here is None:
        return None
    return Found(url=here.url, token=token or here.token(), how="serve.json")


def no_coordinator_known(state: str) -> NoCoordinator:
    """Make the error of a command that needs a coordinator where none is known, or where it is down."""
    if (gone := coordinator_gone(state)) is not None:
        hint = "`stoker serve` starts it again; --at URL or STOKER_COORDINATOR names another one"
        return NoCoordinator(f"the coordinator of this home ({gone}) is not running", hint=hint)
    hint = "`stoker serve` starts one here; --at URL or STOKER_COORDINATOR names one elsewhere"
    return NoCoordinator("no coordinator is known here", hint=hint)


def coordinator_gone(state: str) -> str | None:
    """Give where the coordinator of this home was, if there was one and it does not run now: its jobs wait for it."""
    found = read_serve_file(state)
    return found.url if found is not None and living_coordinator(state) is None else None


def whole_address(text: str) -> str:
    """Give an address with its scheme and port: `desk` is `http://desk:7717`."""
    if "://" in text:
        return text
    host, _, path = text.partition("/")
    has_port = host.rpartition(":")[2].isdigit() if not host.endswith("]") else False
    return f"http://{host}{'' if has_port else f':{_PORT}'}{f'/{path}' if path else ''}"
