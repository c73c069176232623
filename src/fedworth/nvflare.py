"""For users of NVFlare: give the server a `RoundRecorder`."""

try:
    from fedworth.federation.live.nvflare import EveryoneHeardFedAvg, RoundRecorder
except ImportError as error:  # pragma: no cover - without the extra
    raise ImportError(f"{error}; install NVFlare beside fedworth: pip install 'fedworth[nvflare]'") from error

__all__ = ["EveryoneHeardFedAvg", "RoundRecorder"]
