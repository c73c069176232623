"""A vertical Flower app: embeddings answer one message, another one brings gradients, the server keeps the head."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import fedworth.flower
from fedworth import Federation, Vertical, WorkSettings
from fedworth.errors import UsageError
from tests.recording.flower.in_process import InProcessGrid

N_CLIENTS, N_SAMPLES, N_ROUNDS = 3, 40, 4
LABELS = torch.arange(N_SAMPLES) % 2
FEATURES = [
    torch.randn(N_SAMPLES, 3, generator=torch.Generator().manual_seed(k)) + 0.3 * k * LABELS[:, None] for k in range(3)
]
PLAIN = WorkSettings(cache=False, n_threads=1)


def app(bottoms, *, is_batch):
    """Clients that answer with embeddings, keep their bottoms, and step by the gradients that the server sends."""
    made = ClientApp(mods=[fedworth.flower.identity])

    @made.query("embed")
    def embed(message, context):
        k = int(context.node_config["partition-id"])
        number = int(message.content["config"]["server-round"])
        samples = np.arange(N_SAMPLES) if number == 1 or not is_batch else np.arange(number, N_SAMPLES, 2)
        with torch.no_grad():
            arrays = {"embedding": Array(bottoms[k](FEATURES[k][samples]).numpy())}
        if len(samples) < N_SAMPLES:
            arrays["samples"] = Array(samples)
        return Message(RecordDict({"embeddings": ArrayRecord(arrays)}), reply_to=message)

    @made.train("apply")
    def apply(message, context):
        k = int(context.node_config["partition-id"])
        gradient = torch.from_numpy(message.content["gradients"]["0"].numpy().copy())
        bottoms[k].zero_grad()
        bottoms[k](FEATURES[k]).backward(gradient)
        with torch.no_grad():
            for parameter in bottoms[k].parameters():
                parameter -= 0.5 * parameter.grad
        return Message(RecordDict(), reply_to=message)

    return made


def federation(folder, *, is_batch=False, is_recorded=True):
    """Train; (the heads that each round's embeddings found, all embeddings of each round, the last head)."""
    torch.manual_seed(0)
    bottoms, head = [nn.Linear(3, 2) for _ in range(N_CLIENTS)], nn.Linear(2 * N_CLIENTS, 2)
    vertical = Vertical(head, LABELS, {f"partition-{k}": 2 for k in range(N_CLIENTS)})
    inner = InProcessGrid(app(bottoms, is_batch=is_batch), N_CLIENTS)
    grid = fedworth.flower.record(inner, ledger=folder, vertical=vertical) if is_recorded else inner
    heads, sent = [], []
    for number in range(1, N_ROUNDS + 1):
        nodes = sorted(grid.get_node_ids())
        config = RecordDict({"config": ConfigRecord({"server-round": number})})
        heads.append({name: tensor.clone() for name, tensor in head.state_dict().items()})
        sent.append([bottoms[k](FEATURES[k]).detach() for k in range(N_CLIENTS)])
        replies = grid.send_and_receive([Message(config, dst_node_id=n, message_type="query.embed") for n in nodes])
        assert all("embeddings" in reply.content for reply in replies)
        parts = [embedding.clone().requires_grad_() for embedding in sent[-1]]
        loss, own = nn.functional.cross_entropy(head(torch.cat(parts, dim=1)), LABELS), list(head.parameters())
        steps = torch.autograd.grad(loss, [*own, *parts])
        for parameter, step in zip(own, steps, strict=False):
            parameter.data -= 0.5 * step
        gradients = [RecordDict({"gradients": ArrayRecord([step.numpy()])}) for step in steps[len(own) :]]
        grid.send_and_receive(
            [Message(g, dst_node_id=n, message_type="train.apply") for g, n in zip(gradients, nodes, strict=True)]
        )
    if is_recorded:
        grid.close()
    return vertical, heads, sent, head.state_dict()


def test_embeddings_are_recorded_with_the_head_that_they_found(tmp_path):
    vertical, heads, sent, final = federation(tmp_path / "l")
    ledger = fedworth.Ledger.verify(tmp_path / "l")
    assert [entry.number for entry in ledger.entries] == [1, 2, 3, 4]  # gradients are no rounds
    for t in range(N_ROUNDS):
        recorded = ledger.open_round(t)
        assert all(torch.equal(recorded.global_model[name], tensor) for name, tensor in heads[t].items())
        assert all(torch.equal(recorded.client_models[k]["embedding"], sent[t][k]) for k in range(N_CLIENTS))
    assert all(torch.equal(ledger.final_model()[name], tensor) for name, tensor in final.items())
    assert Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv").values.sum() > 0


def test_recording_changes_nothing_in_the_training(tmp_path):
    recorded, plain = federation(tmp_path / "l"), federation(None, is_recorded=False)
    assert all(torch.equal(recorded[3][name], tensor) for name, tensor in plain[3].items())


def test_batches_are_recorded_with_their_samples(tmp_path):
    federation(tmp_path / "l", is_batch=True)
    sent = fedworth.Ledger.open(tmp_path / "l").open_round(1).client_models[0]
    assert sent["samples"].tolist() == list(range(2, N_SAMPLES, 2))


def test_what_cannot_be_recorded_is_refused(tmp_path):
    vertical = Vertical(nn.Linear(2, 2), LABELS, {"a": 1, "b": 1})
    grid = InProcessGrid(app([], is_batch=False), 1)
    with pytest.raises(UsageError, match="vertical"):
        fedworth.flower.record(grid, ledger=tmp_path / "l", vertical=vertical, hear_everyone=2)
