"""Addresses, queues and topics: where messages wait and who gets them."""
