"""Spark's data sources on journals and failover logs, and how their rows are read."""
