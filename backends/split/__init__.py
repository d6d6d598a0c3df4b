"""Pure arithmetic of splits: moves, flags, memory fit, comparison with the log."""
