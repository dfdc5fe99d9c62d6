"""Space that is kept free beside a SQLite database for leases, when its disk is full."""

from pathlib import Path

from orthia.database.sqlite_reserve import LEASE_RESERVE_BYTES, LEASE_STEP_BYTES, LeaseReserve


def test_the_reserve_of_leases_is_given_up_little_by_little(tmp_path: Path) -> None:
    """One renewal leaves space for the next ones, and it is taken anew when there is room."""
    reserve = LeaseReserve(str(tmp_path / "orthia.db"))
    file = tmp_path / "orthia.db-lease-reserve"
    assert not reserve.give()
    for _ in range(2):
        reserve.fill()
        assert file.stat().st_size == LEASE_RESERVE_BYTES
        assert file.stat().st_blocks * 512 >= LEASE_RESERVE_BYTES  # no hole, which has no space
        renewals = 0
        while reserve.give():
            renewals += 1
        assert renewals == LEASE_RESERVE_BYTES // LEASE_STEP_BYTES
    reserve.remove()
    reserve.remove()
    assert not file.exists()


def test_a_reserve_that_cannot_be_had_is_no_error(tmp_path: Path) -> None:
    """A lease that finds room needs none."""
    reserve = LeaseReserve(str(tmp_path / "nowhere" / "orthia.db"))
    reserve.fill()
    assert not reserve.give()
    reserve.remove()
