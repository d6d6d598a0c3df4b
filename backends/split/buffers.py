"""Our own arithmetic of llama.cpp's KV cache and compute buffers; all predicted.

The rules are read off the buffers that llama.cpp (RPC 7.0.0) reports. Models of
several widths were tried, with flash attention and without. Contexts, slots, cache
types and numbers of devices were varied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from backends.errors import PlanError, did_you_mean
from backends.state import FlashAttention, Layer, ModelInfo, ServerSettings

# llama-server's default physical batch (-ub): tokens of one prompt pass.
UBATCH_TOKENS = 512
F32_BYTES = 4
F16_BYTES = 2
CELL_PAD = 256
# Inputs are kept so often where several devices work at once (GGML_SCHED_MAX_COPIES).
PIPELINE_COPIES = 4
# Rows of the hidden state and of the feed-forward part alive at one time.
WIDTHS_ALIVE = 3
# Rows of the hidden state alive within attention: query, K, V, what went in.
ATTENTION_WIDTHS_ALIVE = 4
# Rows of the hidden state alive while results of experts are added up, beside two of
# each expert in use.
EXPERTS_WIDTHS_ALIVE = 5
TOKEN_VECTORS_SINCE = 8
# The feed-forward width of most dense models, in hidden widths, where none can be told.
FEED_FORWARD_WIDTHS = 3
PLAIN = ServerSettings()


def kv_bytes(
    model: ModelInfo, ctx_size: int, server: ServerSettings = PLAIN
) -> tuple[int, ...]:
    """Bytes of each layer's cache and state at a context, 0 for the output."""

    # Most layers are alike: each kind is counted once.
    kinds: dict[tuple[int, ...], int] = {}

    def of(layer: Layer) -> int:
        kind = layer.k_bytes_per_token, layer.kv_bytes_per_token, layer.kv_window
        found = kinds.get(kind)
        if found is None:
            cells = _cells(layer, ctx_size, server)
            kinds[kind] = found = _token_bytes(layer, server) * cells
        return (found + layer.state_bytes) * server.slots

    return (*map(of, model.layers), 0)


def _token_bytes(layer: Layer, server: ServerSettings) -> int:
    k_values = layer.k_bytes_per_token // F16_BYTES
    v_values = layer.kv_bytes_per_token // F16_BYTES - k_values
    k_bytes = stored_bytes(k_values, server.cache_type_k)
    return k_bytes + stored_bytes(v_values, server.cache_type_v)


