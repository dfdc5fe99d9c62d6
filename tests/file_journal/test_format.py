"""The bytes of a journal file, cut and flipped anywhere."""

from dataclasses import replace
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orthia.journal.file.format import (
    HEADER_BYTES,
    LAST_OF_SYNC,
    RECORD_BYTES,
    SEAL_AT,
    BadHeader,
    FileHeader,
    Kind,
    Record,
    Seal,
    decode_header,
    decode_seal,
    decode_seqs,
    encode_header,
    encode_record,
    encode_seal,
    encode_seqs,
)
from orthia.journal.file.recovery import FileScan, Transactions
from orthia.journal.model.records import RecordType
from tests.file_journal import former

HEADER = FileHeader(Kind.MESSAGES, 7, 3, 5, b"16 random bytes.")
FORMER = FileHeader(Kind.MESSAGES, 7, 3, 5, b"")
"""Of a file of version 1."""
FILE_SIZE = 4_096


def record(seq: int, text: bytes = b"body") -> Record:
    """Return a record that adds a message."""
    return Record(RecordType.ADD_RECORD, 31, seq, seq, 0, 9, 5, text)


def file_of(syncs: list[list[Record]], size: int = FILE_SIZE) -> tuple[bytes, list[int]]:
    """Return a file of these syncs and where each of them ends."""
    data = encode_header(HEADER)
    ends = []
    for number, records in enumerate(syncs, 1):
        for position, one in enumerate(records, 1):
            flags = LAST_OF_SYNC if position == len(records) else 0
            data += encode_record(one, HEADER.mark, number, flags) + one.payload
        ends.append(len(data))
    return data.ljust(size, b"\0"), ends


def read(data: bytes, sealed_end: int | None = None) -> tuple[list[int], FileScan]:
    """Return the seqs of the intact records of a file, and the scan."""
    scan = FileScan(data, HEADER, sealed_end)
    seqs = [found.seq for found, intact in scan.records() if intact]
    return seqs, scan


def expected_seqs(syncs: list[list[Record]], count: int) -> list[int]:
    """Return the seqs of the first ``count`` syncs."""
    return [one.seq for records in syncs[:count] for one in records]


SYNCS = [
    [record(1), record(2, b"x" * 100)],
    [record(3, b"")],
    [record(4), record(5), record(6, b"z" * 33)],
]


def test_a_header_is_read_as_written() -> None:
    """Header and seal come back; a file begins unsealed."""
    data = encode_header(HEADER)
    assert len(data) == HEADER_BYTES
    assert decode_header(data) == HEADER
    assert decode_seal(data) is None
    seal = encode_seal(Seal(1_234, 5))
    sealed = data[:SEAL_AT] + seal + data[SEAL_AT + len(seal) :]
    assert decode_seal(sealed) == Seal(1_234, 5)


@pytest.mark.parametrize(
    "at", [0, 8, 9, 10, 11, 20, 30, 34, 35, 50, 54, SEAL_AT, SEAL_AT + 9, SEAL_AT + 17]
)
def test_a_spoiled_header_or_seal_is_refused(at: int) -> None:
    """No flipped byte of a header or a seal is taken for something else."""
    data = bytearray(encode_header(HEADER))
    seal = encode_seal(Seal(2_000, 9))
    data[SEAL_AT : SEAL_AT + len(seal)] = seal
    data[at] ^= 0x10
    with pytest.raises(BadHeader):
        decode_seal(bytes(data)) if at >= SEAL_AT else decode_header(bytes(data))


def test_a_file_of_another_time_is_read_to_its_end() -> None:
    """A whole file has all its records, ends after the last, and has no damage."""
    data, ends = file_of(SYNCS)
    seqs, scan = read(data)
    assert seqs == [1, 2, 3, 4, 5, 6]
    assert (scan.end, scan.damages, scan.torn_bytes) == (ends[-1], [], 0)


def test_a_cut_before_a_durable_sync_is_damage_if_the_file_is_sealed() -> None:
    """A sealed file that is cut anywhere says so: nothing durable is missed in silence."""
    data, ends = file_of(SYNCS)
    for cut in range(HEADER_BYTES, ends[-1]):
        scan = FileScan(data[:cut], HEADER, ends[-1])
        found = list(scan.records())
        assert scan.damages or not all(intact for _, intact in found), cut


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_a_flipped_byte_of_a_durable_sync_is_always_noticed(bit: int) -> None:
    """A flip before the last sync is damage, and costs no other record than its own."""
    data, ends = file_of(SYNCS)
    for at in range(HEADER_BYTES, ends[-2]):
        spoiled = bytearray(data)
        spoiled[at] ^= bit
        scan = FileScan(bytes(spoiled), HEADER, None)
        found = list(scan.records())
        intact = [one.seq for one, is_intact in found if is_intact]
        assert scan.damages or len(found) > len(intact), at
        assert len(intact) == 5, at
        assert scan.end == ends[-1]


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_a_flipped_byte_of_the_last_sync_keeps_what_was_synced_before(bit: int) -> None:
    """What cannot be told from a torn write is one: a prefix stays, with all before the sync."""
    data, ends = file_of(SYNCS)
    for at in range(ends[-2], ends[-1]):
        spoiled = bytearray(data)
        spoiled[at] ^= bit
        seqs, scan = read(bytes(spoiled))
        assert seqs == [1, 2, 3, 4, 5, 6][: len(seqs)]
        assert len(seqs) >= 3
        assert scan.damages == []


