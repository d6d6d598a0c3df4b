"""Which versions of the RPC protocol understand each other."""

from __future__ import annotations

from backends.errors import EngineError


def protocols_match(head: str, worker: str) -> bool:
    """Whether a llama-server accepts a worker; unknown versions are left to try.

    llama-server asks for the same major version and a minor one not above its own
    (``ggml-rpc.cpp``, ``check_server_version``).
    """
    if not head or not worker:
        return True
    head_major, head_minor = _numbers(head)
    major, minor = _numbers(worker)
    return major == head_major and minor <= head_minor


def require_same_protocol(head: str, worker: str, peer: str) -> None:
    """Refuse a worker that llama-server would refuse, before anything starts.

    Raises:
        EngineError: the versions do not match; it says how to mend it.
    """
    if not protocols_match(head, worker):
        raise EngineError(
            f"The engine of {peer} speaks RPC {worker}, the head's RPC {head}",
            f"Install the head's engine there: dllm-tui peers setup {peer}.",
        )


def _numbers(version: str) -> tuple[int, int]:
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")]
    return (*parts, 0, 0)[0], (*parts, 0, 0)[1]
