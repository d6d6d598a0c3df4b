"""Files over SFTP, from a server of this process whose connection breaks."""

from __future__ import annotations

import contextlib
import gc
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest

from backends.machines.ssh.files import read_at, write_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


class Broken(asyncssh.SFTPServer):
    """Its connection breaks with the first write."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes]) -> None:
        super().__init__(channel)
        self._channel = channel

    async def write(self, file_obj: object, offset: int, data: bytes) -> int:
        # The client sees the end of the stream, without a word before.
        self._channel.get_extra_info("socket").shutdown(socket.SHUT_WR)
        return len(data)


@contextlib.asynccontextmanager
async def sftp_of(
    server: type[asyncssh.SFTPServer],
) -> AsyncIterator[asyncssh.SFTPClient]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    async with (
        asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[key],
            authorized_client_keys=asyncssh.import_authorized_keys(
                key.export_public_key().decode()
            ),
            sftp_factory=server,
        ) as listener,
        asyncssh.connect(
            "127.0.0.1",
            listener.get_port(),
            known_hosts=None,
            config=[],
            username="ada",
            client_keys=[key],
            agent_path=None,
        ) as link,
    ):
        yield await link.start_sftp_client()


async def test_a_broken_write_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sftp_of(Broken) as sftp:
        file = await sftp.open(str(tmp_path / "model"), "wb")
        data = bytes(file.write_len * 4)
        with pytest.raises(asyncssh.ConnectionLost):
            await write_at(file, data, 0)
        del file
    gc.collect()
    assert not [one for one in caplog.records if "never retrieved" in one.getMessage()]


async def test_blocks_come_back_in_their_order_up_to_the_end(tmp_path: Path) -> None:
    async with (
        sftp_of(asyncssh.SFTPServer) as sftp,
        sftp.open(str(tmp_path / "model"), "w+b") as file,
    ):
        file.read_len = file.write_len = 1000
        data = bytes(range(256)) * 20
        await write_at(file, data, 7)
        assert await read_at(file, len(data), 7) == data
        assert await read_at(file, 2 * len(data), 7 + 1500) == data[1500:]
        assert await read_at(file, 10, 2 * len(data)) == b""
    assert (tmp_path / "model").read_bytes() == bytes(7) + data


async def test_a_server_has_no_more_requests_than_it_can_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Counter[str]()
    async with (
        sftp_of(asyncssh.SFTPServer) as sftp,
        sftp.open(str(tmp_path / "model"), "w+b") as file,
    ):
        file.read_len = file.write_len = 1000

        def counted(name: str) -> Callable[..., Awaitable[Any]]:
            real = getattr(file, name)

            async def request(*args: Any) -> Any:
                waiting["now"] += 1
                waiting[name] = max(waiting[name], waiting["now"])
                try:
                    return await real(*args)
                finally:
                    waiting["now"] -= 1

            return request

        monkeypatch.setattr(file, "write", counted("write"))
        monkeypatch.setattr(file, "read", counted("read"))
        data = bytes(300_000)
        await write_at(file, data, 0)
        assert await read_at(file, len(data), 0) == data
    assert waiting == {"now": 0, "write": 128, "read": 128}
