"""Who is connected: acceptors, who is admitted, and what clients may hold."""
