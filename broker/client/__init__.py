"""Orthia's own STOMP client: failover, producers, consumers, replays."""
