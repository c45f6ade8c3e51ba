#!/usr/bin/env python3
"""Makes models with random weights and computes, with transformers, what they should give.

  reference.py make DIR [--arch gpt2|neox|llama] [--size tiny|small|medium] [--seed N]
  reference.py logprobs DIR --ids 5,6,7 [--dtype float32|bfloat16]

`make` writes a Hugging Face directory: random weights with biases and norms away from 0 and 1, so that every path
counts, and a tokenizer.json of the repository (its vocabulary is smaller than the model's, as in many checkpoints).
`logprobs` prints one JSON object: `logprobs` of tokens 2..n, and `top`, the likeliest token at each position.
Needs torch and transformers; exits with 77 where they are absent, which callers take for "skip".
"""
import argparse
import json
import os
import shutil
import sys

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SIZES = {"tiny": (64, 2, 4), "small": (768, 12, 12), "medium": (1024, 24, 16)}  # width, layers, heads


def gpt2(width, layers, heads):
    config = transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=heads)
    return transformers.GPT2LMHeadModel(config)


def neox(width, layers, heads):
    config = transformers.GPTNeoXConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
        vocab_size=50304, max_position_embeddings=2048)
    return transformers.GPTNeoXForCausalLM(config)


def llama(width, layers, heads):
    config = transformers.LlamaConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
        intermediate_size=8 * width // 3 // 32 * 32, vocab_size=50304, max_position_embeddings=2048,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def make(args):
    torch.manual_seed(args.seed)
    model = {"gpt2": gpt2, "neox": neox, "llama": llama}[args.arch](*SIZES[args.size])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(args.dir)
    tokenizer = "novella-gpt2-7m" if args.arch == "gpt2" else "novella-neox-4m"
    shutil.copy(os.path.join(ROOT, "models", tokenizer, "tokenizer.json"), args.dir)


def logprobs(args):
    dtype = getattr(torch, args.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.dir, dtype=dtype).eval()
    ids = torch.tensor([args.ids])
    with torch.inference_mode():
        result = torch.log_softmax(model(ids).logits[0, :-1].double(), -1)
    print(json.dumps({"logprobs": result.gather(1, ids[0, 1:, None])[:, 0].tolist(),
                      "top": result.argmax(-1).tolist()}))


def main():
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("make", "logprobs"))
    parser.add_argument("dir")
    parser.add_argument("--arch", default="gpt2", choices=("gpt2", "neox", "llama"))
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ids", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    {"make": make, "logprobs": logprobs}[args.command](args)


if __name__ == "__main__":
    main()
