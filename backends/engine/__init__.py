"""llama.cpp: finding, building, asking and driving its binaries.

An engine that is not there, does not run or does not answer is an ``EngineError``; a
failed build is a ``BuildError`` with the end of its log. A lost connection to the
machine is a ``PeerUnreachable``. A full disk is an ``OSError``.
"""
