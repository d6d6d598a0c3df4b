"""Starting SFTP where a login shell may print whatever it likes."""

from __future__ import annotations

import secrets
from typing import Any, cast

import asyncssh

# Where systems keep it; OpenSSH itself only knows its own place.
_SERVERS = (
    "/usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server "
    "/usr/lib/ssh/sftp-server /usr/libexec/sftp-server /usr/lib/sftp-server"
)
# The braces make sh read all of it before it starts: what follows is for the server.
_SCRIPT = """{{
for dllm_ in {servers}; do
  [ -x "$dllm_" ] && printf '%s\\n' {mark} && exec "$dllm_"
done
exit 1
}}
"""
_NOISE_BYTES_MAX = 1 << 20


async def start_sftp(link: asyncssh.SSHClientConnection) -> asyncssh.SFTPClient:
    """An SFTP client; the caller bounds the time.

    A subsystem may be started by the user's login shell, and one that prints a greeting
    (a noisy ``.bashrc``) speaks into the protocol. So the server is run from a shell of
    ours behind a mark; where it is nowhere to be found, sshd may have one built in.

    Raises:
        OSError, asyncssh.Error: it cannot be started, or the connection broke.
    """
    found = await _behind_mark(link)
    if found is None:
        return await link.start_sftp_client()
    session = cast("Any", _Session(link, found))
    return await asyncssh.SSHClientConnection.start_sftp_client(session)


class _Session:
    """A connection whose next session is one that runs already.

    asyncssh starts an SFTP client in subsystems only, not in a process.
    """

    def __init__(
        self,
        link: asyncssh.SSHClientConnection,
        process: asyncssh.SSHClientProcess[bytes],
    ) -> None:
        self._inner = link
        self._process = process

    async def open_session(self, **_: object) -> tuple[Any, Any, Any]:
        return self._process.stdin, self._process.stdout, self._process.stderr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def _behind_mark(
    link: asyncssh.SSHClientConnection,
) -> asyncssh.SSHClientProcess[bytes] | None:
    """A process that has become the server; None when there is none to be found."""
    mark = secrets.token_hex(16)
    process = await link.create_process("exec /bin/sh -s", encoding=None)
    process.stdin.write(_SCRIPT.format(servers=_SERVERS, mark=mark).encode())
    seen = 0
    while line := await process.stdout.readline():
        if line.rstrip(b"\n").endswith(mark.encode()):
            return process
        seen += len(line)
        if seen > _NOISE_BYTES_MAX:
            break
    process.close()
    return None
