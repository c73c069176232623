"""The server: a loop of its own, which trains a head on everyone's embeddings. One line records the federation."""

import logging
import time
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import nn

import fedworth.flower
from strips.task import N_CLIENTS, N_VALIDATION, WIDTH, digits, vertical

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, server = context.run_config, vertical()
    rate, timeout = float(config["learning-rate"]), float(config["timeout"])
    grid = fedworth.flower.record(grid, ledger=Path(str(config["ledger"])).expanduser(), vertical=server)
    labels = digits()[1][N_VALIDATION:]
    held = [torch.zeros(len(labels), WIDTH) for _ in range(N_CLIENTS)]  # the last embeddings of each client
    while len(list(grid.get_node_ids())) < N_CLIENTS:
        time.sleep(1)
    n_rounds = int(config["num-server-rounds"])
    for number in range(1, n_rounds + 1):
        logging.getLogger("flwr").info("ROUND %d/%d", number, n_rounds)
        asked = RecordDict({"config": ConfigRecord({"server-round": number})})
        messages = [Message(asked, dst_node_id=n, message_type="query.embed") for n in grid.get_node_ids()]
        node_of = {}
        for reply in grid.send_and_receive(messages, timeout=timeout):
            if not reply.has_error():
                index = int(reply.content["strip"]["index"])
                held[index] = torch.from_numpy(reply.content["training"]["embedding"].numpy().copy())
                node_of[index] = reply.metadata.src_node_id
        gradients = learn(server.head, held, labels, rate)
        grid.send_and_receive(
            [
                Message(
                    RecordDict({"gradients": ArrayRecord({"embedding": Array(gradients[index].numpy())})}),
                    dst_node_id=node,
                    message_type="train.gradients",
                )
                for index, node in node_of.items()
            ],
            timeout=timeout,
        )
    grid.close()


def learn(head: nn.Module, held: list[torch.Tensor], labels: torch.Tensor, rate: float) -> list[torch.Tensor]:
    """Take a step of the head; the gradients of the loss in each client's embeddings."""
    parts = [embedding.clone().requires_grad_() for embedding in held]
    loss = nn.functional.cross_entropy(head(torch.cat(parts, dim=1)), labels)
    parameters = list(head.parameters())
    steps = torch.autograd.grad(loss, [*parameters, *parts])
    for parameter, step in zip(parameters, steps, strict=False):
        parameter.data -= rate * step
    return list(steps[len(parameters) :])
