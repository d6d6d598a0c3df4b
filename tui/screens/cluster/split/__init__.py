"""The pane of the split."""