def slot_tokens(ctx_size: int, server: ServerSettings = PLAIN) -> int:
    return ctx_size if server.slots == 1 else padded(ctx_size // server.slots)


def padded(cells: int) -> int:
    return -(-cells // CELL_PAD) * CELL_PAD


def _cells(layer: Layer, ctx_size: int, server: ServerSettings) -> int:
    most = slot_tokens(ctx_size, server)
    if not layer.kv_window:
        return most
    return padded(min(most, layer.kv_window + UBATCH_TOKENS))


def _cells_by_window(
    layers: Iterable[Layer], ctx_size: int, server: ServerSettings
) -> dict[int, int]:
    windows = {layer.kv_window: layer for layer in layers if _attends(layer)}
    return {w: _cells(layer, ctx_size, server) for w, layer in windows.items()}


def copies(n_devices: int, *, all_offloaded: bool) -> int:
    """The number of copies of llama.cpp's inputs: it pipelines over several devices."""
    return PIPELINE_COPIES if n_devices > 1 and all_offloaded else 1


def device_compute_bytes(
    model: ModelInfo, ctx_size: int, n_copies: int, server: ServerSettings = PLAIN
) -> int:
    """Bytes of the first device, if it attends in all the model's ways.

    A device after it has ``later_bytes`` more.
    """
    row, hidden = UBATCH_TOKENS * F32_BYTES, model.n_embd
    width = model.n_ff or FEED_FORWARD_WIDTHS * hidden
    added_up = 2 * model.n_expert_used + EXPERTS_WIDTHS_ALIVE
    activations = max(
        row * WIDTHS_ALIVE * (hidden + width),
        row * hidden * (added_up if model.n_expert_used else 0),
        row * ATTENTION_WIDTHS_ALIVE * hidden
        + _attention_bytes(model, ctx_size, server),
    )
    inputs = inputs_bytes(model.layers, ctx_size, n_copies, server)
    return _copied_bytes(model, n_copies) * model.n_handed_over + activations + inputs


def later_bytes(model: ModelInfo, n_copies: int, *, is_last: bool = False) -> int:
    """The copies of what a device gets from the one before it, and hands on."""
    handed_over = model.n_handed_over
    copied = handed_over if is_last else 2 * handed_over - 1
    return _copied_bytes(model, n_copies) * copied


def _copied_bytes(model: ModelInfo, n_copies: int) -> int:
    return hidden_bytes(model) * (n_copies if n_copies > 1 else 0)


def hidden_bytes(model: ModelInfo) -> int:
    """The hidden state of a prompt pass."""
    return UBATCH_TOKENS * F32_BYTES * model.n_embd


def host_compute_bytes(
    model: ModelInfo, ctx_size: int, n_copies: int, server: ServerSettings = PLAIN
) -> int:
    """Bytes that llama-server keeps on the head's CPU, which has no layers."""
    inputs = inputs_bytes(model.layers, ctx_size, n_copies, server)
    return hidden_bytes(model) * (n_copies + 1) + inputs


def inputs_bytes(
    layers: Iterable[Layer],
    ctx_size: int,
    n_copies: int,
    server: ServerSettings = PLAIN,
) -> int:
    """The masks of some layers: one for each window, and one for the whole context."""
    cells = _cells_by_window(layers, ctx_size, server)
    n_bytes = F32_BYTES if is_unfused(server) else F16_BYTES
    return n_copies * UBATCH_TOKENS * n_bytes * sum(cells.values())


def rpc_major(protocol: str) -> int:
    """The first number of an RPC version; 0 if it is not known."""
    major = protocol.partition(".")[0]
    return int(major) if major.isdecimal() else 0


def embedded_bytes(model: ModelInfo, n_copies: int, protocol: str) -> tuple[int, int]:
    """Further bytes of the head's CPU, and of the first device.

    Since RPC 8.0.0 the vectors of tokens are an input beside the tokens.
    """
    if rpc_major(protocol) < TOKEN_VECTORS_SINCE:
        return 0, 0
    hidden = hidden_bytes(model)
    first = 2 * n_copies + 1 if n_copies > 1 else 1
    return hidden * (n_copies + 1), hidden * first


def _attention_bytes(model: ModelInfo, ctx_size: int, server: ServerSettings) -> int:
    """The buffer of the layer that attends to most, beside its activations.

    Without flash attention that is a number for every head, token and cell; with it
    f32 K and V are turned into f16 first.
    """
    attending = [layer for layer in model.layers if _attends(layer)]
    cells = max(_cells_by_window(attending, ctx_size, server).values(), default=0)
    if is_unfused(server):
        return model.n_head * UBATCH_TOKENS * F32_BYTES * cells
    k_bytes = max((layer.k_bytes_per_token for layer in attending), default=0)
    both = max((layer.kv_bytes_per_token for layer in attending), default=0)
    turned = k_bytes * (server.cache_type_k == F32)
    turned += (both - k_bytes) * (server.cache_type_v == F32)
    return turned * cells * server.slots


def is_unfused(server: ServerSettings) -> bool:
    return server.flash_attention is FlashAttention.OFF


def _attends(layer: Layer) -> bool:
    return layer.kv_bytes_per_token > 0


class CacheType(NamedTuple):
    values: int
    n_bytes: int


F16 = "f16"
F32 = "f32"
CACHE_TYPES = {
    F32: CacheType(1, 4),
    F16: CacheType(1, 2),
    "bf16": CacheType(1, 2),
    "q8_0": CacheType(32, 34),
    "q5_1": CacheType(32, 24),
    "q5_0": CacheType(32, 22),
    "q4_1": CacheType(32, 20),
    "q4_0": CacheType(32, 18),
    "iq4_nl": CacheType(32, 18),
}
"""By the name llama-server has for it (``--cache-type-k``), the largest first."""


def cache_type(name: str) -> CacheType:
    if name not in CACHE_TYPES:
        raise PlanError(
            f"There is no KV cache type {name}",
            f"{did_you_mean(name, CACHE_TYPES)}Types: {', '.join(CACHE_TYPES)}.",
        )
    return CACHE_TYPES[name]


def is_quantized(name: str) -> bool:
    return cache_type(name).values > 1


def stored_bytes(n_values: int, name: str) -> int:
    """Bytes of so many values; of a type we do not know, as many as of f16."""
    kind = CACHE_TYPES.get(name, CACHE_TYPES[F16])
    return n_values * kind.n_bytes // kind.values
