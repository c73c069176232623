"""A site: trains on its own part of the digits, and sends its model, or what it changed of it (`--diff`)."""

import argparse

import nvflare.client as flare
import torch

from task import build, part, train

parser = argparse.ArgumentParser()
parser.add_argument("--n-sites", type=int, default=3)
parser.add_argument("--diff", action="store_true")
parser.add_argument("--wrong", default="")
args = parser.parse_args()

torch.set_num_threads(1)
flare.init()
data = part(int(flare.get_site_name().removeprefix("site-")) - 1, args.n_sites)
if flare.get_site_name() == args.wrong:
    data = data[0], (data[1] + 1) % 10
while flare.is_running():
    received = flare.receive()
    before = {name: torch.as_tensor(array) for name, array in received.params.items()}
    model = build()
    model.load_state_dict(before)
    loss = train(model, data)
    after = {name: tensor - before[name] if args.diff else tensor for name, tensor in model.state_dict().items()}
    flare.send(
        flare.FLModel(
            params={name: tensor.numpy() for name, tensor in after.items()},
            params_type=flare.ParamsType.DIFF if args.diff else flare.ParamsType.FULL,
            metrics={"loss": loss},
            meta={"NUM_STEPS_CURRENT_ROUND": len(data[1])},
        )
    )
