"""What the Models screen and the model picker look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from backends.state import LayerBytes, ModelFile
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.looks import Look, Size, at_both_sizes
from tests.tui.shelf import Shelf, model

if TYPE_CHECKING:
    from textual.pilot import Pilot

MIB = 1024**2


MODELS = tuple(
    model(name, size_gib, arch=arch, file_type=quant, source=source, problem=problem)
    for name, arch, quant, size_gib, source, problem in (
        ("GLM-4.7-Flash-Q4_K_M", "deepseek2", "Q4_K_M", 16.9, "models", ""),
        (
            "Qwen3-Coder-480B-A35B-Instruct-UD-Q2_K_XL-00001-of-00004",
            *("qwen3moe", "Q2_K", 175.3, "huggingface", ""),
        ),
        ("gpt-oss-120b-mxfp4", "gpt-oss", "MXFP4", 59.0, "lmstudio", ""),
        ("Llama-3.3-70B-Instruct-Q4_K_M", "llama", "Q4_K_M", 39.6, "ollama", ""),
        ("Mistral-Small-3.2-24B [it]", "mistral", "Q6_K", 18.0, "huggingface", ""),
        ("half-a-download", "", "", 3.1, "models", "the file is cut short"),
    )
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


def shelf(*models: ModelFile) -> Shelf:
    folders = ("/home/me/.cache/huggingface/hub", "/home/me/models")
    shelf = Shelf(*models, folders=folders, snapshot=scenes.homelab_serving())
    shelf.models[GLM.path] = GLM
    return shelf


def models(*keys: str, until_shown: str) -> Any:
    """Go to the Models screen and press keys there."""

    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("f6")
        await until(pilot, lambda: until_shown in screen_text(pilot.app))
        await pilot.press(*keys)
        await pilot.pause()

    return run


@at_both_sizes
def test_models(look: Look, size: Size) -> None:
    detail = "● GLM" if size[1] < 24 else "layers + output"
    look(shelf(*MODELS), size, models(until_shown=detail))


def test_a_path_that_is_no_model(look: Look) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await models("p", *"/tmp/x.gguf", "enter", until_shown="output")(pilot)
        await until(pilot, lambda: "is not a GGUF" in screen_text(pilot.app))

    look(shelf(*MODELS), run=run)


def test_no_models(look: Look) -> None:
    look(shelf(), run=models(until_shown="No GGUF file found"))


@at_both_sizes
def test_picker(look: Look, size: Size) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("m")
        await until(pilot, lambda: "6 models" in screen_text(pilot.app))

    look(shelf(*MODELS), size, run)
