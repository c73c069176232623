"""A site in a few lines of numpy, and a first model: what a ScatterAndGather job needs besides NVFlare's own parts."""

from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AppConstants


class Drawn(Executor):  # type: ignore[misc]
    """Draws towards a point of its own; one site may fail from the second round on."""

    def __init__(self, fails: str = "", diff: bool = False) -> None:
        super().__init__()
        self.fails, self.diff = fails, diff

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:  # noqa: ARG002
        site = fl_ctx.get_identity_name()
        if site == self.fails and shareable.get_header(AppConstants.CURRENT_ROUND) > 0:
            raise RuntimeError("out of memory")
        k = int(site.removeprefix("site-"))
        before = from_shareable(shareable).data
        after = {name: w + 0.3 * (k - w) for name, w in before.items()}
        data = {name: after[name] - before[name] for name in after} if self.diff else after
        kind = DataKind.WEIGHT_DIFF if self.diff else DataKind.WEIGHTS
        return DXO(kind, data, {FLMetaKey.NUM_STEPS_CURRENT_ROUND: 10 * k}).to_shareable()


class First(ModelPersistor):  # type: ignore[misc]
    """Gives the first model, and keeps none."""

    def load_model(self, fl_ctx: Any) -> Any:  # noqa: ARG002
        weights = {"weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(3, np.float32)}
        return make_model_learnable(weights, {})

    def save_model(self, model: Any, fl_ctx: Any) -> None:
        """Nothing: the recorder keeps it."""
