"""Lab: pretend that links are slower, and see what becomes of it."""
