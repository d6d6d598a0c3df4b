"""What the Models screen and the model picker look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from backends.state import LayerBytes, ModelCatalogue, ModelFile
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.looks import SIZES, name_of
from tests.tui.scripted import ScriptedCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from tui.app.app import DllmApp

    MakeApp = Callable[..., DllmApp]
    Compare = Callable[..., bool]

MIB = 1024**2
GIB = 1024**3


def model(name: str, arch: str, quant: str, size_gib: float, source: str) -> ModelFile:
    """A model file."""
    return ModelFile(
        path=f"/models/{name}.gguf",
        name=name,
        size_bytes=int(size_gib * GIB),
        source=source,
        arch=arch,
        file_type=quant,
        n_layer=48,
        n_ctx_train=131_072,
    )


MODELS = (
    model("GLM-4.7-Flash-Q4_K_M", "deepseek2", "Q4_K_M", 16.9, "models"),
    model(
        "Qwen3-Coder-480B-A35B-Instruct-UD-Q2_K_XL-00001-of-00004",
        "qwen3moe",
        "Q2_K",
        175.3,
        "huggingface",
    ),
    model("gpt-oss-120b-mxfp4", "gpt-oss", "MXFP4", 59.0, "lmstudio"),
    model("Llama-3.3-70B-Instruct-Q4_K_M", "llama", "Q4_K_M", 39.6, "ollama"),
    model("Mistral-Small-3.2-24B [it]", "mistral", "Q6_K", 18.0, "huggingface"),
    msgspec.structs.replace(
        model("half-a-download", "", "", 3.1, "models"), problem="the file is cut short"
    ),
)
GLM = msgspec.structs.replace(
    scenes.GLM,
    n_expert=64,
    n_expert_used=4,
    layers=tuple(
        msgspec.structs.replace(
            layer,
            groups=LayerBytes(attention=38 * MIB, ffn=22 * MIB, experts=301 * MIB),
            quants={"Q4_K": 240 * MIB, "Q6_K": 120 * MIB, "F32": MIB},
        )
        for layer in scenes.GLM.layers
    ),
)


class Shelf(ScriptedCluster):
    """Some models, or none."""

    def __init__(self, *models: ModelFile) -> None:
        super().__init__(scenes.homelab_serving())
        self.files = models
        self.models[GLM.path] = GLM

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        folders = ("/home/me/.cache/huggingface/hub", "/home/me/models")
        return ModelCatalogue(models=self.files, folders=folders)


def models(*keys: str, until_shown: str) -> Any:
    """Go to the Models screen and press keys there."""

    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("f6")
        await until(pilot, lambda: until_shown in screen_text(pilot.app))
        await pilot.press(*keys)
        await pilot.pause()

    return run


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_models(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    detail = "● GLM" if size[1] < 24 else "layers + output"
    app = make_app(Shelf(*MODELS))
    run = models(until_shown=detail)
    assert snap_compare(app, terminal_size=size, run_before=run)


def test_a_path_that_is_no_model(make_app: MakeApp, snap_compare: Compare) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await models("p", *"/tmp/x.gguf", "enter", until_shown="output")(pilot)
        await until(pilot, lambda: "is not a GGUF" in screen_text(pilot.app))

    app = make_app(Shelf(*MODELS))
    assert snap_compare(app, terminal_size=(80, 24), run_before=run)


def test_no_models(make_app: MakeApp, snap_compare: Compare) -> None:
    run = models(until_shown="No GGUF file found")
    assert snap_compare(make_app(Shelf()), terminal_size=(80, 24), run_before=run)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_picker(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("m")
        await until(pilot, lambda: "6 models" in screen_text(pilot.app))

    app = make_app(Shelf(*MODELS))
    assert snap_compare(app, terminal_size=size, run_before=run)
