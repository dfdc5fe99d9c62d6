"""Orthia's journals and failover logs as Spark DataFrames, and the jobs made of them.

- ``orthia.pipeline.session``: ``build_session`` makes a local or cluster session, ``register``
  adds the data sources to any session: a notebook's, a ``spark-submit``'s.
- ``orthia.journal``, ``orthia.failover_log``, ``orthia.node_manager``: what can be read.
- ``orthia.pipeline.jobs``: pure functions from DataFrames to DataFrames.

It needs the extra ``pipeline`` and Java 17 or newer; ``orthia.pipeline.requirements`` reports what
is missing. Nothing here writes to a broker's store except
``orthia.pipeline.jobs.migrate``, which fills an empty one.
"""
