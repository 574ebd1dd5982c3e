"""Stoker keeps every machine you own busy training."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.client import Client as Client

__version__ = "0.2.0.dev0"


def __getattr__(name: str) -> object:
    """Return `Client`, imported on first use: it needs the libraries of `stoker[fleet]`."""
    if name == "Client":
        try:
            from stoker.client import Client  # noqa: PLC0415 - other imports of `stoker` do without it
        except ModuleNotFoundError as error:
            from stoker.host.install import missing_extra  # noqa: PLC0415 - for the message alone

            missing = missing_extra(error)
            if missing is None:
                raise
            message = f"stoker.Client: {missing}; install it: {missing.hint}"
            raise ImportError(message) from error
        return Client
    message = f"module 'stoker' has no attribute {name!r}"
    raise AttributeError(message)
