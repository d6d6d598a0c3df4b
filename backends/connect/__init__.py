"""The configuration of programs that use the API: made, and merged into theirs."""
