"""What the tests with stomp.py share: a listener that notes what comes."""

import stomp
from stomp.utils import Frame


class Listener(stomp.ConnectionListener):  # type: ignore[misc] # stomp.py has no types
    """Notes every frame of a connection, and its end."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.is_over = False

    def on_message(self, frame: Frame) -> None:
        """Note a MESSAGE."""
        self.frames.append(frame)

    def on_receipt(self, frame: Frame) -> None:
        """Note a RECEIPT."""
        self.frames.append(frame)

    def on_error(self, frame: Frame) -> None:
        """Note an ERROR."""
        self.frames.append(frame)

    def on_disconnected(self) -> None:
        """Note that the node is gone."""
        self.is_over = True

    @property
    def seen(self) -> list[tuple[str, str]]:
        """The command of each frame, and its receipt or else its body."""
        return [(one.cmd, str(one.headers.get("receipt-id", one.body))) for one in self.frames]
