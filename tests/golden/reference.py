#!/usr/bin/env python3
"""Random models in the Hugging Face layout, and what transformers computes with them.

  reference.py make DIR [--arch gpt2|neox|llama] [--size tiny|small|medium] [--seed 0]
  reference.py logprobs DIR --ids 1,2,3 [--dtype float32]

Biases and norms are moved away from 0 and 1, so that they count.
"""
import argparse
import json
import pathlib

SIZES = {"tiny": (64, 2, 4), "small": (768, 12, 12), "medium": (1024, 24, 16)}  # width, layers, heads
ARCHITECTURES = ("gpt2", "neox", "llama")


def make(directory, arch, size, seed=0, vocabulary=50304):
    """Writes a model directory of random weights, unless it is there already."""
    directory = pathlib.Path(directory)
    if (directory / "complete").exists():
        return
    import torch
    import transformers
    torch.manual_seed(seed)
    width, layers, heads = SIZES[size]
    if arch == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=width, n_layer=layers, n_head=heads, vocab_size=vocabulary, bos_token_id=0, eos_token_id=0))
    elif arch == "neox":
        model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
            vocab_size=vocabulary, max_position_embeddings=2048, rotary_pct=0.25))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
            intermediate_size=8 * width // 3 // 32 * 32, vocab_size=vocabulary, max_position_embeddings=2048,
            rope_theta=100000.0, rms_norm_eps=1e-5, tie_word_embeddings=True))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    (directory / "complete").touch()


def logprobs(directory, ids, dtype="float32"):
    """Log-probabilities of ids[1:], in float64 from logits of `dtype` arithmetic."""
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    tokens = torch.tensor([ids])
    with torch.inference_mode():
        scores = torch.log_softmax(model(tokens).logits[0, :-1].double(), -1)
    return scores.gather(1, tokens[0, 1:, None])[:, 0].tolist()


SITES = ("residual_pre", "attention_out", "mlp_in", "neurons", "mlp_out", "residual_post")


def activations(directory, ids):
    """What hooks see at each site of each layer: [layer][site] of [tokens, width], float32."""
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    if model.config.model_type == "gpt2":
        parts = [(block, block.attn, block.mlp, block.mlp.c_proj) for block in model.transformer.h]
    elif model.config.model_type == "gpt_neox":
        parts = [(block, block.attention, block.mlp, block.mlp.dense_4h_to_h) for block in model.gpt_neox.layers]
    else:
        parts = [(block, block.self_attn, block.mlp, block.mlp.down_proj) for block in model.model.layers]
    found = [{} for _ in parts]

    def keep(layer, site, value):
        found[layer][site] = (value[0] if isinstance(value, tuple) else value).reshape(len(ids), -1)

    for layer, (block, attention, mlp, down) in enumerate(parts):
        def before(site, layer=layer):
            return lambda module, arguments: keep(layer, site, arguments)

        def after(site, layer=layer):
            return lambda module, arguments, output: keep(layer, site, output)
        block.register_forward_pre_hook(before("residual_pre"))
        attention.register_forward_hook(after("attention_out"))
        mlp.register_forward_pre_hook(before("mlp_in"))
        down.register_forward_pre_hook(before("neurons"))
        mlp.register_forward_hook(after("mlp_out"))
        block.register_forward_hook(after("residual_post"))
    with torch.inference_mode():
        model(torch.tensor([ids]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("make", "logprobs"))
    parser.add_argument("directory")
    parser.add_argument("--arch", default="gpt2", choices=ARCHITECTURES)
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ids", type=lambda text: [int(part) for part in text.split(",")], default=[])
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    if args.command == "make":
        make(args.directory, args.arch, args.size, args.seed)
    else:
        print(json.dumps({"logprobs": logprobs(args.directory, args.ids, args.dtype)}))


if __name__ == "__main__":
    main()
