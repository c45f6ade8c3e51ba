#!/usr/bin/env python3
"""Recomputes a calibration with transformers and numpy and compares it with Gatehouse's.

  calibration_golden.py --probe build/release/tests/calibrate_probe --model models/novella-gpt2-7m

Same tokens, same blocks, nothing else shared: surrogates are fitted anew (predictions to
1e-3 of the outputs' size), R² and percentiles to 1e-4, the cross-entropies of a linear layer
to 1e-4 nats, firing rates exactly but for neurons within 1e-5 of the threshold, mean
activations to 1e-4, and, where scikit-learn is importable, the gate.  Exits with 77 (skipped) where a package is absent.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

# Other tests share the cores: threads that spin while they wait would take them.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
try:
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

transformers.utils.logging.disable_progress_bar()
SINKS, RIDGE, FIRING = 4, 0.01, 0.1
SIZES = {"fit": 2048, "gate": 2048, "select": 512, "report": 1024}


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(body[begin:end], dtype="<f4").reshape(entry["shape"])
    return tensors, json.loads(metadata["calibration"])


def corpus(tokenizer_path, source_dir, vocabulary):
    text = os.path.join(source_dir, "..", "shared", "data", "wikitext2-raw", "wiki.valid.raw")
    if os.path.exists(text):
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer_path)
        with open(text, encoding="utf-8") as file:
            return np.array(tokenizer(file.read(80_000))["input_ids"], dtype=np.int32)
    print("no corpus at hand: token ids drawn from Zipf's law")
    return np.minimum(np.random.default_rng(1).zipf(1.2, 20_000), vocabulary - 1).astype(np.int32)


class Reference:
    """The model, with what each MLP reads and writes caught and, at will, replaced."""

    def __init__(self, directory):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager").eval()
        base = self.model.base_model
        self.mlps = [block.mlp for block in (base.h if hasattr(base, "h") else base.layers)]
        self.read, self.written, self.fired = {}, {}, {}
        self.replaced = (None, None)
        for index, mlp in enumerate(self.mlps):
            mlp.register_forward_hook(lambda _, args, y, i=index: self.catch(i, args[0], y))
            mlp.act.register_forward_hook(lambda _, args, y, i=index: self.fired.__setitem__(i, y))

    def catch(self, index, x, y):
        self.read[index], self.written[index] = x, y
        layer, surrogate = self.replaced
        if index != layer:
            return None
        out = y.clone()
        out[:, SINKS:] = (x @ surrogate[0].T + surrogate[1])[:, SINKS:]
        return out

    @torch.no_grad()
    def cross_entropy(self, ids, layer=None, surrogate=None):
        self.replaced = (layer, surrogate)
        logits = self.model(ids).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").double().numpy()


def kept(y, limit):
    mask = np.linalg.norm(y, axis=-1) <= limit
    mask[:, :SINKS] = False
    return mask


def fit_ridge(x, y):
    x, y = x.astype(np.float64), y.astype(np.float64)
    x_mean, y_mean = x.mean(0), y.mean(0)
    xc, yc = x - x_mean, y - y_mean
    weight = np.linalg.solve(xc.T @ xc + RIDGE * np.eye(x.shape[1]), xc.T @ yc)
    return weight.T, y_mean - x_mean @ weight, y_mean


class Checks:
    def __init__(self):
        self.failed = 0

    def near(self, name, ours, theirs, bound):
        ok = abs(ours - theirs) <= bound
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name}: {ours:.6g} against {theirs:.6g}")


def check_neurons(checks, name, findings, fired, high, linear):
    for finding in findings:
        on = fired[:, finding["neuron"]]
        edge = float(np.mean(np.abs(on - FIRING) < 1e-5))
        on = on > FIRING
        checks.near(f"{name} {finding['neuron']} base rate", finding["base_rate"], on.mean(), edge + 1e-9)
        # A token at a percentile may change its regime.
        checks.near(f"{name} {finding['neuron']} difference", finding["rate_difference"],
                    on[high].mean() - on[linear].mean(), edge + 2 / high.sum() + 2 / linear.sum())


def check_gate(checks, layer, tensors, x, delta):
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        print("scikit-learn is absent: the gate is not compared")
        return
    limit = np.quantile(delta, 0.25 if np.mean(delta < 0) < 0.05 else 0.5)
    scaler = StandardScaler().fit(x.astype(np.float64))
    inputs = scaler.transform(x.astype(np.float64))
    fit = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-9).fit(inputs, delta <= limit)
    theirs = fit.predict_proba(inputs)[:, 1]
    ours = 1 / (1 + np.exp(-(x.astype(np.float64) @ tensors[f"layers.{layer}.gate.weight"]
                             + tensors[f"layers.{layer}.gate.bias"])))
    checks.near(f"layer {layer} gate, mean |difference of p|", np.abs(ours - theirs).mean(), 0, 2e-3)


def observe(reference, splits):
    """Full cross-entropies, and per layer what its MLP read, wrote and fired, by split."""
    full, layers = {}, [{} for _ in reference.mlps]
    for name, ids in splits.items():
        full[name] = reference.cross_entropy(ids)
        for index, layer in enumerate(layers):
            layer[name] = tuple(t[index].numpy() for t in (reference.read, reference.written, reference.fired))
    return full, layers


def check_layer(checks, reference, splits, full, seen, layer, tensors, info):
    x, y, _ = seen["fit"]
    limit = 20 * np.median(np.linalg.norm(y, axis=-1))
    mask = kept(y, limit)
    weight, bias, y_mean = fit_ridge(x[mask], y[mask])
    ours = (tensors[f"layers.{layer}.surrogate.weight"], tensors[f"layers.{layer}.surrogate.bias"])

    x, y, _ = seen["report"]
    mask = kept(y, limit)
    theirs, mine = x[mask] @ weight.T + bias, x[mask] @ ours[0].T + ours[1]
    checks.near(f"layer {layer} surrogate, largest difference over the outputs' size",
                np.abs(theirs - mine).max() / np.abs(theirs).max(), 0, 1e-3)
    r2 = 1 - np.sum((y[mask] - theirs) ** 2) / np.sum((y[mask] - y_mean) ** 2)
    checks.near(f"layer {layer} R2", info["surrogate_r2"], r2, 1e-4)

    surrogate = tuple(torch.tensor(t, dtype=torch.float32) for t in (weight, bias))
    linear = reference.cross_entropy(splits["report"], layer, surrogate)
    checks.near(f"layer {layer} cost in nats", math.log1p(info["linear_cost"]), (linear - full["report"]).mean(), 1e-4)

    scores, fired = [], []
    for name in ("gate", "select", "report"):
        x, y, on = seen[name]
        mask = kept(y, limit)
        scores.append(np.linalg.norm(y[mask] - (x[mask] @ weight.T + bias), axis=-1))
        fired.append(on.reshape(*x.shape[:2], -1)[mask])
    scores, fired = np.concatenate(scores), np.concatenate(fired)
    for key, q in (("p25", 25), ("p50", 50), ("p70", 70), ("p95", 95)):
        expected = np.percentile(scores, q)
        checks.near(f"layer {layer} {key}", info[key], expected, 1e-4 * expected)
    high, low = scores > np.percentile(scores, 95), scores < np.percentile(scores, 25)
    for kind in ("consensus", "exception", "gateway"):
        check_neurons(checks, f"layer {layer} {kind}", info[kind], fired, high, low)

    x, y, on = seen["gate"]
    mean = on.reshape(*x.shape[:2], -1)[kept(y, limit)].astype(np.float64).mean(0)
    checks.near(f"layer {layer} mean activations", np.abs(tensors[f"layers.{layer}.neuron_mean"] - mean).max(), 0, 1e-4)
    used = kept(y, limit)[:, :-1]
    delta = (reference.cross_entropy(splits["gate"], layer, surrogate) - full["gate"])[used]
    check_gate(checks, layer, tensors, x[:, :-1][used], delta)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--source-dir", default=os.path.join(os.path.dirname(__file__), "..", ".."))
    args = parser.parse_args()

    reference = Reference(args.model)
    tokens = corpus(os.path.join(args.model, "tokenizer.json"), args.source_dir, reference.model.config.vocab_size)
    with tempfile.TemporaryDirectory() as directory:
        paths = {name: os.path.join(directory, name) for name in ("tokens", "splits", "calibration")}
        tokens.astype("<i4").tofile(paths["tokens"])
        command = [args.probe, args.model, paths["calibration"], "--tokens", paths["tokens"],
                   "--splits", paths["splits"]]
        for name, size in SIZES.items():
            command += [f"--{name}-tokens", str(size)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        tensors, info = read_safetensors(paths["calibration"])
        with open(paths["splits"], encoding="utf-8") as file:
            plan = json.load(file)
    window = plan.pop("window")
    splits = {name: torch.tensor(np.stack([tokens[b * window:(b + 1) * window] for b in blocks]), dtype=torch.long)
              for name, blocks in plan.items()}
    if sorted(b for blocks in plan.values() for b in blocks) != sorted({b for blocks in plan.values() for b in blocks}):
        sys.exit("FAIL a block serves two purposes")

    checks = Checks()
    full, layers = observe(reference, splits)
    for layer, seen in enumerate(layers):
        check_layer(checks, reference, splits, full, seen, layer, tensors, info["layers"][layer])
    sys.exit(f"{checks.failed} checks failed" if checks.failed else 0)


if __name__ == "__main__":
    main()
