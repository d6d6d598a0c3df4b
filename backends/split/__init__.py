"""Pure arithmetic of splits: moves, flags, memory fit, comparison with the log.

A split that llama.cpp cannot run as meant is a ``PlanError``.
"""
