"""The name of a Flower client: how its mod says it, and where the server finds it.

A reply of the Message API gets a record of its own. Of an old client's answer (`NumPyClient`) only the metrics reach
the server's strategy, so the name is a metric there. A client without mods (`start_client`) puts it into its metrics
itself. The server removes the name before a strategy sees it.
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
FIT_METRICS = "fitres.metrics"  # where Flower keeps the metrics of an old client's answer

SAMPLES = "num-examples"
"""The metric in which Flower's clients report their number of samples; any other is a weight, whole or not."""


def identity(message: Any, context: Any, call_next: Any) -> Any:
    """Client mod that adds the client's name to every reply: `client` of the node's config, or else its partition.

    A node without either goes by its node id. No error in this mod keeps the reply from being sent.
    """
    reply = call_next(message, context)
    try:
        _add_name(reply, context.node_config)
    except Exception as error:
        log.warning("fedworth: this client could not say its name (%s: %s)", type(error).__name__, error)
    return reply


def _add_name(reply: Any, config: Any) -> None:
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
    """The config records of a message by name; Flower has renamed the property."""
    return content.config_records if hasattr(content, "config_records") else content.configs_records


def name_taken_from(content: Any) -> str | None:
    """The name in a reply, which is removed from it."""
    records = config_records(content)
    if IDENTITY in records:
        return str(records.pop(IDENTITY)["client"])
    if NAME_METRIC in records.get(FIT_METRICS, {}):
        return str(records[FIT_METRICS].pop(NAME_METRIC))
    return None
