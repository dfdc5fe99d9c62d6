"""Topics and their subscribers: volatile, durable, temporary."""
