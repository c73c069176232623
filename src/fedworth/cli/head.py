"""The options of verify about a ledger's head: hold it against one kept elsewhere, sign it, check a signature."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.errors import LedgerError, UsageError

if TYPE_CHECKING:
    from fedworth.ledger.ledger import Ledger
    from fedworth.ledger.manifest import LedgerHead


def add_head_options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    group = parser.add_argument_group("head, the hash that stands for every byte so far")
    group.add_argument("--head", metavar="HASH", help="one kept elsewhere: an error unless the ledger has passed it")
    group.add_argument("--sign", type=Path, metavar="KEY", help="sign the head with this Ed25519 key (PEM)")
    group.add_argument(
        "--signature", type=Path, metavar="FILE", help="with --sign: the file to write; else one to be checked"
    )
    group.add_argument("--public-key", type=Path, metavar="FILE", help="whose signature it should be (PEM)")


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is read."""
    if args.sign is not None and args.signature is None:
        raise UsageError("--sign: expected --signature FILE beside it, the file to write")
    if args.sign is not None and args.public_key is not None:
        raise UsageError("--sign and --public-key: sign first, and check the signature with a second command")
    if args.sign is None and (args.signature is None) != (args.public_key is None):
        raise UsageError("--signature and --public-key: expected both, to check whose signature it is")


def check_head(args: argparse.Namespace, ledger: "Ledger") -> list[str]:
    """Hold the ledger against the heads that were given, sign its own if asked; what was found, in sentences."""
    from fedworth.ledger.manifest import LedgerHead, find_head, parse_head

    said = []
    if args.head is not None:
        said.append(_passed(find_head(ledger.folder, parse_head(args.head)), ledger, "the head given"))
    if args.sign is not None:
        from fedworth.ledger.signature import sign_head

        sign_head(LedgerHead(ledger.chain, ledger.n_rounds), args.sign, args.signature)
        said.append(f"head signed: {args.signature}")
    elif args.signature is not None:
        from fedworth.ledger.signature import signed_head

        head = signed_head(args.signature, args.public_key)
        passed = find_head(ledger.folder, head.chain)
        if passed.n_rounds != head.n_rounds:
            found = f"{args.signature}: signed as the head of {head.n_rounds} rounds"
            raise LedgerError(f"{found}, and it is that of {passed.n_rounds}; ask who signed it")
        said.append(_passed(passed, ledger, "the head signed"))
    return said


def _passed(head: "LedgerHead", ledger: "Ledger", which: str) -> str:
    if head.chain == ledger.chain:
        return f"{which} is this ledger's: nothing was added or removed since"
    return f"{which} is this ledger's after {head.n_rounds} rounds; they are as they were, and more was added since"
