"""The headers of a SEND that schedule its message: when it is delivered, and how often."""

from collections.abc import Callable
from typing import Final

from orthia.broker.core.sending.recurrence import (
    FOR_EVER,
    LATEST_MS,
    MIN_PERIOD_MS,
    Recurrence,
    RecurrenceRefused,
    next_time,
)
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.broker.quoting import quoted
from orthia.journal.model.fields import Fields, encode_fields

TIME: Final = b"AMQ_SCHEDULED_TIME"
DELIVERY: Final = b"_AMQ_SCHED_DELIVERY"
DELAY: Final = b"AMQ_SCHEDULED_DELAY"
PERIOD: Final = b"AMQ_SCHEDULED_PERIOD"
REPEAT: Final = b"AMQ_SCHEDULED_REPEAT"
CRON: Final = b"AMQ_SCHEDULED_CRON"
NAMES: Final = (TIME, DELIVERY, DELAY, PERIOD, REPEAT, CRON)
_MOST_REPEATS: Final = 2**31 - 1


def stated(frame: Frame, time_ms: Callable[[], int]) -> bytes:
    """Return the encoded fields that say when a message is due; empty if it is due at once.

    ``time_ms`` is the clock of due messages. Raises ProtocolError, which names the header.
    """
    at_ms = _number(frame, TIME) or _number(frame, DELIVERY)
    delay_ms, period_ms = _number(frame, DELAY), _number(frame, PERIOD)
    repeats = _number(frame, REPEAT, least=FOR_EVER, most=_MOST_REPEATS)
    cron = (frame.get(CRON) or "").strip()
    if cron == "0":  # 0 means none, as in the other headers
        cron = ""
    if repeats and not period_ms:
        raise ProtocolError(
            "SEND has AMQ_SCHEDULED_REPEAT and no AMQ_SCHEDULED_PERIOD: say how many milliseconds"
            " lie between the repeats"
        )
    if repeats and period_ms < MIN_PERIOD_MS:
        raise ProtocolError(
            f"the header AMQ_SCHEDULED_PERIOD of SEND is {period_ms}, and AMQ_SCHEDULED_REPEAT"
            f" {repeats}; expected {MIN_PERIOD_MS} milliseconds or more between the repeats"
        )
    if not (at_ms or delay_ms or period_ms or cron):
        return b""
    now_ms = time_ms()
    recurrence = Recurrence(period_ms, repeats, cron, delay_ms if cron else 0)
    if cron:
        if at_ms:
            raise ProtocolError(
                "SEND has AMQ_SCHEDULED_CRON and a time beside it: a pattern begins at once"
            )
        try:
            at_ms = next_time(cron, now_ms)
        except RecurrenceRefused as error:
            raise ProtocolError(f"the header AMQ_SCHEDULED_CRON of SEND: {error}") from None
    at_ms = at_ms or now_ms + (delay_ms or period_ms)
    if at_ms > LATEST_MS:
        raise ProtocolError("SEND asks for a delivery after the year 9999")
    repeated = recurrence.encode() if cron or repeats else None
    return encode_fields(Fields(delivery_ms=at_ms, recurrence=repeated))


def _number(frame: Frame, name: bytes, *, least: int = 0, most: int = LATEST_MS) -> int:
    text = (frame.get(name) or "").strip()
    if not text:
        return 0
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(most))):
        value = None
    else:
        value = int(text)
    if value is None or not least <= value <= most:
        raise ProtocolError(
            f"the header {name.decode()} of SEND is {quoted(text[:80])}; expected an integer from"
            f" {least} to {most}"
        )
    return value
