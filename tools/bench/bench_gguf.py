"""Opening a GGUF with a 150 000-token vocabulary: our walk against gguf.GGUFReader.

Run it with ``make bench-gguf``. Both open the same file in turn, so that a busy machine
slows both; the medians are compared. Exits 1 when ours is not 50 times as fast.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGUFReader, GGUFWriter

from backends.models.header import read_header
from backends.models.layers import read_model

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 150_000
ROUNDS = 7
RATIO_MIN = 50.0


def write_model(path: Path) -> None:
    """A small llama with the metadata of a model that has a large vocabulary."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{index:x}" for index in range(TOKENS)])
    writer.add_token_scores([float(-index) for index in range(TOKENS)])
    writer.add_token_types([1] * TOKENS)
    writer.add_token_merges([f"t{index:x} k{index:x}" for index in range(TOKENS)])
    for layer in range(2):
        weight = np.zeros((32, 32), dtype=np.float32)
        writer.add_tensor(f"blk.{layer}.attn_q.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cpu_seconds(job: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    job()
    return time.process_time() - start


def main() -> int:
    """Time both, print the medians and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_model(path)
        read_model(path)
        ours, summary, reader = [], [], []
        for _ in range(ROUNDS):
            ours.append(cpu_seconds(lambda: read_header(path)))
            summary.append(cpu_seconds(lambda: read_model(path)))
            reader.append(cpu_seconds(lambda: GGUFReader(path)))
        size = path.stat().st_size
    mine, theirs = statistics.median(ours), statistics.median(reader)
    print(f"file                {size / 1e6:8.1f} MB, {TOKENS} tokens and merges")
    print(f"ours, header        {mine * 1e3:8.1f} ms")
    print(f"ours, layers too    {statistics.median(summary) * 1e3:8.1f} ms")
    print(f"gguf.GGUFReader     {theirs * 1e3:8.1f} ms")
    print(f"ratio               {theirs / mine:8.1f}  (at least {RATIO_MIN:.0f})")
    return 0 if theirs / mine >= RATIO_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