def test_pages_of_the_last_sync_that_came_out_of_order_are_torn() -> None:
    """A write whose later page reached the disk and whose earlier one did not ends before both."""
    data, ends = file_of(SYNCS)
    begin = ends[-2]
    torn = data[:begin] + bytes(RECORD_BYTES + 4) + data[begin + RECORD_BYTES + 4 :]
    seqs, scan = read(torn)
    assert seqs == [1, 2, 3]
    assert scan.end == begin
    assert scan.torn_bytes > 0


def test_what_a_file_held_before_it_was_used_again_is_not_read() -> None:
    """Records under the salt of the file's earlier life are no records, whatever its id is."""
    old, _ = file_of([[record(number, b"old" * 9) for number in range(20)]])
    header = replace(HEADER, salt=b"other random 16.")
    scan = FileScan(encode_header(header) + old[HEADER_BYTES:], header, None)
    assert list(scan.records()) == []
    assert (scan.torn_bytes, scan.damages) == (0, [])


@pytest.mark.parametrize("known", [slice(0, 8), slice(8, 16)])
def test_half_of_a_salt_makes_no_record(known: slice) -> None:
    """A record needs both: how it begins, and what its checksum begins with."""
    guess = bytearray(16)
    guess[known] = HEADER.salt[known]
    forged = record(1)
    mark = replace(HEADER, salt=bytes(guess)).mark
    data = encode_header(HEADER) + encode_record(forged, mark, 1, LAST_OF_SYNC) + forged.payload
    assert read(data) == ([], ANY)


def former_file(syncs: list[list[Record]]) -> tuple[bytes, list[int]]:
    """Return a file of version 1 with these syncs, and where each of them ends."""
    data = bytes(HEADER_BYTES)
    ends = []
    for number, records in enumerate(syncs, 1):
        for position, one in enumerate(records, 1):
            data += former.encode_record(one, FORMER.file_id, number, int(position == len(records)))
        ends.append(len(data))
    return data.ljust(FILE_SIZE, b"\0"), ends


def test_a_file_of_version_1_is_read_by_its_rule() -> None:
    """Every record to the end; cut off anywhere in its last sync, all that was synced before."""
    data, ends = former_file(SYNCS)
    scan = FileScan(data, FORMER, None)
    assert [one.seq for one, intact in scan.records() if intact] == [1, 2, 3, 4, 5, 6]
    assert (scan.end, scan.damages, scan.torn_bytes) == (ends[-1], [], 0)
    for cut in range(ends[-2], ends[-1]):
        scan = FileScan(data[:cut], FORMER, None)
        seqs = [one.seq for one, intact in scan.records() if intact]
        assert seqs == [1, 2, 3, 4, 5, 6][: len(seqs)]
        assert (len(seqs) >= 3, scan.damages) == (True, [])
    for at in range(HEADER_BYTES, ends[-2]):
        spoiled = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        scan = FileScan(spoiled, FORMER, None)
        found = list(scan.records())
        assert scan.damages or not all(intact for _, intact in found), at
        assert (sum(intact for _, intact in found), scan.end) == (5, ends[-1]), at


@pytest.mark.parametrize("sync", [0, 1, 3, 5, 2**40])
def test_a_file_ends_before_a_record_whose_sync_does_not_go_on(sync: int) -> None:
    """Behind the last of sync 3 only one of sync 4 is its next record; others are of another time.

    Nor do they prove that anything before them was synced.
    """
    data, ends = file_of(SYNCS, size=0)
    stray = [encode_record(one, HEADER.mark, sync, LAST_OF_SYNC) + one.payload for one in SYNCS[0]]
    seqs, scan = read((data + b"".join(stray[:1])).ljust(FILE_SIZE, b"\0"))
    assert (seqs, scan.end, scan.damages) == ([1, 2, 3, 4, 5, 6], ends[-1], [])
    whole = encode_record(record(7), HEADER.mark, 4, 0) + b"body"
    assert read(data + whole)[0] == [1, 2, 3, 4, 5, 6, 7]


