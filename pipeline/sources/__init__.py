"""Spark data sources on journals and failover logs, and their readers."""
