"""``orthia.queue``: DataFrames and streams into queues, over STOMP.

It sends with the broker's own client and replay, which is why it has a room of its own: nothing
else of the pipeline knows the broker.
"""
