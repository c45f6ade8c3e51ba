#!/usr/bin/env python3
"""Writes the tiny models of tests/data/models, each with the log-probabilities transformers computes for it.

  make_model_fixtures.py [NAME ...]     # all by default; needs torch, transformers, safetensors

Every model has random weights with biases and norms away from 0 and 1, and one folder: config.json as transformers
writes it (or as given in `edit`), model.safetensors in float32, expected.json with two sequences of token ids, all the
log-probabilities of the first at a few positions, and the next-token log-probabilities of both.
"""
import json
import os
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "data", "models")
VOCAB = 128
GPT2 = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0)
NEOX = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=64,
            max_position_embeddings=64, bos_token_id=0, eos_token_id=0)
LLAMA = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=80, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)


def gpt2(**more):
    return GPT2LMHeadModel(GPT2Config(**GPT2 | more))


def neox(rotary=None, **more):
    return GPTNeoXForCausalLM(GPTNeoXConfig(rope_parameters=rotary, **NEOX | more))


def llama(rotary=None, **more):
    rotary = rotary or {"rope_type": "default", "rope_theta": 10000.0}
    return LlamaForCausalLM(LlamaConfig(rope_parameters=rotary, **LLAMA | more))


def rope(kind="default", theta=10000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)

# name: (model, what to change in config.json; None removes a key)
MODELS = {
    "gpt2": (lambda: gpt2(), {}),
    "gpt2-untied-relu": (lambda: gpt2(tie_word_embeddings=False, n_inner=48, activation_function="relu"), {}),
    "gpt2-scaled-by-layer": (lambda: gpt2(n_layer=3, scale_attn_by_inverse_layer_idx=True), {}),
    "gpt2-unscaled": (lambda: gpt2(scale_attn_weights=False), {}),
    "neox": (lambda: neox(), {}),
    "neox-sequential": (lambda: neox(use_parallel_residual=False), {}),
    # Rotary on int(16 × 0.7) = 11 dimensions, an odd number, and another base.
    "neox-rotary-odd": (lambda: neox(rope(theta=50000.0, partial_rotary_factor=0.7)), {}),
    # As transformers 4 wrote it; the top-level rope_theta is ignored, as there.
    "neox-old-config": (lambda: neox(rope(theta=50000.0, partial_rotary_factor=0.3)),
                        {"rope_parameters": None, "rotary_pct": 0.3, "rotary_emb_base": 50000, "rope_theta": 7.0,
                         "use_parallel_residual": None, "attention_bias": None}),
    "neox-no-bias-tied": (lambda: neox(attention_bias=False, tie_word_embeddings=True, hidden_act="gelu_new"), {}),
    "llama": (lambda: llama(), {}),
    "llama-tied-wide-heads": (lambda: llama(head_dim=16, tie_word_embeddings=True), {}),
    "llama-narrow-heads-biased": (lambda: llama(head_dim=4, num_key_value_heads=1, attention_bias=True, mlp_bias=True),
                                  {}),
    "llama-linear": (lambda: llama(rope("linear", factor=2.0)), {}),
    "llama-llama3": (lambda: llama(LLAMA3, head_dim=16), {}),
    # As transformers 4 wrote it.
    "llama-old-config": (lambda: llama(dict(LLAMA3, rope_theta=500000.0), head_dim=16),
                         {"rope_parameters": None, "rope_theta": 500000.0, "head_dim": 16,
                          "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}}),
}


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.25 * noise if parameter.ndim == 2 else parameter + 0.2 * noise)


def expected(model, seed):
    generator = torch.Generator().manual_seed(seed)
    sequences = [torch.randint(0, VOCAB, (n,), generator=generator) for n in (48, 7)]
    result = {"how": "transformers, eager attention, float32", "sequences": []}
    with torch.no_grad():
        for ids in sequences:
            logits = model(ids[None]).logits[0]
            logprobs = torch.log_softmax(logits, -1)
            next_token = logprobs[:-1].gather(-1, ids[1:, None])[:, 0]
            positions = [0, len(ids) // 2, len(ids) - 1]
            result["sequences"].append({
                "ids": ids.tolist(), "logprobs": [round(x, 6) for x in next_token.tolist()],
                "positions": positions, "all": [[round(x, 6) for x in logprobs[p].tolist()] for p in positions]})
    return result


def write(name, index):
    make, edit = MODELS[name]
    torch.manual_seed(index)
    model = make()
    randomise(model, 1000 + index)
    folder = os.path.join(OUT, name)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        config = json.load(open(f"{scratch}/config.json"))
        for key in ("transformers_version", "architectures", "dtype"):
            config.pop(key, None)
        for key, value in edit.items():
            config.pop(key, None)
            if value is not None:
                config[key] = value
        json.dump(config, open(f"{folder}/config.json", "w"), indent=1)
        save_file(load_file(f"{scratch}/model.safetensors"), f"{folder}/model.safetensors", {"format": "pt"})
    # Reloaded, so that the reference reads what the folder says.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    json.dump(expected(model, 2000 + index), open(f"{folder}/expected.json", "w"))


def main():
    names = sys.argv[1:] or list(MODELS)
    for name in names:
        write(name, list(MODELS).index(name))
        print(name)


if __name__ == "__main__":
    main()
