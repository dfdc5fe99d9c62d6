"""Who may be live: leases, the fence, keep-alive, and the log of what happened.

``JdbcNodeManager.from_settings(settings.database_store, name=...)`` is the way in.
"""
