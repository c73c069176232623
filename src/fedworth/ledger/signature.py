"""Signatures of a ledger's head with an Ed25519 key, by which a coordinator vouches for the rounds so far.

    {"head": "…64 hexadecimal digits…", "n_rounds": 40, "signature": "…base64…"}

The signed text is that of `message`. Keys are unencrypted PEM files, as OpenSSL writes them:

    openssl genpkey -algorithm ed25519 -out coordinator.key
    openssl pkey -in coordinator.key -pubout -out coordinator.pub

Needs the extra `sign` (the package `cryptography`).
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from fedworth.errors import LedgerError, UsageError
from fedworth.ledger.manifest import LedgerHead, parse_head
from fedworth.storage import read_bytes, read_json, refuse_unwritable, write_json

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
except ImportError as error:
    raise UsageError("signing a head needs the package cryptography: pip install 'fedworth[sign]'") from error

MAX_KEY_BYTES = 2**16


def message(head: LedgerHead) -> bytes:
    return f"fedworth ledger head 1\n{head.chain}\n{head.n_rounds}\n".encode()


def sign_head(head: LedgerHead, key: Path, out: Path) -> None:
    """Write the signature of a head with the private key at `key`."""
    refuse_unwritable(out, "a signature")
    private = _key(key, "private", Ed25519PrivateKey)
    signature = base64.b64encode(private.sign(message(head))).decode()
    write_json(out, {"head": head.chain, "n_rounds": head.n_rounds, "signature": signature})


def signed_head(path: Path, public_key: Path) -> LedgerHead:
    """The head in a signature file; an error unless the owner of the public key has signed it."""
    public = _key(public_key, "public", Ed25519PublicKey)
    head, signature = _read(path)
    try:
        public.verify(signature, message(head))
    except InvalidSignature:
        raise LedgerError(
            f"{path}: not signed by the owner of {public_key}, or changed since; do not trust this head"
        ) from None
    return head


def _read(path: Path) -> tuple[LedgerHead, bytes]:
    document = read_json(path)
    try:
        head = LedgerHead(parse_head(document["head"]), document["n_rounds"])
        if type(head.n_rounds) is not int:
            raise TypeError(f"n_rounds is {str(head.n_rounds)[:40]!r}, expected a whole number")
        return head, base64.b64decode(document["signature"], validate=True)
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error, UsageError) as error:
        raise LedgerError(f"{path}: not the signature of a head ({error}); expected what --sign writes") from None


def _key(path: Path, kind: str, type_: Any) -> Any:
    expected = f"expected a {kind} Ed25519 key in PEM, not encrypted"
    try:
        data = read_bytes(path, MAX_KEY_BYTES)
        found = load_pem_private_key(data, password=None) if kind == "private" else load_pem_public_key(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {expected}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError(f"{path}: not such a key; {expected}") from None
    if not isinstance(found, type_):
        raise UsageError(f"{path}: a key of another kind; {expected}")
    return found
