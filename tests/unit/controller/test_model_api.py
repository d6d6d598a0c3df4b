"""Questions about models here, where a disk may hang."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from backends.controller import model_api
from backends.controller.model_api import ModelApi
from tests.kit.waiting import until

NOBODY: Any = None


async def test_a_disk_that_hangs_takes_one_thread_however_often_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    answers = threading.Event()

    def names_after(typed: str) -> tuple[str, ...]:
        looks.append(typed)
        answers.wait()
        return ("mini.gguf",)

    monkeypatch.setattr(model_api, "names_after", names_after)
    api = ModelApi(NOBODY, NOBODY, NOBODY, got_engine=NOBODY)

    def asked(path: str) -> asyncio.Task[Any]:
        request = make_mocked_request("GET", f"/v1/paths?path={path}")
        return asyncio.create_task(api._paths(request))

    try:
        impatient = asked("/a")
        await until(lambda: looks == ["/a"])
        impatient.cancel()
        patient = asked("/b")
        await asyncio.to_thread(time.monotonic)  # Other work goes on.
        assert looks == ["/a"]
    finally:
        answers.set()
    assert (await patient).text == '["mini.gguf"]'
    assert looks == ["/a", "/b"]
