"""What machines hold of models: hashes of tensors, files of a worker's cache."""

from __future__ import annotations

from backends.state.base import Value


class TensorSums(Value, frozen=True, kw_only=True):
    """One tensor of a model file, and hashes of all its bytes."""

    name: str
    type: int
    """ggml's number."""
    shape: tuple[int, ...]
    """Always four, the row length first."""
    size_bytes: int
    fnv1a: str
    """FNV-1a, 16 hex digits: what llama.cpp calls it in a worker's cache."""
    xxh64: str
    """XXH64, 16 hex digits."""


class Hashing(Value, frozen=True, kw_only=True):
    """How far the hashing of a model is, and in the end what it found."""

    done_bytes: int
    size_bytes: int
    complete: bool
    tensors: tuple[TensorSums, ...] = ()
    """None until it is complete."""


class Seeding(Value, frozen=True, kw_only=True):
    """How far the filling of a worker's own cache is."""

    directory: str
    free_bytes: int
    """Of the disk it is on."""
    hashed_bytes: int
    """Of the model: that comes first."""
    model_bytes: int
    size_bytes: int
    """Of the tensors a worker asks its cache for; 0 until the model is hashed."""
    seeded_bytes: int
    """Of these: there already."""
    names: tuple[str, ...] = ()
    """Of the files with these tensors, there or not."""
    complete: bool


class CachedFile(Value, frozen=True, kw_only=True):
    """A tensor in the cache of a worker."""

    name: str
    """Its FNV-1a in 16 hex digits; ``.part`` behind it: of a seeding that broke off."""
    size_bytes: int
    mtime_s: int
    """Unix seconds of its last change."""


class WorkerCache(Value, frozen=True, kw_only=True):
    """The cache that ``rpc-server -c`` keeps on a machine."""

    directory: str
    free_bytes: int
    """Of the disk it is on."""
    files: tuple[CachedFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.size_bytes for file in self.files)
