"""Which of a module's tensors a federation exchanges: all of them, only adapters (LoRA), or only a head.

PEFT's state dicts leave out the name of the adapter: `lora_A.weight` where the module has `lora_A.default.weight`. So a
name that the module does not know stands for the module's only name that has one part more.
"""

from collections.abc import Collection, Iterable, Mapping

from fedworth.errors import UsageError
from fedworth.ledger.model import Model


def exchanged_names(exchanged: str | Collection[str], own: Mapping[str, object]) -> list[str]:
    """The module's names of the exchanged tensors: those that contain a string, or those listed."""
    if isinstance(exchanged, str):
        found = [name for name in own if exchanged in name]
        if not found:
            raise UsageError(f"exchanged={exchanged!r}: no tensor of the module has that in its name")
        return found
    names = own_names(exchanged, own)
    unknown = sorted(name for name in exchanged if name not in names)
    if unknown or not exchanged:
        shown = ", ".join(repr(name) for name in unknown[:5]) or "nothing"
        raise UsageError(f"exchanged: {shown} is no tensor of the module; name some that are")
    return [name for name in own if name in set(names.values())]


def renamed(model: Model, own: Mapping[str, object]) -> Model:
    """The model under the module's names; tensors that the module does not know keep their names."""
    names = own_names(model, own)
    return {names.get(name, name): tensor for name, tensor in model.items()}


def own_names(names: Iterable[str], own: Mapping[str, object]) -> dict[str, str]:
    """The module's names of these tensors, where there is exactly one."""
    shorter: dict[str, list[str]] = {}
    for name in own:
        parts = name.split(".")
        for place in range(len(parts)):
            shorter.setdefault(".".join(parts[:place] + parts[place + 1 :]), []).append(name)
    found = {}
    for name in names:
        longer = [name] if name in own else shorter.get(name, [])
        if len(longer) == 1:
            found[name] = longer[0]
    return found
