"""POSIX sh that runs on the peers."""
