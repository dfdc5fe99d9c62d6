"""What ``matching``, which delivers to consumers with selectors, asks of its queue."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.quota import AddressUse
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.reader import WindowReader
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.queue.turns import InTurn
from orthia.journal.model.windows import StoredMessage


class Matched(Protocol):
    """The queue, as far as ``matching`` asks it."""

    id: int
    is_leaving: bool
    reader: WindowReader
    use: AddressUse

    @property
    def expiry_look(self) -> ExpiryLook:
        """How far messages that have expired are looked for."""

    def resume(self) -> None:
        """Go on delivering."""

    def take_in(self) -> tuple[Sequence[MessageReference], Sequence[MessageReference]]:
        """Return what came into memory, in order, and what was given back, and forget both."""

    def make_turns(self) -> InTurn:
        """Return what asks consumers that want the same messages, with none of them yet."""

    def loaded(self, message: StoredMessage, cursor: Cursor) -> MessageReference:
        """Have a message in memory that was in the table only."""

    def hand_out(self, reference: MessageReference) -> MessageReference | None:
        """Count a message as delivered; None if it is not to be."""

    def move_expired(self, reference: MessageReference) -> None:
        """Have a message no more that has expired."""

    def may_go_on(self) -> bool:
        """Return whether a delivery is allowed at this moment."""

    def go_on_later(self) -> None:
        """Have ``dispatch`` called in a later turn of the loop."""

    def note_journal_full(self) -> None:
        """Have ``resume`` called once the journal is full no more."""

    def window_bytes(self) -> int:
        """Return how many bytes a window may have, with the memory there is."""

    def lent_window_bytes(self) -> int:
        """Return how many bytes a window may have of which little is kept."""

    def reads_window(self) -> bool:
        """Return whether a window that the plain delivery asked for is under way."""

    def hold(self) -> None:
        """Note that there is something in memory, which can be shed."""

    def has_groups(self) -> None:
        """Have ``group`` called: there is a message of one."""

    def mark_first(self, reference: MessageReference) -> None:
        """Mark a group's first message to a consumer, if that is wanted."""

    def unmark(self, references: Iterable[MessageReference]) -> None:
        """Undo ``mark_first``."""

    def match_no_more(self) -> None:
        """Go back to the plain delivery."""
