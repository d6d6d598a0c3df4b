"""GGUF files: header, layers, memory, catalogue."""
