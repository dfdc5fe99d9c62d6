"""A queue or a durable subscription as a stream that acknowledges what was written."""
