"""The revisions of the schema, oldest first; one that was released never changes."""
