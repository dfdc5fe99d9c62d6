"""What a run is judged by beside what clients saw: how nodes ended, and what the store has."""

from collections.abc import Iterable, Mapping, Sequence

from orthia.journal.model.records import UserRecordType
from tests.chaos import witness
from tests.chaos.checker import Violations
from tests.chaos.exits import (
    LOOK_BACK_SECONDS,
    End,
    Waited,
    is_of_a_stall,
    is_of_starvation,
    waited_before,
)
from tests.chaos.fault import IO_ERROR
from tests.chaos.ground import Ground
from tests.chaos.writers import check_changes
from tests.support.turns import SAID
from tests.support.waiting import wait_until

_EMPTY_SECONDS = 120
_MOST_TOLD = 3_000
"""Characters of the log that are told of a turn that was too long: its stack."""


class Verdict:
    """The judge of one run's nodes and store."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._has_tables = "sql" in ground.has

    def install(self) -> None:
        """Have the store note what is done with it, if it can."""
        if self._has_tables:
            assert self._ground.database_settings is not None
            database = self._ground.open_database()
            witness.install(database, self._ground.database_settings)
            database.dispose()

    def wait_empty(self) -> None:
        """Wait until nothing is left of what was consumed; raises AssertionError."""
        settings = self._ground.database_settings
        if not self._has_tables or settings is None:
            return
        database = self._ground.open_database()
        # Duplicate ids stay when their messages are gone.
        ids = f"user_record_type = {UserRecordType.DUPLICATE_ID:d}"
        tables = {f"{settings.message_table_name} WHERE NOT {ids}": "message"}
        if not self._ground.settings.keeps_history:
            tables[settings.large_message_table_name] = "piece of a body"
        try:
            for table, what in tables.items():
                wait_until(
                    lambda table=table: witness.count(database, table) == 0,  # type: ignore[misc]
                    _EMPTY_SECONDS,
                    what=f"no {what} is left in the store",
                )
        finally:
            database.dispose()

    def judge_ends(
        self,
        ends: Iterable[End],
        stalls: Sequence[tuple[float, float]],
        waited: Mapping[str, Sequence[Waited]],
        violations: Violations,
    ) -> dict[str, int]:
        """Judge every end of a node by the faults there were; return what was counted.

        ``waited`` is what each node waited for, look by look.
        """
        explained = of_stalls = of_starvation = 0
        for end in ends:
            before = waited_before(end, waited.get(end.node, ()))
            if self._ground.expectations.explain(end):
                explained += 1
            elif is_of_a_stall(end, stalls, [IO_ERROR]):
                of_stalls += 1
            elif is_of_starvation(end, before, [IO_ERROR]):
                of_starvation += 1
            else:
                violations.add("node", _unexplained(end, before, stalls))
        return {
            "ends of nodes": explained,
            "ends by stalls of the machine": of_stalls,
            "ends of nodes that got no processor": of_starvation,
        }

    def judge_turns(self, violations: Violations) -> None:
        """Judge how long turns of the event loop took: all clients wait for each of them."""
        for node in self._ground.nodes:
            _, *said = node.log.split(SAID)
            for one in said:
                violations.add("turn", f"{node.name}: {SAID}{one[:_MOST_TOLD]}")

    def judge_store(self, violations: Violations) -> dict[str, int]:
        """Judge what was done with the store; return what was counted."""
        settings = self._ground.database_settings
        if not self._has_tables or settings is None:
            return {}
        database = self._ground.open_database()
        try:
            figures = check_changes(witness.changes(database), violations)
            figures["came due"] = witness.came_due(database)
            for seq, early_ms in witness.early(database, self._ground.stepped):
                violations.add("early", f"{seq} was moved {early_ms} ms before it was due")
            if self._ground.settings.keeps_history:
                missing = witness.unkept(database, settings)
                figures["rows kept"] = witness.count(database, settings.message_history_table_name)
                for _ in range(missing):
                    violations.add("unkept", "a message left its queue and is not in the history")
        finally:
            database.dispose()
        return figures


def _unexplained(end: End, waited: Waited, stalls: Iterable[tuple[float, float]]) -> str:
    near = [
        seconds for at, seconds in stalls if end.at - LOOK_BACK_SECONDS <= at <= end.at + seconds
    ]
    return (
        f"{end.node} ended with {end.code} and no fault explains it: in the {LOOK_BACK_SECONDS:g} s"
        f" before, a thread of it waited {waited.processor_seconds:.1f} s for a processor,"
        f" processes waited {waited.disk_seconds:.1f} s for disks, and beside it a renewal took"
        f" {max(near, default=0.0):.1f} s at most\n{end.log}"
    )
