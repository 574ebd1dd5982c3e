"""Stoker keeps every machine you own busy training."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.client import Client as Client

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Give `Client` to whoever asks for it: nobody else pays for what it needs."""
    if name == "Client":
        from stoker.client import Client  # noqa: PLC0415 - it needs half of the house

        return Client
    message = f"module 'stoker' has no attribute {name!r}"
    raise AttributeError(message)
