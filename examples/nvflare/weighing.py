"""A controller that acts on values while it trains: NVFlare's FedAvg, which weighs sites by their worth so far."""

from typing import Any

from fedworth.nvflare import EveryoneHeardFedAvg
from task import task


class WeighingFedAvg(EveryoneHeardFedAvg):
    """Before each round, weighs sites by their value so far; who has done harm counts a hundredth of the best.

    The recorder is the server's component `fedworth`; it sees `aggregation_weights`, and the ledger keeps them.
    """

    task: Any = None  # made once, on the server: what was found out about its module serves all rounds

    def sample_clients(self, num_clients: int | None = None) -> Any:
        self.task = self.task or task()
        values = self.fl_ctx.get_engine().get_component("fedworth").values(self.task)
        best = max(values.values(), default=0.0)
        if best > 0:
            self.aggregation_weights = {site: max(worth / best, 0.01) for site, worth in values.items()}
        return super().sample_clients(num_clients)
