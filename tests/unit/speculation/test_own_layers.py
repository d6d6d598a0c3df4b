"""MTP layers of a model: their device and their memory."""

from __future__ import annotations

from msgspec.structs import replace

from backends.speculation.memory import (
    own_layers,
    with_draft,
    with_own_layers,
    with_own_weights,
)
from backends.split.layout import make_split
from backends.state import (
    MTP_DRAFT,
    DeviceMemory,
    Layer,
    ModelInfo,
    Plan,
    ServerSettings,
    Speculation,
    Split,
)

MIB = 1 << 20
N_LAYER, CTX, KV_BYTES = 6, 512, 4096
TABLES = Speculation(type="ngram-map-k")
WORKER, HEAD = "w/CPU", "local/CUDA0"


def layer(index: int) -> Layer:
    """The last one drafts: it has no cache of the model's own."""
    kv_bytes = 0 if index == N_LAYER - 1 else KV_BYTES
    return Layer(
        index=index,
        bytes=MIB,
        kv_bytes_per_token=kv_bytes,
        k_bytes_per_token=kv_bytes // 2,
    )


MODEL = ModelInfo(
    path="/m.gguf",
    arch="glm4moe",
    n_layer=N_LAYER,
    n_layer_nextn=1,
    n_embd=64,
    n_vocab=512,
    n_head=4,
    layers=tuple(map(layer, range(N_LAYER))),
    output_bytes=MIB,
)


def split(*counts: int) -> Split:
    return make_split(N_LAYER, ["local/CPU", WORKER, HEAD], counts)


def plan(*counts: int) -> Plan:
    """Drafting with the model's own layers, or as it pays."""
    server = ServerSettings(draft="auto", cache_type_k="q8_0", cache_type_v="q8_0")
    made = Plan(model=MODEL.path, split=split(*counts), ctx_size=CTX, server=server)
    own = own_layers(made, MODEL, "draft-mtp")
    return replace(made, speculation=replace(own, instead=(TABLES,)))


def drafting(made: Plan) -> Speculation:
    assert made.speculation is not None
    return made.speculation


def test_they_are_where_the_last_layers_are() -> None:
    assert drafting(plan(2, 3, 2)).device == HEAD
    # The output alone does not draft.
    assert drafting(plan(2, 4, 1)).device == WORKER
    assert drafting(plan(7, 0, 0)).device == "local/CPU"
    assert drafting(plan(2, 3, 2)).draft == MTP_DRAFT


def test_a_cache_of_the_usual_type_and_a_compute_buffer_are_theirs() -> None:
    (memory,) = drafting(plan(2, 3, 2)).memory
    assert (memory.device, memory.model_bytes) == (HEAD, 0)
    assert memory.kv_bytes == CTX * KV_BYTES
    assert memory.compute_bytes > 0


def test_they_follow_the_split() -> None:
    moved = with_own_layers(replace(plan(2, 3, 2), split=split(3, 4, 0)), MODEL)
    assert drafting(moved).device == WORKER
    assert drafting(moved).instead == (TABLES,)
    untouched = replace(moved, speculation=TABLES)
    assert with_own_layers(untouched, MODEL) is untouched


def test_what_auto_may_choose_takes_its_memory_too() -> None:
    own = replace(drafting(plan(2, 3, 2)), instead=())
    draft = DeviceMemory(device=HEAD, model_bytes=7)
    both = Speculation(
        type="draft-simple",
        model="/d.gguf",
        device=HEAD,
        memory=(draft,),
        instead=(own, TABLES),
    )
    held = with_draft(DeviceMemory(device=HEAD), both)
    assert (held.model_bytes, held.kv_bytes) == (7, CTX * KV_BYTES)


def test_their_weights_are_added_to_what_the_engine_says() -> None:
    said = [DeviceMemory(device=name, model_bytes=10) for name in (WORKER, HEAD)]
    told = {one.device: one for one in with_own_weights(said, plan(2, 3, 2), MODEL)}
    assert told[HEAD].model_bytes == MIB + 10
    assert told[WORKER].model_bytes == 10
    plain = replace(plan(2, 3, 2), speculation=None)
    assert with_own_weights(said, plain, MODEL) == tuple(said)
