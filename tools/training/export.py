"""Write a checkpoint as a GGUF file: `python -m tools.training.export`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np

from tools.training.evaluate import load_checkpoint
from tools.training.tokens import (
    CHAT_TEMPLATE,
    END,
    END_OF_TEXT,
    SPECIALS,
    special_id,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tools.training.model import Llama, Shape

NAME = "dllm demo"
OUT = Path(__file__).parent / "out"
ABOUT = (
    "A small llama trained from scratch on a text about the dllm-tui console. "
    "It answers questions about the console and nothing else."
)
TENSORS = {
    "embedding.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "output.weight": "output.weight",
}
BLOCK_TENSORS = {
    "attention_norm": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.o": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def tensor_name(name: str) -> str:
    if name in TENSORS:
        return TENSORS[name]
    _, layer, part = name.split(".", 2)
    return f"blk.{layer}.{BLOCK_TENSORS[part.removesuffix('.weight')]}.weight"


def add_about(writer: gguf.GGUFWriter) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(NAME)
    writer.add_description(ABOUT)
    writer.add_license("mit")
    writer.add_languages(["en"])
    writer.add_tags(["text-generation", "demo"])


def add_shape(writer: gguf.GGUFWriter, model: Llama) -> None:
    """Every size llama.cpp needs to build the graph."""
    shape: Shape = model.shape
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)


def merges_of(tokenizer: Tokenizer) -> list[str]:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [m if isinstance(m, str) else " ".join(m) for m in merges]


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Vocabulary, merges, special tokens and the chat template."""
    ids = range(tokenizer.get_vocab_size())
    texts = [tokenizer.id_to_token(i) or "" for i in ids]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([control if t in SPECIALS else normal for t in texts])
    writer.add_token_merges(merges_of(tokenizer))
    writer.add_bos_token_id(special_id(tokenizer, END_OF_TEXT))
    writer.add_eos_token_id(special_id(tokenizer, END))
    writer.add_eot_token_id(special_id(tokenizer, END))
    writer.add_pad_token_id(special_id(tokenizer, END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_weights(writer: gguf.GGUFWriter, model: Llama) -> None:
    for name, weight in model.state_dict().items():
        kind = np.float16 if weight.dim() == 2 else np.float32
        writer.add_tensor(tensor_name(name), weight.numpy().astype(kind))


def export(folder: Path, target: Path) -> None:
    """Write the GGUF beside `target`, then move it there in one step."""
    model, coder = load_checkpoint(folder)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    add_about(writer)
    add_shape(writer, model)
    add_tokenizer(writer, coder.tokenizer)
    add_weights(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(target)


def main() -> None:
    """Export the checkpoint of a training run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run", type=Path, default=OUT, help="folder of a training run"
    )
    parser.add_argument("--to", type=Path, default=Path("backends/demo/dllm-demo.gguf"))
    options = parser.parse_args()
    export(options.run, options.to)


if __name__ == "__main__":
    main()
