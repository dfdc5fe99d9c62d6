"""What proves that a replay's markers are its own.

A marker says how far a replay is, and is a message in a queue of the broker: whoever could plant
one would have a replay send nothing and end well. So each carries a proof of its replay's name and
its place (HMAC-SHA-256), made with a secret that only whoever runs the replay has, in a file. There
is one secret for each name; that a marker of one broker proves nothing at another is not claimed.
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
    """Return where the checkpoint of the replay ``name`` is kept, if nobody says where."""
    state = environment.get("XDG_STATE_HOME") or Path("~").expanduser() / ".local" / "state"
    return Path(state) / "orthia" / "replay" / f"{name}.secret"


class Proofs:
    """What one secret proves of the markers of one name."""

    def __init__(self, file: Path, name: str, secret: bytes, *, is_new: bool) -> None:
        """``file`` is where the secret is kept; ``is_new`` whether it was made just now."""
        self.file = file
        self.is_new = is_new
        """Whether no replay of this name has begun here: then no marker can be its own."""
        self._name = name
        self.secret = secret
        """Whoever has it can forge markers: for the tasks of this replay only."""

    def keep(self) -> None:
        """Have the secret in its file before the first marker is sent; raises OSError."""

    def of(self, part: str) -> "Proofs":
        """Return what proves the markers of a part of this replay, which others may send."""
        return Proofs(self.file, f"{self._name}.{part}", self.secret, is_new=self.is_new)

    def proof(self, place: int) -> str:
        """Return what a marker of ``place`` carries."""
        return hmac.digest(self.secret, f"{self._name}:{place}".encode(), "sha256").hex()

    def proves(self, place: str, proof: str) -> bool:
        """Return whether a marker's ``place`` is one that a replay with this secret wrote."""
        if not (place.isascii() and place.isdecimal() and len(place) < 20):
            return False
        return hmac.compare_digest(self.proof(int(place)).encode(), proof.encode())


class Checkpoint(Proofs):
    """The secret of one replay, in a file of its user's own."""

    def __init__(self, file: Path, name: str) -> None:
        """Read the file, if it is there; raises ConfigurationError, OSError."""
        try:
            text = file.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            text = ""
        else:
            if len(text) != 2 * _SECRET_BYTES or not _HEX.issuperset(text):
                raise ConfigurationError(
                    f"{file} is not what a replay wrote; expected {2 * _SECRET_BYTES} hexadecimal"
                    " digits. Put its copy back, or begin under another --name"
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
