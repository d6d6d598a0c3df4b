"""The llama.cpp sources that can be built: PyPI sdists, pinned by version and hash."""

from __future__ import annotations

from backends.errors import EngineError, UsageError
from backends.state import Value


class Source(Value, frozen=True, kw_only=True):
    """One pinned sdist that holds the whole llama.cpp tree."""

    key: str
    """Name of the engine built from it, ``major.minor.patch`` of its RPC protocol."""
    package: str
    version: str
    sha256: str
    subdirectory: str
    """The folder of llama.cpp inside the sdist, without the top folder."""
    rpc_protocol: str
    build_number: int
    """llama.cpp's build number; 0 where the sdist does not tell."""
    commit: str
    """llama.cpp's commit or tag, for ``llama-server --version``."""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


SOURCES: tuple[Source, ...] = (
    Source(
        key="7.0.0",
        package="llama-cpp-python",
        version="0.3.36",
        sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        subdirectory="vendor/llama.cpp",
        rpc_protocol="7.0.0",
        build_number=0,
        commit="0c1e57098",
    ),
    Source(
        key="8.0.0",
        package="xllamacpp",
        version="2026.10.11549",
        sha256="c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b",
        subdirectory="thirdparty/llama.cpp",
        rpc_protocol="8.0.0",
        build_number=11549,
        commit="b11549",
    ),
)
DEFAULT = SOURCES[0]


def find_source(version: str | None) -> Source:
    if version is None:
        return DEFAULT
    wanted = version.strip().removeprefix("v")
    for source in SOURCES:
        if wanted in (source.key, source.version, source.requirement):
            return source
    known = ", ".join(f"{s.key} ({s.requirement})" for s in SOURCES)
    raise UsageError(f"No llama.cpp version {version} is pinned", f"Known: {known}.")


def protocols_match(head: str, worker: str) -> bool:
    """True if a llama-server accepts a worker; unknown versions are left to try.

    llama-server asks for the same major version and a minor one not above its own
    (``ggml-rpc.cpp``, ``check_server_version``).
    """
    if not head or not worker:
        return True
    head_major, head_minor = _numbers(head)
    major, minor = _numbers(worker)
    return major == head_major and minor <= head_minor


def require_same_protocol(head: str, worker: str, peer: str) -> None:
    """Refuse a worker that llama-server would refuse, before anything starts."""
    if not protocols_match(head, worker):
        raise EngineError(
            f"The engine of {peer} speaks RPC {worker}, the head's RPC {head}",
            f"Install the head's engine there: dllm-tui peers setup {peer}.",
        )


def _numbers(version: str) -> tuple[int, int]:
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")]
    return (*parts, 0, 0)[0], (*parts, 0, 0)[1]
