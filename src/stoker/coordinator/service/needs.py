"""What each route needs: a role of people's, a machine, either of them, or nothing.

Whatever changes something and stands in no line here needs an admin: a route that was forgotten is closed, not open.
"""

from __future__ import annotations

import re

from stoker.model.frozen import frozen_by_position
from stoker.model.principals import Role


@frozen_by_position
class Need:
    """Who may ask."""

    role: Role | None = None
    """The least of people's roles; none: no person may."""
    is_workers: bool = False
    """A machine may, too."""
    is_open: bool = False
    """Everybody may."""
    is_any_version: bool = False
    """Whatever protocol they speak."""


_ANYBODY = Need(is_open=True)
_WORKERS = Need(is_workers=True)
_WORKERS_OF_ANY_VERSION = Need(is_workers=True, is_any_version=True)
_SUBMITTERS_AND_WORKERS = Need(Role.SUBMIT, is_workers=True)
_READERS_AND_WORKERS = Need(Role.READ, is_workers=True)
_BY_ROLE = {role: Need(role) for role in (Role.READ, Role.SUBMIT, Role.OPERATE, Role.ADMIN)}

_SYSTEM_A = re.compile(r"/v1/(?:job/.*|model/.*|workers|manifest/reload)", re.DOTALL)
_SYSTEM_A_READS = frozenset({"/v1/jobs", "/v1/workers"})

# The first that fits counts.
_TABLE: tuple[tuple[str, str, Need], ...] = (
    ("GET|HEAD", r"/v1/health", _ANYBODY),
    ("POST", r"/v1/join/(?:begin|finish)", _ANYBODY),
    ("POST", r"/v1/machines/[^/]+/report", _WORKERS_OF_ANY_VERSION),
    ("POST", r"/v1/(?:hello|claims|renewals|sources|certificates/renew)", _WORKERS),
    ("POST|PUT", r"/v1/attempts/.*", _WORKERS),
    ("POST", r"/v1/job/(?:claim|[^/]+/(?:heartbeat|complete|fail))", _WORKERS),
    ("PUT", r"/v1/model/.*", _WORKERS),
    ("POST|PATCH", r"/v1/uploads(?:/.*)?", _SUBMITTERS_AND_WORKERS),
    ("POST", r"/v1/contents/fetch", _READERS_AND_WORKERS),
    ("GET|HEAD", r"/v1/(?:objects|trees)/.*", _READERS_AND_WORKERS),
    # How many jobs wait: a worker that ends when nothing is left asks for it.
    ("GET", r"/v1/status", _READERS_AND_WORKERS),
    # How much of each file lies there: whoever mirrors its attempt goes on from that.
    ("GET", r"/v1/jobs/[^/]+/files", _READERS_AND_WORKERS),
    # Whom a machine may give trees to.
    ("GET", r"/v1/certificates/live", _READERS_AND_WORKERS),
    ("GET|HEAD", r"/v1/(?:tokens|hooks|history)(?:/.*)?", _BY_ROLE[Role.ADMIN]),
    ("GET|HEAD", r"/v1/(?:invites|exec)(?:/.*)?", _BY_ROLE[Role.OPERATE]),
    ("GET|HEAD", r".*", _BY_ROLE[Role.READ]),
    # Of jobs alone: the route itself asks for more where it is for everything.
    ("POST", r"/v1/hooks", _BY_ROLE[Role.SUBMIT]),
    ("POST", r"/v1/(?:jobs|contents(?:/.*)?)", _BY_ROLE[Role.SUBMIT]),
    ("POST|PUT", r"/v1/trees/.*", _BY_ROLE[Role.SUBMIT]),
    # Of one's own jobs: the queue refuses others' to whoever has no more than this.
    ("POST", r"/v1/jobs/(?:[^/]+/)?(?:cancel|requeue|priority)", _BY_ROLE[Role.SUBMIT]),
    ("POST", r"/v1/jobs/.*", _BY_ROLE[Role.OPERATE]),
    ("POST", r"/v1/job/[^/]+/(?:cancel|requeue)", _BY_ROLE[Role.OPERATE]),
    ("POST|DELETE", r"/v1/(?:machines|exec|invites|certificates)(?:/.*)?", _BY_ROLE[Role.OPERATE]),
    ("POST", r"/v1/(?:reload|manifest/reload|prune)", _BY_ROLE[Role.OPERATE]),
)
_COMPILED = tuple(
    (frozenset(methods.split("|")), re.compile(pattern, re.DOTALL), need) for methods, pattern, need in _TABLE
)


def need_of(method: str, path: str) -> Need:
    """Say what a request needs."""
    for methods, pattern, need in _COMPILED:
        if method in methods and pattern.fullmatch(path):
            return need
    return _BY_ROLE[Role.ADMIN]


def is_system_a(path: str) -> bool:
    """Return True for a route that only programs of system A use."""
    return _SYSTEM_A.fullmatch(path) is not None


def is_free_in_system_a(method: str, path: str) -> bool:
    """Return True for a route that system A's workers and scripts ask without credentials."""
    return (is_system_a(path) and need_of(method, path).is_workers) or (method == "GET" and path in _SYSTEM_A_READS)
