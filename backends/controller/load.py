"""Watching llama-server load a model, through its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.engine.logs import LoadLog
from backends.state import DeviceBuffers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.peers.host import Host
    from backends.split.flags import Placement

READ_BYTES = 1 << 20


class LoadWatch:
    """Follows a log from its beginning and knows how far the load is."""

    def __init__(self, host: Host, name: str, n_layer: int) -> None:
        """Follow the log of one process on one host."""
        self._host = host
        self._name = name
        self._offset = 0
        self._log = LoadLog()
        self._n_layer = n_layer

    @property
    def phase(self) -> str:
        """What llama-server is doing, in a few words."""
        return self._log.phase

    @property
    def layer_devices(self) -> Mapping[int, str]:
        """Layer index to device name, the output under ``n_layer``."""
        return self._log.layer_devices

    async def read(self) -> bool:
        """Take in the next part of the log; False when there is nothing new."""
        chunk = await self._host.read_log(self._name, self._offset, READ_BYTES)
        self._offset = chunk.next_offset
        self._log.feed(chunk.text)
        return bool(chunk.text)

    async def read_all(self) -> None:
        """Take in all that is there now."""
        while await self.read():
            pass

    def buffers(self, placement: Placement) -> tuple[DeviceBuffers, ...]:
        """Bytes per device name of ``placement``, and ``CPU`` for the head's.

        A buffer of an RPC device is printed as ``RPC<index>[host:port]``, the index
        being that within its endpoint; the endpoint tells which worker it is.
        """
        by_device: dict[str, dict[str, int]] = {}
        for (buffer, kind), size in self._log.buffers.items():
            sizes = by_device.setdefault(_device_of(buffer, placement), {})
            sizes[kind] = sizes.get(kind, 0) + size
        return tuple(
            DeviceBuffers(
                device=device,
                model_bytes=sizes.get("model", 0),
                kv_bytes=sizes.get("kv", 0),
                compute_bytes=sizes.get("compute", 0),
            )
            for device, sizes in by_device.items()
        )


def _device_of(buffer: str, placement: Placement) -> str:
    """The device a buffer belongs to: by its endpoint, by its name, else the CPU."""
    for index, endpoint in enumerate(placement.rpc_endpoints):
        if buffer.endswith(f"[{endpoint}]"):
            return f"RPC{index}"
    return buffer if buffer in placement.device_names else "CPU"
