"""For users of Flower: `record` a grid on the server, put `identity` into the client's mods."""

try:
    from fedworth.federation.live.flower import RecordingGrid, identity, record
except ImportError as error:  # pragma: no cover - without the extra
    raise ImportError(f"{error}; install Flower beside fedworth: pip install 'fedworth[flower]'") from error

__all__ = ["RecordingGrid", "identity", "record"]
