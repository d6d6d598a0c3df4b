"""Plans for sparse files: refused before anything starts if a hole would be read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.demo import MODEL_PATH
from backends.errors import PlanError
from backends.models.layers import read_model
from backends.planning.checking import check_holes, check_stand_ins
from backends.planning.layer_allocation import allocate_layers
from backends.planning.relay_pairs import Pairing
from backends.split.device_memory import device_loads, overcommitted
from backends.split.layout import make_split
from backends.state import Device, LayerRange, PairMode, Plan, SparseModel, WorkerSpec
from tests.unit.planning.machines import MIB, device, model_of

MODEL = read_model(MODEL_PATH)
N = MODEL.n_layer
MINI = WorkerSpec(name="mini", peer="mini")
HERE = WorkerSpec(name="worker1")
BARE = WorkerSpec(name="box", peer="box", endpoint="10.0.0.3:50052")
PAIRED = {"mini": Pairing(why="", program="/relay", models=("/big.gguf",))}


def sparse(
    layers: range, *, output: bool = True, embedding: bool = True
) -> SparseModel:
    return SparseModel(
        source="/big.gguf",
        identity="1-2-3",
        layers=tuple(layers),
        output=output,
        embedding=embedding,
        kept_bytes=1,
    )


def plan(*counts: int, worker: WorkerSpec = MINI, **more: object) -> Plan:
    devices = ["local/CPU", *worker.device_ids]
    split = make_split(N, devices, counts)
    return replace(Plan(model="/head.gguf", split=split, workers=(worker,)), **more)


CPU, GPU = device("local", "CPU"), device("local", "CUDA0")
ADA, BOB = device("ada", "CUDA0"), device("bob", "CUDA0")


@pytest.mark.parametrize(
    ("there", "devices", "expected"),
    [
        (sparse(range(4), output=False), (CPU, ADA, BOB), [4, 5, 4]),
        (sparse(range(4)), (CPU, ADA), [4, N - 3]),
        (sparse(range(9, N)), (CPU, ADA, GPU), [0, 9, N - 8]),
        (sparse(range(9, N), output=False), (CPU, ADA, GPU), [0, N + 1, 0]),
        (sparse(range(4), embedding=False), (CPU, ADA), [0, N + 1]),
        (sparse(range(3, 5), output=False), (CPU, ADA, GPU), [0, N + 1, 0]),
        (sparse(range(9, N)), (CPU, ADA, device("local", "CUDA0", 1)), [0, N + 1, 0]),
    ],
)
def test_a_proposal_gives_the_head_what_is_there(
    there: SparseModel, devices: tuple[Device, ...], expected: list[int]
) -> None:
    model = replace(MODEL, tied_output=False, sparse=there)
    split = allocate_layers(model, devices, 256, head="local")
    assert [share.layers for share in split.shares] == expected
    assert [share.device for share in split.shares] == [each.id for each in devices]
    if there.embedding:
        workers = tuple(
            WorkerSpec(name=name, peer=name, devices=("CUDA0",))
            for name in ("ada", "bob")
        )
        check_holes(replace(plan(4, N - 3), split=split, workers=workers), model)


def test_workers_are_filled_where_shares_in_proportion_do_not_fit() -> None:
    model = replace(model_of(100 * MIB), tied_output=False)
    model = replace(model, sparse=sparse(range(2), output=False))
    ada = device("ada", "CUDA0", 300 * MIB)
    devices = (CPU, ada, device("bob", "CUDA0", 950 * MIB))
    split = allocate_layers(model, devices, 256, head="local")
    assert [share.layers for share in split.shares] == [2, 2, 9]
    loads = device_loads(model, split, 256, head="local")
    assert not overcommitted(loads, devices)


def test_a_whole_head_or_one_alone_shares_as_ever() -> None:
    whole = replace(MODEL, sparse=sparse(range(N)))
    usual = allocate_layers(MODEL, (CPU, ADA, GPU), 256, head="local")
    assert allocate_layers(whole, (CPU, ADA, GPU), 256, head="local") == usual
    alone = replace(MODEL, sparse=sparse(range(4)))
    usual = allocate_layers(MODEL, (CPU, GPU), 256, head="local")
    assert allocate_layers(alone, (CPU, GPU), 256, head="local") == usual


def refused(asked: Plan, kept: SparseModel) -> str:
    with pytest.raises(PlanError) as error:
        check_holes(asked, replace(MODEL, path="/head.gguf", sparse=kept))
    return error.value.what


def test_who_has_what_it_needs_may_start() -> None:
    model = replace(MODEL, sparse=sparse(range(4), output=False))
    check_holes(plan(4, N - 3), model)
    check_holes(plan(0, N + 1), model)
    check_stand_ins(plan(4, N - 3), model, PAIRED)
    # A worker whose layers are all here needs no file of its own.
    whole = replace(MODEL, sparse=sparse(range(N)))
    check_holes(plan(4, N - 3, worker=BARE), whole)
    check_holes(plan(4, N - 3, relay=False), whole)


def test_the_head_lacks_layers() -> None:
    said = refused(plan(6, N - 5), sparse(range(4)))
    assert "head.gguf is sparse: it lacks layers 4–5, which local is to hold" in said
    said = refused(plan(N + 1, 0), sparse(range(N - 1), output=False))
    assert f"layer {N - 1} and the output" in said
    assert "the embedding" in refused(plan(0, N + 1), sparse(range(4), embedding=False))
    assert "the embedding" in refused(plan(1, N), sparse(range(4), embedding=False))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (plan(4, N - 3, relay=False), "relays are turned off"),
        (plan(4, N - 3, pair=PairMode.NEVER), "pairs are turned off"),
        (plan(4, N - 3, worker=HERE), "no network in between"),
        (plan(4, N - 3, worker=BARE), "somebody else started its rpc-server"),
    ],
)
def test_a_worker_without_a_relay_beside_it(asked: Plan, why: str) -> None:
    said = refused(asked, sparse(range(4)))
    assert f"it lacks layers 4–{N - 1}, and {asked.workers[0].name} cannot" in said
    assert why in said


def test_tensors_that_go_elsewhere_than_their_layer() -> None:
    for moved in ("-ot", "--override-tensor=a=CPU", "-cmoe", "--n-cpu-moe", "-ncffn"):
        said = refused(plan(4, N - 3, extra_args=(moved,)), sparse(range(4)))
        assert moved.partition("=")[0] in said
    experts = replace(plan(4, N - 3), experts=(LayerRange("local/CPU", 5, 5),))
    assert "-ot" in refused(experts, sparse(range(4)))
    # llama-server reads underscores too, and halves tensors or counts fewer layers.
    for words in (
        ("--override_tensor", "blk=CPU"),
        ("-sm", "tensor"),
        ("--override-kv", "llama.block_count=int:2"),
    ):
        refused(plan(4, N - 3, extra_args=words), sparse(range(4)))


@pytest.mark.parametrize(
    ("pairing", "why"),
    [
        (Pairing(why="dllm-relay on mini was built without TLS"), "without TLS"),
        (None, "no relay stands beside it"),
        (Pairing(why="", program="/r"), "mini has no file of /big"),
    ],
)
def test_a_worker_that_has_no_such_file(pairing: Pairing | None, why: str) -> None:
    known = {"mini": pairing} if pairing else {}
    model = replace(MODEL, sparse=sparse(range(4)))
    with pytest.raises(PlanError, match=why):
        check_stand_ins(plan(4, N - 3), model, known)
