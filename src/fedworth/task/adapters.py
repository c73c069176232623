"""Which of a module's tensors a federation exchanges: all of them, only adapters (LoRA), or only a head.

PEFT's state dicts leave out the name of the adapter, and say nothing of the copy of a head that is trained:

    lora_A.weight        for the module's lora_A.default.weight
    classifier.weight    for classifier.modules_to_save.default.weight; classifier.original_module is not used any more

So a name that the module does not know stands for the module's only name that is longer by one part, or by
`modules_to_save` and the part after it. This is a guess, so it is tested: a tensor that moves no output is refused.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Set

import torch
from torch import nn

from fedworth.errors import ModelError, UsageError
from fedworth.ledger.model import Model

Exchanged = str | Collection[str] | None
"""A part of names, names or parts, or the names in the ledger with the module's names for them; None: all tensors."""

SAVED, REPLACED = "modules_to_save", "original_module"  # PEFT's names for the trained copy of a head, and for the head
NOISE = (1.0, 0.1)  # in parts of a tensor's size; the second draw is for modules that the first one saturates
N_TRIED = 4  # test samples


def exchanged_names(exchanged: str | Collection[str], own: Mapping[str, object]) -> list[str]:
    """The module's names of the exchanged tensors, in the order of `exchanged`, whose items are names or parts of them.

    A part stands for all names that contain it, but not for the head that PEFT has replaced.
    """
    listed = (exchanged,) if isinstance(exchanged, str) else tuple(exchanged)
    names = {} if isinstance(exchanged, str) else own_names(listed, own, exchanged)
    found: dict[str, None] = {}
    for item in listed:
        is_part = item not in names and not isinstance(exchanged, Mapping)
        held = [name for name in own if item in name and REPLACED not in name.split(".")] if is_part else [names[item]]
        unknown = [name for name in held if name not in own]
        if not held or unknown:
            raise UsageError(
                f"exchanged: {(unknown or [item])[0]!r} is no tensor of the module, nor part of the name of one"
            )
        found.update(dict.fromkeys(held))
    if not found:
        raise UsageError("exchanged: names no tensor of the module; name some")
    # Arrays without names are those of the list, in its order; a set has none, so it takes the module's.
    return [name for name in own if name in found] if isinstance(exchanged, Set) else list(found)


def peft_names(module: nn.Module) -> dict[str, str] | None:
    """What PEFT's state dict calls the tensors that it exchanges, with the module's names; None without adapters.

    The module's name is that of the tensor with the same memory, so nothing is guessed.
    """
    adapters = getattr(module, "peft_config", None)
    if not adapters:
        return None
    from peft import get_peft_model_state_dict  # only who has adapters has PEFT

    active = next(iter(adapters)) if len(adapters) == 1 else module.active_adapter
    own = {tensor.data_ptr(): name for name, tensor in module.state_dict().items() if REPLACED not in name.split(".")}
    sent = get_peft_model_state_dict(module, adapter_name=active)
    unknown = [name for name, tensor in sent.items() if tensor.data_ptr() not in own]
    if unknown:
        raise UsageError(
            f"exchanged: PEFT's {unknown[0]!r} is no tensor of the module; give the names that the federation "
            "exchanges, or a dictionary from the ledger's names to the module's: exchanged=…"
        )
    return {name: own[tensor.data_ptr()] for name, tensor in sent.items()}


def renamed(model: Model, own: Mapping[str, object], exchanged: Exchanged) -> Model:
    """The model under the module's names; tensors that the module does not know keep their names."""
    names = own_names(model, own, exchanged)
    return {names.get(name, name): tensor for name, tensor in model.items()}


def own_names(names: Iterable[str], own: Mapping[str, object], exchanged: Exchanged) -> dict[str, str]:
    """The module's names of these tensors: as the user says, or where there is exactly one."""
    if isinstance(exchanged, Mapping):
        return {name: exchanged[name] for name in names if name in exchanged}
    shorter: dict[str, list[str]] = {}
    for name in own:
        parts = name.split(".")
        for place, part in enumerate(parts):
            after = place + (2 if part == SAVED else 1)
            if REPLACED not in parts:
                shorter.setdefault(".".join(parts[:place] + parts[after:]), []).append(name)
    found = {}
    for name in names:
        longer = [name] if name in own else shorter.get(name, [])
        if len(longer) == 1:
            found[name] = longer[0]
    return found


def refuse_unused(
    outputs: Callable[[Model], torch.Tensor], model: Model, recorded: Iterable[str], exchanged: Exchanged
) -> tuple[str, ...]:
    """Refuse a tensor that was found by a guess and moves no output; notes on others that move none.

    Args:
        outputs: The module's outputs for a model, on a few samples.
        model: A model under the module's names.
        recorded: The ledger's names for its tensors.
        exchanged: What the task says of them.
    """
    unused = _without_effect(outputs, model)
    listed = () if exchanged is None or isinstance(exchanged, str) else exchanged
    guessed = {} if isinstance(exchanged, Mapping) else own_names((*recorded, *listed), model, exchanged)
    for name, own in guessed.items():
        if own in unused and own != name:
            raise ModelError(
                f"exchanged: {name!r} was taken for {own!r} of the module, and changing that tensor "
                "changes no output, so values would miss what clients learnt in it; give all exchanged names with the "
                f"module's own: Task(…, exchanged={{{name!r}: '…', …}})"
            )
    n_tried = sum(_can_move(tensor) for tensor in model.values())
    if unused and len(unused) == n_tried:
        raise ModelError(
            f"exchanged: changing {', '.join(map(repr, unused[:5]))} changes no output of the module, so every value "
            "would be 0; check that exchanged names the tensors which the module computes with"
        )
    if not unused:
        return ()
    shown = ", ".join(unused[:5]) + (", …" if len(unused) > 5 else "")
    return (
        f"{len(unused)} of {n_tried} exchanged tensors change no output of the module ({shown}): what clients learnt "
        "in them has no value; this is right only if the module does not use them",
    )


def moved(model: Model, size: float, seed: int) -> Model:
    """The model with noise in parts of its tensors' size; what is positive stays positive, as it may be a variance."""
    generator = torch.Generator().manual_seed(seed)

    def noisy(tensor: torch.Tensor) -> torch.Tensor:
        if not _can_move(tensor):
            return tensor
        noise = size * torch.randn(tensor.shape, generator=generator).to(tensor)
        scale = tensor.abs().mean()
        return tensor * noise.exp() if bool((tensor > 0).all()) else tensor + noise * (scale if scale > 0 else 0.1)

    return {name: noisy(tensor) for name, tensor in model.items()}


def _without_effect(outputs: Callable[[Model], torch.Tensor], model: Model) -> list[str]:
    """The tensors that move no output when they are changed alone, beside others that are changed too.

    The others are changed because one tensor may hide another, as LoRA's B does, which is 0 at first.
    """
    unused = [name for name, tensor in model.items() if _can_move(tensor)]
    for seed, size in enumerate(NOISE):
        start, other = moved(model, size, 2 * seed), moved(model, size, 2 * seed + 1)
        before = outputs(start)
        unused = [name for name in unused if torch.equal(before, outputs({**start, name: other[name]}))]
    return unused


def _can_move(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0  # a counter of batches moves nothing
