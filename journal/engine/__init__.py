"""Between the loop and a store: what waits, what is stored at once, and the threads that do it."""
