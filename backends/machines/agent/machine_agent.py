"""What an agent tells of its machine, and what it does there for a moment."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Any, TypeVar

from backends.errors import HostError
from backends.machines.agent.answers import MemoryTold, device_of
from backends.machines.agent.channel import Refused
from backends.machines.agent.messages import converted
from backends.machines.agent.upkeep import ASK_TIMEOUT_S, HeldAgent, error_of
from backends.questions import FoundFile, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.state import Device

T = TypeVar("T")

FIND_TIMEOUT_S = 60.0
FIND_FILES_MAX = 16_384
ERRANDS_AT_ONCE = 16
"""What may take a while; an agent refuses more than 64."""
# A crashing llama.cpp would first run gdb on itself, for seconds.
ALWAYS_ENV = {"GGML_NO_BACKTRACE": "1"}


class MachineAgent:
    """One machine, asked through its agent, which the first question starts."""

    def __init__(self, name: str, agent: HeldAgent) -> None:
        """``name`` is the peer's."""
        self._name = name
        self._agent = agent
        self._errands = asyncio.Semaphore(ERRANDS_AT_ONCE)

    @property
    def name(self) -> str:
        """The peer's name."""
        return self._name

    @property
    def run_dir(self) -> str:
        """Where its process directories are there; empty before the first call."""
        return self._agent.hello.run_dir

    @property
    def features(self) -> tuple[str, ...]:
        """What the helper there can do; nothing before the first call."""
        return self._agent.hello.features

    @property
    def version(self) -> str:
        """Of the helper there; empty before the first call."""
        return self._agent.hello.version

    async def free_port(self) -> int:
        """A loopback port nobody listens on, not given to another caller just now."""
        return self._part((await self._ask("free_port")).get("port"), int)

    async def listens(self, pid: int, port: int) -> bool:
        """Whether that very process listens on that loopback port."""
        answer = await self._ask("listens", pid=pid, port=port)
        return self._part(answer.get("listens"), bool)

    async def port_owner(self, port: int) -> str | None:
        """``name (pid 42)`` of whoever listens on a port; None when it is free."""
        answer = await self._ask("port_owner", port=port)
        if not self._part(answer.get("used"), bool):
            return None
        if "pid" not in answer:
            return "another process"
        pid = self._part(answer["pid"], int)
        return f"{self._part(answer.get('name'), str)} (pid {pid})"

    async def memory(self) -> Device:
        """The machine's main memory as a CPU device; limits of containers count."""
        told = self._part(await self._ask("memory"), MemoryTold)
        return device_of(told, self._name)

    async def rss_bytes(self, pids: Sequence[int]) -> dict[int, int]:
        """Main memory in use by those of some processes that live."""
        answer = await self._ask("rss", pids=list(pids))
        found = self._part(answer.get("rss_bytes"), dict[str, int])
        return {int(pid): size for pid, size in found.items() if pid.isdigit()}

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        touch: int = 0,
        until: Sequence[str] = (),
    ) -> Outcome:
        """As ``backends.questions.Asked`` says.

        Raises:
            HostError: it cannot be executed, or the helper is too old for ``touch``.
        """
        if touch:
            await self._require("run:touch")
        async with self._errands:
            answer = await self._ask(
                "run",
                timeout_s + ASK_TIMEOUT_S,
                argv=tuple(argv),
                env={**ALWAYS_ENV, **(env or {})},
                timeout_s=timeout_s,
                touch=touch,
                until=tuple(until),
            )
        return self._part(answer, Outcome)

    async def find(
        self, folders: Sequence[str], *, depth: int = 0, suffix: str = ""
    ) -> list[FoundFile]:
        """The files below some folders there whose names end like that, by path."""
        async with self._errands:
            answer = await self._ask(
                "find",
                FIND_TIMEOUT_S,
                folders=tuple(folders),
                depth=depth,
                suffix=suffix,
                limit=FIND_FILES_MAX,
            )
        return list(self._part(answer.get("files"), tuple[FoundFile, ...]))

    async def identity(self, path: str) -> str:
        """Which bytes a file there holds, as ``models.identity`` defines it.

        Raises:
            HostError: it cannot be read.
        """
        async with self._errands:
            answer = await self._ask("identity", FIND_TIMEOUT_S, path=path)
        return self._part(answer.get("identity"), str)

    async def read(self, path: str) -> bytes:
        """The first MiB of a file there.

        Raises:
            HostError: it cannot be read.
        """
        async with self._errands:
            return self._bytes(await self._ask("read", path=path))

    # --- inside -------------------------------------------------------------------

    async def _require(self, feature: str) -> None:
        """See that the helper there can do something.

        Raises:
            HostError: it is too old for that.
        """
        await self._agent.connect()
        if feature not in self.features:
            raise HostError(
                f"The helper on {self._name} is too old for that",
                f"Install it anew: dllm-tui peers provision {self._name}.",
            )

    async def _ask(
        self, verb: str, within_s: float = ASK_TIMEOUT_S, **members: Any
    ) -> dict[str, Any]:
        try:
            return await self._agent.ask(verb, members, within_s)
        except Refused as error:
            name = str(members.get("name", ""))
            raise error_of(error.complaint, name, self._name) from error

    def _bytes(self, answer: dict[str, Any]) -> bytes:
        """The data in an answer.

        Raises:
            HostError: it is none.
        """
        try:
            return base64.b64decode(self._part(answer.get("data"), str), validate=True)
        except (binascii.Error, ValueError) as error:
            raise HostError(f"{self._name} gave an answer without sense") from error

    def _part(self, value: object, kind: type[T]) -> T:
        """A part of an answer, which may come from anybody.

        Raises:
            HostError: it is not what it should be.
        """
        found = converted(value, kind)
        if found is None:
            raise HostError(f"{self._name} gave an answer without sense")
        return found
