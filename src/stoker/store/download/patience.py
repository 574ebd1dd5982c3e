"""How patient a download is. What a single wait for a server may take is the transport's (`HttpSettings`)."""

from __future__ import annotations

from stoker.model.frozen import frozen


@frozen
class Patience:
    """When to give up, and when to give up on a connection that is too slow."""

    attempts: int | None = None
    """Consecutive attempts without a new byte, the first included. `None`: `no_progress_s` alone bounds an outage."""
    unusable_attempts: int = 3
    """Without `attempts`: consecutive failures that are no outage, as answers that can't be used. They may last."""
    no_progress_s: float = 1800.0
    """Give up when no byte came for so long, over all attempts and pauses."""
    slow_bytes_per_s: int = 1024
    slow_s: float = 60.0
    """Fewer bytes a second than that, for so long: reconnect."""
    lock_wait_s: float = 10.0
    longest_pause_s: float = 30.0
    longest_retry_after_s: float = 3600.0
