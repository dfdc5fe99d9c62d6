"""Real nodes on real databases under faults at random, and a check of all that clients saw."""
