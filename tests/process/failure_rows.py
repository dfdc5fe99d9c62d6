"""Which scene shows which row of the table "Failure by failure".

A row is named by what its first cell begins with. ``test_failure_rows`` compares this with the
table and with the tests: a row without a scene, and a scene that is gone, are failures.
"""

from typing import Final

SCENES: Final[dict[str, tuple[str, ...]]] = {
    "live node killed": (
        "process/test_failover.py::test_a_crash_is_noticed_before_the_lease_runs_out",
        "process/test_every_store.py::test_a_crash_a_failback_and_a_stop_lose_nothing",
    ),
    "host of the live node lost": (
        "process/test_failures.py::test_a_live_node_that_the_database_does_not_hear_is_replaced",
    ),
    "the live node's presence session lost": (
        "process/test_failures.py::test_a_lost_presence_session_alone_disturbs_nobody",
    ),
    "live node frozen longer than its lease": (
        "process/test_failover.py::test_a_frozen_node_that_wakes_up_writes_nothing",
    ),
    "the live node's event loop hangs": (
        "process/test_critical_analyzer.py::test_a_node_whose_loop_hangs_costs_its_lock",
    ),
    "live node frozen, or its host lost, in the middle of a batch": (
        "nodemanager/test_fence_blockers.py::"
        "test_a_node_frozen_in_a_batch_is_replaced_when_its_lease_ends",
    ),
    "the same on SQLite": (
        "nodemanager/test_fence_blockers.py::test_a_process_frozen_in_a_batch_holds_an_sqlite_store_until_it_ends",
    ),
    "a node's port is taken": (
        "process/test_failover.py::test_a_live_node_whose_port_is_taken_asks_nobody_to_hand_over",
        "process/test_failover.py::test_a_backup_says_when_it_starts_that_its_port_is_taken",
        "process/test_failover.py::"
        "test_a_backup_that_never_gets_its_port_leaves_the_lock_to_another",
    ),
    "live node frozen for less": (
        "process/test_failover.py::test_a_paused_live_node_keeps_its_whole_lease",
    ),
    "live node stopped, `failover-on-shutdown` true": (
        "process/test_every_store.py::test_a_crash_a_failback_and_a_stop_lose_nothing",
    ),
    "live node stopped, `failover-on-shutdown` false": (
        "process/test_failover.py::test_graceful_stop_without_failover_keeps_the_backup_passive",
    ),
    "backup killed": ("process/test_failures.py::test_a_killed_backup_is_followed_by_the_next",),
    "the database has no disk space": (
        "process/test_failures.py::test_receipts_wait_while_the_database_has_no_room",
    ),
    "database restarted": ("process/test_failover.py::test_a_database_that_is_gone_is_survived",),
    "the database does not store one message": (
        "process/test_failures.py::test_a_message_that_is_not_stored_ends_its_sender_alone",
    ),
    "another session keeps rows of MESSAGES": (
        "process/test_foreign_locks.py::test_a_foreign_lock_ends_nobody",
        "process/test_foreign_locks.py::test_what_is_put_aside_comes_again_after_a_takeover",
    ),
    "database hangs": ("process/test_failover.py::test_a_database_that_is_gone_is_survived",),
    "network between live node and database lost": (
        "process/test_failures.py::test_a_live_node_that_the_database_does_not_hear_is_replaced",
    ),
    "both nodes lose the database": (
        "process/test_failover.py::test_a_database_that_is_gone_is_survived",
    ),
    "a node's wall clock steps": (
        "process/test_failures.py::test_a_step_of_a_wall_clock_disturbs_nobody",
    ),
    "the database's clock steps back": (
        "process/test_failures.py::test_a_step_back_of_the_databases_clock_disturbs_nobody",
    ),
    "the database's clock steps forward": (
        "process/test_failures.py::test_after_a_step_forward_of_the_databases_clock_one_serves",
    ),
    "a live node dies while failing back": (
        "process/test_failures.py::test_a_live_node_that_dies_while_failing_back_is_replaced",
    ),
    "disk of the failover log full": (
        "process/test_failures.py::test_a_failover_log_without_room_disturbs_nobody",
    ),
}
