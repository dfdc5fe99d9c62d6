# mypyc compiles this module.
"""The id of a transaction of two phases, as its manager gives it."""

from typing import NamedTuple


class Xid(NamedTuple):
    """The name a transaction manager gives a branch of a transaction (X/Open XA)."""

    format_id: int
    global_transaction_id: bytes
    branch_qualifier: bytes

    @classmethod
    def parse(cls, text: str) -> "Xid":
        """Read what ``str`` gives; raises ValueError."""
        try:
            format_id, global_id, branch = text.split(":")
            return cls(int(format_id), bytes.fromhex(global_id), bytes.fromhex(branch))
        except ValueError:
            raise ValueError(
                f"{text!r} is not FORMAT:GLOBAL:BRANCH, the latter two in hex"
            ) from None

    def __str__(self) -> str:
        return f"{self.format_id}:{self.global_transaction_id.hex()}:{self.branch_qualifier.hex()}"
