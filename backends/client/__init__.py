"""The controller as others use it: found, started, asked."""
