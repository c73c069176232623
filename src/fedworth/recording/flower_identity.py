"""Who a Flower client is: what its mod says, and where the server finds it.

A reply of the Message API gets a record of its own. Of an old client's answer (`NumPyClient`) only the metrics reach
the server's strategy, so there the name is one metric more; where there are no mods (`start_client`), a client puts it
into its metrics itself. Either is taken out again before a strategy sees it.
"""

import logging
from typing import Any

try:
    from flwr.app import ConfigRecord
except ImportError:  # before Flower 1.19
    from flwr.common import ConfigsRecord as ConfigRecord

log = logging.getLogger("fedworth")

IDENTITY = "fedworth.identity"
NAME_METRIC = "fedworth.client"
FIT_METRICS = "fitres.metrics"
"""Where Flower keeps the metrics of an old client's answer."""


def identity(message: Any, context: Any, call_next: Any) -> Any:
    """Client mod: say in every reply who this client is: `client` of the node's config, or else its partition.

    A node without either says nothing, and goes by its node id. Whatever goes wrong here, the reply is sent.
    """
    reply = call_next(message, context)
    try:
        _say_who(reply, context.node_config)
    except Exception as error:
        log.warning("fedworth: this client could not say who it is (%s: %s)", type(error).__name__, error)
    return reply


def _say_who(reply: Any, config: Any) -> None:
    if "client" not in config and "partition-id" not in config:
        log.warning("fedworth: this client has no name; start its SuperNode with --node-config 'client=\"my-name\"'")
    elif reply.has_content():
        name = str(config["client"] if "client" in config else f"partition-{config['partition-id']}")
        records = config_records(reply.content)
        if FIT_METRICS in records:
            records[FIT_METRICS][NAME_METRIC] = name
        else:
            records[IDENTITY] = ConfigRecord({"client": name})


def config_records(content: Any) -> Any:
    """The config records of a message, by their name; Flower has renamed the property."""
    return content.config_records if hasattr(content, "config_records") else content.configs_records


def name_taken_from(content: Any) -> str | None:
    """Who a reply says that it is from; the reply does not say it any more."""
    records = config_records(content)
    if IDENTITY in records:
        return str(records.pop(IDENTITY)["client"])
    if NAME_METRIC in records.get(FIT_METRICS, {}):
        return str(records[FIT_METRICS].pop(NAME_METRIC))
    return None
