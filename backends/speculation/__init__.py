"""Speculation: methods, draft models, and the comparison of them.

A draft that a plan contradicts is a ``PlanError``; one that the engine cannot run is an
``EngineError``.
"""
