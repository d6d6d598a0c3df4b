"""llama.cpp: finding, building, asking and driving its binaries.

An engine that is not there, does not run, does not answer or cannot be built is an
``EngineError``. A full disk is a ``MachineError``, a lost connection to the machine a
``PeerUnreachable``.
"""
