"""llama.cpp: finding, building, asking and driving its binaries."""
