"""The bytes on disk: one protocol, two backends."""
