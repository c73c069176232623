"""Ed25519 keys as OpenSSL writes them."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def write_keys(folder: Path, name: str) -> tuple[str, str]:
    """A private key and its public one; the name decides which."""
    key = Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32))
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(to.Encoding.PEM, to.PublicFormat.SubjectPublicKeyInfo))
    return str(private), str(public)
