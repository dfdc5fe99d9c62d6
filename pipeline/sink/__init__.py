"""``orthia.queue``: DataFrames and streams into queues, over STOMP.

It sends with the broker's own client and replay; no other package of the pipeline imports the
broker.
"""
