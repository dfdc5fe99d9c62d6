"""From a destination to queues and topics: addresses, their rules, diverts, wildcards."""
