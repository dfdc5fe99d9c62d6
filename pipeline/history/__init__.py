"""What happened to one pair, decided from its nodes' logs and the present state of its store.

Times are microseconds since 1970 UTC by the database's clock, durations in results milliseconds.
An instant that is not known exactly is a ``Span``, the smallest range that certainly contains it.

- ``lives``: the events of each process in order, missing events, and clock steps.
- ``tenures``: who held which lock from when to when, by its own account.
- ``outages``: when nobody served, from tenures and from what the store says now.
- ``doubts``: contradictions and gaps in the log: overlaps, missing events and tokens, clocks.
- ``account``: the whole result, and availability.
"""