_records = st.lists(st.binary(max_size=200), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(_records, min_size=1, max_size=6), st.data())
def test_any_cut_of_any_file_keeps_a_prefix_with_all_that_was_synced(
    bodies: list[list[bytes]], data: st.DataObject
) -> None:
    """For any syncs, any cut, and whatever was there: a prefix, never short of a whole sync."""
    numbers = iter(range(1, 1_000))
    syncs = [[record(next(numbers), body) for body in one] for one in bodies]
    content, ends = file_of(syncs, size=0)
    cut = data.draw(st.integers(HEADER_BYTES, len(content)))
    whole = sum(end <= cut for end in ends)
    everything = expected_seqs(syncs, len(syncs))
    for torn in (content[:cut], content[:cut].ljust(len(content), b"\0")):
        seqs, scan = read(torn)
        assert seqs == everything[: len(seqs)]
        assert len(seqs) >= len(expected_seqs(syncs, whole))
        assert scan.damages == []


@settings(max_examples=60, deadline=None)
@given(st.lists(_records, min_size=2, max_size=6), st.data())
def test_garbage_anywhere_never_makes_a_record(
    bodies: list[list[bytes]], data: st.DataObject
) -> None:
    """Whatever is overwritten, what is read as intact is what was written, in order."""
    numbers = iter(range(1, 1_000))
    syncs = [[record(next(numbers), body) for body in one] for one in bodies]
    content, _ = file_of(syncs, size=0)
    at = data.draw(st.integers(HEADER_BYTES, len(content) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=400))
    spoiled = (content[:at] + garbage + content[at + len(garbage) :])[: len(content)]
    scan = FileScan(spoiled, HEADER, None)
    written = {one.seq: one.payload for records in syncs for one in records}
    seqs = []
    for found, intact in scan.records():
        if intact:
            assert found.payload(spoiled) == written[found.seq]
            seqs.append(found.seq)
    assert seqs == sorted(set(seqs))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_deleted_seqs_come_back(seqs: list[int]) -> None:
    """A delete record names what it deletes."""
    assert decode_seqs(encode_seqs(seqs)) == seqs


def scanned(record_type: RecordType, tx_id: int, seq: int, text: bytes = b"") -> Record:
    """Return a record of a transaction."""
    return Record(record_type, 31, seq, seq, tx_id, 9, 5, text)


def fold(records: list[Record], watched: set[int] = set()) -> tuple[list[int], Transactions]:  # noqa: B006 - never changed
    """Return the seqs that become effective, in order."""
    data, _ = file_of([records])
    scan = FileScan(data, HEADER, None)
    transactions = Transactions(watched)
    effective: list[int] = []
    for found, _ in scan.records():
        taken = transactions.take(7, found, found.payload(data))
        effective += [one.seq for _, one, _ in taken]
    return effective, transactions


COMMIT_OF_TWO = encode_seqs([2])


def test_a_transaction_counts_when_it_is_committed_and_not_before() -> None:
    """Records of a transaction wait for its commit; those of none do not."""
    begun = [scanned(RecordType.ADD_RECORD_TX, 4, 1), record(2)]
    rest = [
        scanned(RecordType.ADD_RECORD_TX, 4, 3),
        scanned(RecordType.COMMIT_RECORD, 4, 0, COMMIT_OF_TWO),
    ]
    assert fold(begun)[0] == [2]
    assert fold(begun + rest)[0] == [2, 1, 3]


def test_a_transaction_that_is_rolled_back_or_lacks_a_record_does_not_count() -> None:
    """A rollback drops a transaction; a commit that misses a record is damage."""
    begun = [scanned(RecordType.ADD_RECORD_TX, 4, 1)]
    assert fold([*begun, scanned(RecordType.ROLLBACK_RECORD, 4, 0, COMMIT_OF_TWO)])[0] == []
    with pytest.raises(ValueError, match="transaction 4 has 1 records instead of 2"):
        fold([*begun, scanned(RecordType.COMMIT_RECORD, 4, 0, COMMIT_OF_TWO)])


def test_a_prepared_transaction_is_in_doubt_until_it_is_resolved() -> None:
    """Prepared and not resolved is in doubt; its commit may come long after."""
    prepared = [
        scanned(RecordType.ADD_RECORD_TX, 4, 1),
        scanned(RecordType.PREPARE_RECORD, 4, 0, encode_seqs([1])),
    ]
    effective, transactions = fold(prepared)
    assert (effective, transactions.in_doubt) == ([], {4})
    assert [one.seq for _, one, _ in transactions.commit(4)] == [1]
    assert transactions.in_doubt == set()
    effective, transactions = fold([scanned(RecordType.COMMIT_RECORD, 4, 0, encode_seqs([1]))], {4})
    assert (effective, transactions.committed) == ([], {4})
