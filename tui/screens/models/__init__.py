"""Models: every GGUF file found, and what is in it."""
