"""The proof that a replay's markers are its own.

A marker says how far a replay is, and is a message in a queue of the broker: a planted one could
make a replay send nothing and succeed. So each carries a proof of its replay's name and its place
(HMAC-SHA-256), made with a secret that only the replay's user has, in a file. There is one secret
for each name; a marker copied from one broker to another stays valid.
"""

import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from typing_extensions import override

from orthia.config.errors import ConfigurationError

_SECRET_BYTES: Final = 32
_HEX: Final = frozenset("0123456789abcdef")


def default_checkpoint(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the default file of the checkpoint of the replay ``name``."""
    state = environment.get("XDG_STATE_HOME") or Path("~").expanduser() / ".local" / "state"
    return Path(state) / "orthia" / "replay" / f"{name}.secret"


class Proofs:
    """Makes and checks the proofs of the markers of one name."""

    def __init__(self, file: Path, name: str, secret: bytes, *, is_new: bool) -> None:
        """``file`` keeps the secret; ``is_new`` says whether the secret was drawn just now."""
        self.file = file
        self.is_new = is_new
        """Whether no replay of this name has begun here, so that no marker can be its own."""
        self._name = name
        self.secret = secret
        """It can forge markers: for the tasks of this replay only."""

    def keep(self) -> None:
        """Write the secret to its file, before the first marker is sent; raises OSError."""

    def of(self, part: str) -> "Proofs":
        """Return the proofs for a part of this replay, which another process may send."""
        return Proofs(self.file, f"{self._name}.{part}", self.secret, is_new=self.is_new)

    def proof(self, place: int) -> str:
        """Return the proof for a marker of ``place``."""
        return hmac.digest(self.secret, f"{self._name}:{place}".encode(), "sha256").hex()

    def proves(self, place: str, proof: str) -> bool:
        """Return whether a replay with this secret wrote a marker with this ``place``."""
        if not (place.isascii() and place.isdecimal() and len(place) < 20):
            return False
        return hmac.compare_digest(self.proof(int(place)).encode(), proof.encode())


class Checkpoint(Proofs):
    """The secret of one replay, in a file of its user."""

    def __init__(self, file: Path, name: str) -> None:
        """Read the file, if it is there; raises ConfigurationError, OSError."""
        try:
            text = file.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            text = ""
        else:
            if len(text) != 2 * _SECRET_BYTES or not _HEX.issuperset(text):
                raise ConfigurationError(
                    f"{file} is not a checkpoint of a replay; expected {2 * _SECRET_BYTES}"
                    " hexadecimal digits. Restore its copy, or begin under another --name"
                )
        secret = bytes.fromhex(text) or secrets.token_bytes(_SECRET_BYTES)
        super().__init__(file, name, secret, is_new=not text)

    @override
    def keep(self) -> None:
        if not self.is_new:
            return
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{self.secret.hex()}\n")
            file.flush()
            os.fsync(file.fileno())
        directory = os.open(self.file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self.is_new = False
