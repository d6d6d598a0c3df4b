"""The pane of what goes on: figures, a launch, a failure."""
