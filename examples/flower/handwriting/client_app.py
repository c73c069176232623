"""A client: trains on its part of the images. One line makes it say who it is."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedworth.flower
from handwriting.task import build, part, train

app = ClientApp(mods=[fedworth.flower.identity])


@app.train()
def train_here(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = build()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = context.run_config
    data = part(int(context.node_config["partition-id"]), int(config["n-clients"]))
    loss = train(model, data, float(config["learning-rate"]))
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(data[1])})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )
