"""Between the event loop and a store: batches, the writer and the other threads of a journal."""
