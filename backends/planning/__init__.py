"""From what was asked for to what is to run: pure."""
