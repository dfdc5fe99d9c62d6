"""What a node does about its queues unasked: opening, expiry, deletion, reload."""
