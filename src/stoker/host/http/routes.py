"""The way to a server: direct, over a Unix socket, handed on by a proxy, or through a tunnel that a proxy makes."""

from __future__ import annotations

from stoker.host.http.addresses import Origin
from stoker.host.http.proxies import Proxy
from stoker.model.frozen import frozen


@frozen
class Route:
    """A way to a server. Connections on the same way are interchangeable."""

    near: Origin
    """Whom we connect to: the server, or a proxy."""
    far: Origin | None = None
    """Whom a tunnel through the proxy leads to."""
    proxy: Proxy | None = None
    sockets: tuple[str, ...] = ()
    """Unix sockets of which one is connected to instead of `near`."""

    @property
    def is_forwarded(self) -> bool:
        """Whether requests are handed to the proxy itself, each with its whole address."""
        return self.proxy is not None and self.far is None

    @property
    def is_secure(self) -> bool:
        """Whether there is TLS anywhere on it."""
        return not self.sockets and (self.near.scheme == "https" or self.far is not None)


def route_to(origin: Origin, proxy: Proxy | None) -> Route:
    """Give the way to a server. Only https needs a tunnel: nobody on the way may read it."""
    if proxy is None:
        return Route(near=origin)
    return Route(near=proxy.origin, far=origin if origin.scheme == "https" else None, proxy=proxy)
