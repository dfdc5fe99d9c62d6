"""A queue: what is in memory of it, its consumers, and delivery to them."""
