"""Models of a scripted cluster."""

from __future__ import annotations

from msgspec.structs import replace

from backends.state import ClusterSnapshot, ModelCatalogue, ModelFile
from tests.tui.scripted import ScriptedCluster

GIB = 1024**3


def model(name: str, size_gib: float = 1, **facts: object) -> ModelFile:
    file = ModelFile(
        path=f"/models/{name}.gguf",
        name=name,
        size_bytes=int(size_gib * GIB),
        source="models",
        n_layer=48,
        n_ctx_train=131_072,
    )
    return replace(file, **facts)


class ModelsCluster(ScriptedCluster):
    """A cluster with these models; the search ends when told."""

    def __init__(
        self,
        *models: ModelFile,
        folders: tuple[str, ...] = ("/models",),
        snapshot: ClusterSnapshot | None = None,
    ) -> None:
        super().__init__(snapshot)
        self.files = models
        self.folders = folders
        self.scanning = False

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        self._call("catalogue", refresh)
        return ModelCatalogue(
            models=self.files, folders=self.folders, scanning=self.scanning
        )
