"""The connections of clients: acceptors, sockets, admission, and bounds of what clients hold."""
