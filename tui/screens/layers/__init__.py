"""Layers: what each layer holds, and the device that computes it."""
