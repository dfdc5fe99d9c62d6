"""The performatives: their bytes as the specification has them, and those that are refused."""

import pytest

from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    MAX_PERFORMATIVE_BYTES,
    RECEIVER,
    RELEASED,
    SENDER,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
    decode_performative,
    decode_sasl,
    decode_transaction,
    encode_performative,
)
from orthia.broker.protocols.amqp.values import (
    AmqpDecodeError,
    AmqpEncodeError,
    Described,
    Symbol,
    ULong,
)

ERROR = Error(Symbol("amqp:not-found"), "no such queue", {Symbol("a"): 1})
SELECTOR = {Symbol("jms-selector"): Described(ULong(0x468C00000004), "colour = 'red'")}
PERFORMATIVES = [
    Open("c"),
    Open(
        *("c", "host", 65_536, 255, 60_000, (Symbol("en-US"),), (Symbol("en-US"),)),
        *((Symbol("ANONYMOUS-RELAY"), Symbol("SHARED-SUBS")), (Symbol("x"),)),
        {Symbol("product"): "Orthia"},
    ),
    Begin(None, 1, 2_048, 2_048),
    Begin(7, 0, 0, 4_294_967_295, 255, (Symbol("a"),), (Symbol("b"),), {Symbol("c"): None}),
    Attach("link", 0, SENDER, initial_delivery_count=0),
    Attach(
        *("link", 5, RECEIVER, 0, 1),
        Source(
            *("queue", 2, Symbol("never"), 60, True, {Symbol("lifetime-policy"): None}),
            *(Symbol("copy"), SELECTOR, Modified(delivery_failed=True)),
            *((Symbol("amqp:accepted:list"), Symbol("amqp:rejected:list")), (Symbol("topic"),)),
        ),
        Target("t", capabilities=(Symbol("queue"),)),
        *({b"tag": Described(ULong(0x24), [])}, True, 3, 2**40),
    ),
    Attach("tx", 1, SENDER, target=Coordinator((Symbol("amqp:local-transactions"),))),
    Flow(None, 1, 2, 3),
    Flow(9, 1, 2, 3, 0, 0, 100, 5, True, True, {Symbol("x"): True}),
    Transfer(0),
    Transfer(1, 2, b"tag", 0, False, True, 1, TransactionalState(b"tx"), True, True, True),
    Disposition(RECEIVER, 1),
    Disposition(SENDER, 1, 5, True, ACCEPTED, True),
    Disposition(RECEIVER, 1, state=RELEASED),
    Disposition(RECEIVER, 1, state=Rejected(ERROR)),
    Disposition(RECEIVER, 1, state=Rejected()),
    Disposition(RECEIVER, 1, state=Modified(True, True, {Symbol("x-opt-a"): "b"})),
    Disposition(RECEIVER, 1, state=Received(1, 2**33)),
    Disposition(RECEIVER, 1, state=Declared(b"tx")),
    Disposition(RECEIVER, 1, state=TransactionalState(b"tx", ACCEPTED)),
    Detach(3),
    Detach(3, True, ERROR),
    End(),
    End(ERROR),
    Close(),
    Close(Error(Symbol("amqp:connection:forced"))),
]


@pytest.mark.parametrize("performative", PERFORMATIVES, ids=repr)
def test_a_performative_is_read_as_it_was_written(performative: object) -> None:
    """Each field comes back, and those that are not said have their defaults."""
    body = encode_performative(performative)
    decoded, end = decode_performative(body)
    assert (decoded, end) == (performative, len(body))
    assert type(decoded) is type(performative)


@pytest.mark.parametrize(
    "sasl",
    [
        SaslMechanisms((Symbol("PLAIN"), Symbol("ANONYMOUS"))),
        SaslInit(Symbol("PLAIN"), b"\0me\0secret", "host"),
        SaslInit(Symbol("ANONYMOUS")),
        SaslChallenge(b"?"),
        SaslResponse(b"!"),
        SaslOutcome(0),
        SaslOutcome(1, b"more"),
    ],
    ids=repr,
)
def test_what_sasl_says_is_read_as_it_was_written(sasl: object) -> None:
    """SASL's frames have performatives of their own."""
    decoded = decode_sasl(encode_performative(sasl))
    assert decoded == sasl
    assert type(decoded) is type(sasl)


@pytest.mark.parametrize("asked", [Declare(), Discharge(b"tx", fail=True), Discharge(b"")])
def test_what_a_coordinator_is_asked_is_read_as_it_was_written(asked: object) -> None:
    """A transaction is begun and ended by messages."""
    decoded = decode_transaction(encode_performative(asked))
    assert decoded == asked
    assert type(decoded) is type(asked)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        # By qpid-jms: uints in their longest form, a list of 32 bits, all fields.
        (
            b"\0\x80\0\0\0\0\0\0\0\x13\xd0\0\0\0\x18\0\0\0\4\x70\0\0\0\1\x70\0\0\0\2\x70\0\0\0\3"
            b"\x70\0\0\0\4",
            Flow(1, 2, 3, 4),
        ),
        (b"\0\xa3\x0aamqp:begin", None),
        (b"\0\xa3\x0famqp:close:list\x45", Close()),
        (b"\0\x53\x18\xc0\1\0", Close()),
        (b"\0\x53\x15\xc0\x0a\6\x56\1\x43\x40\x56\1\x40\x56\0", Disposition(True, 0, None, True)),
        (b"\0\x53\x11\xc0\x09\6\x40\x43\x43\x43\x40\xa3\1a", Begin(None, 0, 0, 0)),
    ],
)
def test_every_form_of_a_performative_is_read(body: bytes, said: object) -> None:
    """Descriptors may be symbols, numbers long, booleans of two bytes, one symbol an array."""
    if said is None:
        with pytest.raises(AmqpDecodeError, match="a descriptor that AMQP"):
            decode_performative(body + b"\x45")
    elif isinstance(said, Begin):
        decoded, _ = decode_performative(body)
        assert decoded == said._replace(offered_capabilities=(Symbol("a"),))
    else:
        assert decode_performative(body) == (said, len(body))


