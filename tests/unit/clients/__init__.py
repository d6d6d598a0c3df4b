"""The configuration of clients."""
