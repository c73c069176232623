"""A client: sends embeddings of its rows of pixels, and steps by the gradients that come back."""

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import fedworth.flower
from strips.task import bottom, strip

app = ClientApp(mods=[fedworth.flower.identity])


def index_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


def kept(context: Context) -> nn.Module:
    """This client's model as it was after the last message."""
    torch.set_num_threads(1)
    model = bottom(index_of(context))
    if "bottom" in context.state:
        model.load_state_dict(context.state["bottom"].to_torch_state_dict())
    return model


@app.query("embed")
def embed(message: Message, context: Context) -> Message:
    """Embeddings of the validation samples, to be recorded, and of the training samples, to learn from."""
    model = kept(context)
    with torch.no_grad():
        train, validation = (Array(model(pixels).numpy()) for pixels in strip(index_of(context)))
    reply = {
        "embeddings": ArrayRecord({"embedding": validation}),
        "training": ArrayRecord({"embedding": train}),
        "strip": ConfigRecord({"index": index_of(context)}),
    }
    return Message(RecordDict(reply), reply_to=message)


@app.train("gradients")
def step(message: Message, context: Context) -> Message:
    """A step by the gradient of the server's loss in this client's embeddings."""
    model = kept(context)
    gradient = torch.from_numpy(message.content["gradients"]["embedding"].numpy().copy())
    parameters, rate = list(model.parameters()), float(context.run_config["learning-rate"])
    embeddings = model(strip(index_of(context))[0])
    for parameter, change in zip(parameters, torch.autograd.grad(embeddings, parameters, gradient), strict=True):
        parameter.data -= rate * change
    context.state["bottom"] = ArrayRecord(model.state_dict())
    return Message(RecordDict(), reply_to=message)
