"""Recording for users of Flower: `record` wraps a grid or an old strategy, `identity` is the mod for clients."""

try:
    from fedworth.recording.flower import record
    from fedworth.recording.flower_identity import identity
except ImportError as error:  # pragma: no cover - without the extra
    raise ImportError(f"{error}; install Flower beside fedworth: pip install 'fedworth[flower]'") from error

__all__ = ["identity", "record"]
