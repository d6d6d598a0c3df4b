"""The pane of the peers."""
