#!/usr/bin/env python3
"""Calibration by Gatehouse beside the straightforward Python way, on a slice of the same work.

    .venv/bin/pip install -r tools/requirements-bench.txt
    .venv/bin/python tests/bench/compare.py --peers '' --rounds 1      # makes build/bench/medium
    .venv/bin/python tests/bench/calibrate_compare.py --model build/bench/medium

The Python way: transformers with hooks; what an MLP reads and writes is caught in one pass
of the fit tokens, its ridge regression is solved in float64 with numpy, the gate comes from
scikit-learn's logistic regression on δCE, and each replaced layer is a whole pass.  It does
the layers named by --layers; its time for all is scaled from them (each costs the same).
Gatehouse does every layer, and its neurons and their nulls beside.  Both in float32; random
tokens serve, since time does not depend on them.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import numpy as np
import torch
import transformers
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WINDOW, SINKS, RIDGE = 512, 4, 0.01


class Straightforward:
    def __init__(self, directory):
        torch.set_num_threads(os.cpu_count())
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        base = self.model.base_model
        self.mlps = [block.mlp for block in (base.h if hasattr(base, "h") else base.layers)]

    @torch.no_grad()
    def cross_entropy(self, blocks, hook=None, layer=None):
        handle = self.mlps[layer].register_forward_hook(hook) if hook else None
        losses = []
        for ids in blocks:
            logits = self.model(ids[None]).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none").double())
        if handle:
            handle.remove()
        return torch.cat(losses).numpy()

    def caught(self, blocks, layer):
        """What the layer's MLP reads and writes, sinks left out: [tokens, d] float64 each."""
        pairs = []
        self.cross_entropy(blocks, lambda _, args, y: pairs.append((args[0][0, SINKS:], y[0, SINKS:])), layer)
        return tuple(np.concatenate([pair[i].numpy() for pair in pairs]).astype(np.float64) for i in (0, 1))

    def calibrate_layer(self, layer, splits, full):
        x, y = self.caught(splits["fit"], layer)
        x_mean, y_mean = x.mean(0), y.mean(0)
        xc, yc = x - x_mean, y - y_mean
        weight = np.linalg.solve(xc.T @ xc + RIDGE * np.eye(x.shape[1]), xc.T @ yc)
        w, b = torch.tensor(weight.T, dtype=torch.float32), torch.tensor(y_mean - x_mean @ weight, dtype=torch.float32)

        def linear(_, args, y):
            y = y.clone()
            y[:, SINKS:] = (args[0] @ w.T + b)[:, SINKS:]
            return y

        delta = self.cross_entropy(splits["gate"], linear, layer) - full["gate"]
        inputs, _ = self.caught(splits["gate"], layer)
        used = delta.reshape(len(splits["gate"]), -1)[:, SINKS:].ravel()
        inputs = inputs.reshape(len(splits["gate"]), WINDOW - SINKS, -1)[:, :-1].reshape(len(used), -1)
        scaler = StandardScaler().fit(inputs)
        gate = LogisticRegression(C=1.0, max_iter=1000).fit(scaler.transform(inputs), used <= np.median(used))

        def gated(_, args, y):
            p = gate.predict_proba(scaler.transform(args[0][0].numpy().astype(np.float64)))[:, 1]
            rows = torch.tensor(p > 0.5)
            rows[:SINKS] = False
            y = y.clone()
            y[0, rows] = args[0][0, rows] @ w.T + b
            return y

        cost = {name: np.expm1((self.cross_entropy(splits[name], linear, layer) - full[name]).mean())
                for name in ("select", "report")}
        cost["gated"] = np.expm1((self.cross_entropy(splits["report"], gated, layer) - full["report"]).mean())
        return cost


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--probe", default=ROOT / "build/release/tests/calibrate_probe")
    parser.add_argument("--layers", default="0,12,23", help="that Python does")
    parser.add_argument("--blocks", default="5,2,1,1", help="of 512 tokens: fit, gate, select, report")
    args = parser.parse_args()
    names = ("fit", "gate", "select", "report")
    sizes = dict(zip(names, map(int, args.blocks.split(","))))
    python = Straightforward(args.model)
    tokens = np.random.default_rng(0).integers(0, python.model.config.vocab_size, WINDOW * sum(sizes.values()))

    with tempfile.TemporaryDirectory() as directory:
        tokens.astype("<i4").tofile(f"{directory}/tokens")
        command = [args.probe, args.model, f"{directory}/calibration", "--tokens", f"{directory}/tokens",
                   "--window-tokens", str(WINDOW)]
        for name, size in sizes.items():
            command += [f"--{name}-tokens", str(size * WINDOW)]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ours = time.perf_counter() - start

    blocks = iter(torch.tensor(tokens.reshape(-1, WINDOW)))
    splits = {name: [next(blocks) for _ in range(size)] for name, size in sizes.items()}
    layers = [int(layer) for layer in args.layers.split(",")]
    start = time.perf_counter()
    full = {name: python.cross_entropy(splits[name]) for name in names[1:]}
    once = time.perf_counter() - start
    start = time.perf_counter()
    for layer in layers:
        python.calibrate_layer(layer, splits, full)
    each = (time.perf_counter() - start) / len(layers)
    theirs = once + each * len(python.mlps)
    print(json.dumps({"gatehouse_s": round(ours, 1), "python_s": round(theirs, 1), "python_s_a_layer": round(each, 1),
                      "ratio": round(theirs / ours, 2), "tokens": {name: size * WINDOW for name, size in sizes.items()}}))


if __name__ == "__main__":
    main()
