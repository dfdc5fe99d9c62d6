"""The encodings of all protocols: with this imported, messages can be asked what they say."""

from typing import Final

from orthia.broker.protocols.amqp.encoding import AmqpEncoding
from orthia.broker.protocols.stomp.encoding import StompEncoding
from orthia.journal.model.encodings import Encoding, register_encoding

ENCODINGS: Final[tuple[Encoding, ...]] = (StompEncoding(), AmqpEncoding())

for _encoding in ENCODINGS:
    register_encoding(_encoding)
