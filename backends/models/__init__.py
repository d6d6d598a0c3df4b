"""GGUF files: header, layers, memory, catalogue.

A file that cannot be used is a ``ModelError``, which names the file and the fault.
A machine that does not answer a search is a ``MachineError``.
"""