def test_what_a_transfer_carries_begins_behind_it() -> None:
    """The message is in the same frame, and no other performative has anything behind it."""
    body = encode_performative(Transfer(1, 2, b"tag", 0))
    assert decode_performative(body + b"message") == (Transfer(1, 2, b"tag", 0), len(body))
    with pytest.raises(AmqpDecodeError, match="expected the end of the frame"):
        decode_performative(encode_performative(End()) + b"message")
    with pytest.raises(AmqpDecodeError, match="expected the end of the frame"):
        decode_sasl(encode_performative(SaslOutcome(0)) + b"more")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "at byte 0: expected more bytes"),
        (b"\x45", "at byte 0: expected a performative, found the format code 0x45"),
        (b"\0\x53\x40\x45", "expected a performative, found the descriptor 0x40"),
        (b"\0\x53\x24\x45", "expected a performative, found the descriptor 0x24"),
        (b"\0\x53\x99\x45", "expected a performative, found the descriptor 0x99"),
        (b"\0\x53\x17\xc1\1\0", "at byte 3: expected the list of end, found 0xc1"),
        (b"\0\x53\x17\xc0\3\2\x40\x40", "at most 1 fields of end, found 2"),
        (b"\0\x53\x17\xc0\3\1\x40\x40", "at byte 7: expected the end of the 1 fields of end"),
        (b"\0\x53\x16\x45", "expected detach with its handle"),
        (b"\0\x53\x16\xc0\2\1\x40", "expected detach with its handle"),
        (
            b"\0\x53\x16\xc0\2\1\x41",
            "at byte 6: expected a uint for handle of detach, found the format code 0x41",
        ),
        (b"\0\x53\x16\xc0\3\2\x43\x43", "a boolean for closed of detach, found"),
        (b"\0\x53\x16\xc0\4\3\x43\x41\x41", "an error for error of detach, found"),
        (
            b"\0\x53\x16\xc0\7\3\x43\x41\0\x53\x24\x45",
            "at byte 8: expected an error, found the descriptor 0x24",
        ),
        (b"\0\x53\x10\xc0\4\1\xa3\1a", "a string for container-id of open, found"),
        (b"\0\x53\x10\xc0\x0c\6\xa1\1a\x40\x40\x40\x40\xe0\2\0\x50", None),
        (b"\0\x53\x10\xc0\x0d\6\xa1\1a\x40\x40\x40\x40\xe0\3\1\x50\1", "a symbol or an array of"),
        (b"\0\x53\x15\xc0\6\5\x41\x43\x40\x40\x41", "a delivery state for state of disposition"),
        (b"\0\x53\x14\xc0\x0a\3\x43\x43\xa0\x50tag\x40", "expected more bytes"),
    ],
)
def test_what_is_no_performative_is_refused_by_field(body: bytes, expected: str | None) -> None:
    """The error says which field of what was wrong, and where."""
    if expected is None:
        decode_performative(body)
        return
    with pytest.raises(AmqpDecodeError) as refused:
        decode_performative(body)
    assert expected in str(refused.value)


@pytest.mark.parametrize("performative", PERFORMATIVES, ids=repr)
def test_a_performative_that_is_cut_off_is_refused(performative: object) -> None:
    """Wherever it ends, more bytes were expected."""
    body = encode_performative(performative)
    for size in range(len(body)):
        with pytest.raises(AmqpDecodeError, match="expected more bytes") as refused:
            decode_performative(body[:size])
        assert refused.value.at == size


def test_a_performative_has_a_greatest_length() -> None:
    """What a transfer carries does not count, what a client says of itself does."""
    room = MAX_PERFORMATIVE_BYTES - len(encode_performative(Open("x" * 300))) + 300
    decode_performative(encode_performative(Open("x" * room)))
    with pytest.raises(AmqpDecodeError, match="a performative of at most 16384 bytes, found 16385"):
        decode_performative(encode_performative(Open("x" * (room + 1))))
    decode_performative(encode_performative(Transfer(1)) + bytes(100_000))


def test_outcomes_that_say_nothing_are_told_apart() -> None:
    """None of them is equal to another."""
    assert len({ACCEPTED, RELEASED, Rejected(), Modified()}) == 4


@pytest.mark.parametrize(
    "said",
    [
        object(),
        Detach(-1),
        Detach(2**32),
        Open(None),  # type: ignore[arg-type]
        Open(b"bytes"),  # type: ignore[arg-type]
        Begin(70_000, 0, 0, 0),
        Transfer(1, rcv_settle_mode=300),
        Close(Error(Symbol("é"))),
    ],
)
def test_what_no_frame_can_say_is_not_written(said: object) -> None:
    """A mistake of the program is an error that names the field."""
    with pytest.raises(AmqpEncodeError):
        encode_performative(said)
