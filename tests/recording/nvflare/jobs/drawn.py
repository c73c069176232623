"""A site in a few lines of numpy, and a first model: what a ScatterAndGather job needs besides NVFlare's own parts."""

from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AlgorithmConstants, AppConstants


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
        controls = {name: np.full_like(w, 0.01 * k) for name, w in before.items()}  # what Scaffold asks for besides
        meta = {FLMetaKey.NUM_STEPS_CURRENT_ROUND: 10 * k, AlgorithmConstants.SCAFFOLD_CTRL_DIFF: controls}
        return DXO(kind, data, meta).to_shareable()


class Middle(Aggregator):  # type: ignore[misc]
    """A server's own aggregator: the middle one of each number."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Any]] = []

    def accept(self, shareable: Any, fl_ctx: Any) -> bool:  # noqa: ARG002
        self.heard.append(from_shareable(shareable).data)
        return True

    def aggregate(self, fl_ctx: Any) -> Any:  # noqa: ARG002
        made = {name: np.median([each[name] for each in self.heard], axis=0) for name in self.heard[0]}
        self.heard = []
        return DXO(DataKind.WEIGHTS, made).to_shareable()


class First(ModelPersistor):  # type: ignore[misc]
    """Gives the first model, and keeps none."""

    def load_model(self, fl_ctx: Any) -> Any:  # noqa: ARG002
        weights = {"weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(3, np.float32)}
        return make_model_learnable(weights, {})

    def save_model(self, model: Any, fl_ctx: Any) -> None:
        """Nothing: the recorder keeps it."""
