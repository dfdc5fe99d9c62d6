"""A node from start to exit code: its lives, its stores, its process."""
