"""Compare the time of a weight by its type, on a worker of one thread.

Run it with ``make bench-quants``. The models differ in the type of their matrices
alone, and each answers in turn with one of Q4_K. They hold numbers, as real models do:
the scales of blocks are looked up in a table, which takes longer if they differ. The
model of zeros is that of ``peers measure``.

The last column is the time of a weight beside that of its bytes: half of the time of
Q4_K is for those. ``backends/split/cost.py`` has it.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from backends.models.synthetic import synthetic_model
from tests.native.stock import engine, server, start_worker
from tools.bench.bench_decode import tokens_per_s
from tui.cli.measure import OF_CPU

RPC_PROTOCOL = "7.0.0"
ZEROS = "zeros"
QUANTS = (
    ZEROS,
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
    *("IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "F16", "BF16", "F32"),
)
TURNS, TOKENS = 12, 6


def model_of(model: Path, quant: str) -> None:
    """The test model, or one like it with numbers of a usual size."""
    import numpy as np
    from gguf import GGUFReader

    if quant == ZEROS:
        synthetic_model(model, OF_CPU)
        return
    synthetic_model(model, OF_CPU._replace(quant=quant))
    begin, end = int(GGUFReader(model).data_offset), model.stat().st_size
    # Scales of blocks are of two bytes, at even places.
    drawn = np.random.default_rng(1).normal(0, 0.01, 1 << 19).astype(np.float16)
    part = drawn.tobytes()
    with model.open("r+b") as file:
        file.seek(begin)
        for at in range(begin, end, len(part)):
            file.write(part[: end - at])


def serving(stack: ExitStack, model: Path) -> str:
    """A llama-server over a worker that holds the model; its address."""
    worker = start_worker(stack, engine(RPC_PROTOCOL), model.with_suffix(".worker"))
    served = server(RPC_PROTOCOL, model, [worker], model.with_suffix(".log"))
    url = stack.enter_context(served)
    tokens_per_s(url)
    return url


def times_as_long(folder: Path, usual_url: str, quant: str) -> float:
    """The time of a token by that of Q4_K, the least of some turns each."""
    model = folder / f"{quant}.gguf"
    model_of(model, quant)
    with ExitStack() as stack:
        stack.callback(model.unlink)
        urls = serving(stack, model), usual_url
        turns = [
            [tokens_per_s(url, n_tokens=TOKENS) for url in urls] for _ in range(TURNS)
        ]
        own, usual = map(max, zip(*turns, strict=True))
        return float(usual / own)


def main() -> None:
    """Measure all types, or those that are named, and print the table."""
    import gguf

    def n_bytes(quant: str) -> float:
        name = OF_CPU.quant if quant == ZEROS else quant
        values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        return size / values

    print("| type | bits a weight | time by Q4_K's | beside its bytes |")
    print("|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        usual = folder / "usual.gguf"
        model_of(usual, OF_CPU.quant)
        usual_url = serving(stack, usual)
        for quant in sys.argv[1:] or QUANTS:
            ratio = times_as_long(folder, usual_url, quant)
            beside = 2 * ratio - n_bytes(quant) / n_bytes(OF_CPU.quant)
            bits = 8 * n_bytes(quant)
            print(f"| {quant} | {bits:.3g} | {ratio:.2f} | {beside:.2f} |", flush=True)


if __name__ == "__main__":
    main()
