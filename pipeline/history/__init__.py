"""What happened to one pair: pure decisions on what its nodes logged and its store says now.

Times are microseconds since 1970 UTC by the database's clock, durations in results milliseconds.
What is not known exactly is a ``Span``: the truth lies within it, and no smaller one is claimed.

- ``lives``: the events of each process in order, what is missing of them, steps of clocks.
- ``tenures``: who held which lock from when to when, by its own account.
- ``outages``: when nobody served, from tenures and from what the store says now.
- ``doubts``: what must not be, or cannot be told: overlaps, missing events and tokens, clocks.
- ``account``: all of it, and availability.
"""
