"""A controller that acts on values while it trains: NVFlare's FedAvg, which stops asking sites that do harm."""

from typing import Any

from fedworth.nvflare import EveryoneHeardFedAvg
from task import task


class DroppingFedAvg(EveryoneHeardFedAvg):
    """Leaves out sites whose value so far is below 0, unless nobody would be left.

    The recorder is the server's component `fedworth`.
    """

    task: Any = None  # made once, on the server: what was found out about its module serves all rounds

    def sample_clients(self, num_clients: int | None = None) -> Any:
        self.task = self.task or task()
        values = self.fl_ctx.get_engine().get_component("fedworth").values(self.task)
        sites = super().sample_clients(num_clients)
        return [site for site in sites if values.get(site, 0.0) >= 0] or sites
