"""Source → store: atomic, resumable, verified."""
