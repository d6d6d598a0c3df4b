"""POSIX sh that builds engines: here, or on a peer."""
