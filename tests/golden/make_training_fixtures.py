#!/usr/bin/env python3
"""Writes tests/data/training: what transformers and torch.optim.AdamW make of a few training steps.

  make_training_fixtures.py            # needs torch and transformers

adamw.json: one matrix and one vector under given gradients and learning rates.  NAME.json: three steps of a tiny model
of tests/data/models on one batch: the loss and the norm of the gradient of each step, and some numbers of every tensor
afterwards, under its name in the checkpoint.  Weight decay is of matrices and embeddings alone.
"""
import json
import os
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "data", "models")
OUT = os.path.join(HERE, "..", "data", "training")
SEQUENCES, WINDOW, VOCAB, STEPS = 16, 48, 128, 3
LEARNING_RATE, WEIGHT_DECAY, CLIP = 1e-3, 0.01, 1.0
SAMPLES = 64  # of each tensor


def groups(named):
    named = list(named)
    return [{"params": [p for _, p in named if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
            {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0}]


def adamw():
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(2, 3, generator=generator).requires_grad_()
    vector = torch.randn(4, generator=generator).requires_grad_()
    named = [("matrix", matrix), ("vector", vector)]
    optimizer = torch.optim.AdamW(groups(named), lr=1e-2)
    case = {"start": {name: value.flatten().tolist() for name, value in named}, "weight_decay": WEIGHT_DECAY,
            "steps": []}
    for step in range(6):
        rate = 1e-2 / (1 + step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for _, value in named:
            value.grad = torch.randn(value.shape, generator=generator) * 0.1 ** step
        gradients = {name: value.grad.flatten().tolist() for name, value in named}
        optimizer.step()
        case["steps"].append({"learning_rate": rate, "gradients": gradients,
                              "values": {name: value.flatten().tolist() for name, value in named}})
    return case


def training(name):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(MODELS, name), dtype=torch.float32)
    model.eval()  # no dropout
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCAB, (SEQUENCES, WINDOW), generator=generator)
    optimizer = torch.optim.AdamW(groups(model.named_parameters()), lr=LEARNING_RATE)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
    tensors = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for key, value in load_file(os.path.join(folder, "model.safetensors")).items():
            flat = value.flatten()
            tensors[key] = flat[::max(1, flat.numel() // SAMPLES)].tolist()
    return {"ids": ids.tolist(), "learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "clip": CLIP,
            "losses": losses, "norms": norms, "samples": SAMPLES, "tensors": tensors}


def write(name, value):
    with open(os.path.join(OUT, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.write("\n")


def main():
    os.makedirs(OUT, exist_ok=True)
    write("adamw", adamw())
    for name in ("gpt2", "neox", "llama"):
        write(name, training(name))


if __name__ == "__main__":
    main()
