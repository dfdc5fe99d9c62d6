"""Orthia's own STOMP client: its failover, what it produces and consumes, replays."""
