#!/usr/bin/env python3
"""Recomputes the methods of consensus with transformers, numpy and scikit-learn.

  consensus_golden.py --probe build/release/tests/experiment_probe --model models/novella-gpt2-7m

Same tokens, same blocks, nothing else shared.  Counts agree exactly but for neurons within 1e-5
of the firing threshold, rates, norms and correlations to 1e-4, costs and KL to 1e-4 nats, R² and
AUC to 1e-3.  Exits with 77 (skipped) where a package is absent.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import calibration_golden as golden
import experiments_golden as base

try:
    import numpy as np
    import torch
    from sklearn.linear_model import Ridge
    from sklearn.metrics import roc_auc_score
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SINKS, FIRING, EDGE, MOST = golden.SINKS, golden.FIRING, 1e-5, 7
SIZES = {"fit": 2560, "gate": 4096, "select": 1024, "report": 1536}


class Layer:
    """What one layer does on each split, and the surrogate fitted on the fit split."""

    def __init__(self, seen, layer):
        self.index, self.seen = layer, seen
        x, y, _ = seen["fit"]
        self.limit = 20 * np.median(np.linalg.norm(y, axis=-1))
        mask = golden.kept(y, self.limit)
        self.surrogate = golden.fit_ridge(x[mask], y[mask])
        self.kept = {name: golden.kept(y, self.limit) for name, (_, y, _) in seen.items()}
        self.norm = {name: np.linalg.norm(y, axis=-1) for name, (_, y, _) in seen.items()}
        self.residual = {name: np.linalg.norm(y - (x @ self.surrogate[0].T + self.surrogate[1]), axis=-1)
                         for name, (x, y, _) in seen.items()}

    def neurons(self, split, indices):
        """Activations [blocks, window, neurons], and where one is on the very edge of firing."""
        activations = self.seen[split][2][..., indices]
        return activations, np.abs(activations - FIRING) < EDGE


def observe(reference, ids):
    """What every layer's MLP read, wrote and fired on a split."""
    full = reference.cross_entropy(ids)
    return full, {i: tuple(t[i].numpy() for t in (reference.read, reference.written, reference.fired))
                  for i in reference.read}


def regimes(scores):
    low, high = np.percentile(scores, 25), np.percentile(scores, 95)
    return scores < low, scores > high


def discover(fired, scores):
    """The rules of B.4: exception and consensus neurons, most extreme first."""
    linear, high = regimes(scores)
    rate, difference = fired.mean(0), fired[high].mean(0) - fired[linear].mean(0)
    order = np.argsort(-np.abs(difference), kind="stable")[:30]
    exception = [n for n in order if difference[n] > 0.3 and rate[n] < 0.3]
    consensus = [n for n in order if difference[n] < -0.4 and rate[n] > 0.6]
    return {"exception": exception, "consensus": consensus[:MOST]}, rate, difference


def check_neurons(checks, layer, table):
    kept, scores = layer.kept["gate"], layer.residual["gate"][layer.kept["gate"]]
    activations = layer.seen["gate"][2][kept]
    found, rate, difference = discover(activations > FIRING, scores)
    linear, high = regimes(scores)
    tokens = 2 / high.sum() + 2 / linear.sum()  # a token at a percentile may change its regime
    for kind, expected in found.items():
        ours = [int(row["neuron"]) for row in base.rows(table, layer=layer.index, kind=kind)]
        # Only a neuron on the rules' very edge may be in one list alone.
        weakest = min((abs(difference[n]) for n in expected), default=0)
        clear = [n for n in set(ours) ^ set(map(int, expected))
                 if min(abs(rate[n] - 0.3), abs(rate[n] - 0.6), abs(difference[n] - 0.3), abs(difference[n] + 0.4),
                        abs(abs(difference[n]) - weakest)) > tokens]
        checks.near(f"layer {layer.index} {kind} neurons ({len(ours)}), other entries", len(clear), 0, 0)
    held = layer.residual["report"][layer.kept["report"]]
    held_linear, held_high = regimes(held)
    slack = 2 / held_high.sum() + 2 / held_linear.sum()
    for row in base.rows(table, layer=layer.index):
        neuron, name = int(row["neuron"]), f"layer {layer.index} {row['kind']} {int(row['neuron'])}"
        on, edge = layer.neurons("report", neuron)
        on, edge = on[layer.kept["report"]] > FIRING, edge[layer.kept["report"]].mean()
        checks.near(f"{name} base rate", row["base_rate"], rate[neuron],
                    np.mean(np.abs(activations[:, neuron] - FIRING) < EDGE) + 1e-9)
        checks.near(f"{name} difference", row["difference"], difference[neuron], tokens)
        checks.near(f"{name} held-out base rate", row["held_out_base_rate"], on.mean(), edge + 1e-9)
        checks.near(f"{name} held-out difference", row["held_out_difference"],
                    on[held_high].mean() - on[held_linear].mean(), edge + slack)


def neurons_of(result, layer, kind):
    return [int(row["neuron"]) for row in base.rows(result["tables"]["neurons"], layer=layer.index, kind=kind)]


def check_levels(checks, layer, result, layers):
    consensus, exception = (neurons_of(result, layer, kind) for kind in ("consensus", "exception"))
    kept, name = layer.kept["report"], f"layer {layer.index}"
    on, edge = layer.neurons("report", consensus)
    edge = edge.any(-1)
    level = (on > FIRING).sum(-1)
    ours = base.array(result, "level.1")[layers.index(layer.index)]
    checks.near(f"{name} tokens of another level", ((ours != np.where(kept, level, -1)) & ~edge).sum(), 0, 0)
    if not consensus:
        return
    level = np.where(kept, ours, -1).astype(int)  # those on the edge as ours
    fires = layer.neurons("report", exception)[0] > FIRING
    for row in base.rows(result["tables"]["levels"], layer=layer.index, weights="trained"):
        here = level == int(row["level"])
        title = f"{name} level {int(row['level'])}"
        checks.near(f"{title} tokens", row["tokens"], here.sum(), 0)
        checks.near(f"{title} share", row["share"], here.sum() / kept.sum(), 1e-9)
        if not here.any():
            continue
        for key, values in (("output_norm", layer.norm["report"]), ("residual_norm", layer.residual["report"])):
            checks.near(f"{title} {key}", row[key], values[here].mean(), 1e-4 * max(1, values[here].mean()))
        if exception:
            checks.near(f"{title} exception rate", row["exception_rate"], fires[here][:, 0].mean(), 1e-4)
            checks.near(f"{title} any exception", row["any_exception_rate"], fires[here].any(-1).mean(), 1e-4)
    gradient = np.corrcoef(level[kept], layer.residual["report"][kept])[0, 1]
    arc = base.rows(result["tables"]["arc"], layer=layer.index)[0]
    checks.near(f"{name} gradient", arc["gradient"], gradient, 1e-4)
    for row in base.rows(result["tables"]["exclusivity"], layer=layer.index):
        a = fires[kept][:, exception.index(int(row["exception"]))]
        b = on[kept][:, consensus.index(int(row["consensus"]))] > FIRING
        p, q = a.mean(), b.mean()
        title = f"{name} exclusivity of {int(row['exception'])} and {int(row['consensus'])}"
        checks.near(title, row["exclusivity"], 1 - (a & b).sum() / (a | b).sum(), 1e-4)
        checks.near(f"{title} under independence", row["independent"], 1 - p * q / (p + q - p * q), 1e-4)


def check_prediction(checks, layer, result):
    consensus = neurons_of(result, layer, "consensus")
    if not consensus:
        return
    values = {name: layer.seen[name][2][layer.kept[name]][:, consensus].astype(np.float64)
              for name in ("gate", "report")}
    residual = {name: layer.residual[name][layer.kept[name]] for name in values}
    norm = {name: layer.norm[name][layer.kept[name]] for name in values}
    limit = np.quantile(residual["gate"], 0.75)
    top = residual["report"] > limit
    for reading in ("binary", "continuous"):
        x = {name: (v > FIRING).astype(np.float64) if reading == "binary" else v for name, v in values.items()}
        row = base.rows(result["tables"]["prediction"], layer=layer.index, reading=reading)[0]
        title = f"layer {layer.index} {reading}"
        gate = base.logistic().fit(x["gate"], residual["gate"] > limit)
        p = gate.predict_proba(x["report"])[:, 1]
        checks.near(f"{title} base rate", row["base_rate"], 1 - top.mean(), 1 / len(top))
        checks.near(f"{title} accuracy", row["accuracy"], ((p > 0.5) == top).mean(), 2.5 / len(top))
        checks.near(f"{title} AUC", row["auc"], roc_auc_score(top, p), 1e-3)
        line = Ridge(alpha=golden.RIDGE).fit(x["gate"], norm["gate"])
        error = norm["report"] - line.predict(x["report"])
        r2 = 1 - np.sum(error ** 2) / np.sum((norm["report"] - norm["gate"].mean()) ** 2)
        checks.near(f"{title} R2 of the norm", row["norm_r2"], r2, 1e-3)


class Ablated:
    """The report split with a layer's MLP writing nothing at some tokens."""

    def __init__(self, reference, ids):
        self.reference, self.ids = reference, ids
        self.full = self.log_probabilities(None, None)

    @torch.no_grad()
    def log_probabilities(self, layer, mask):
        width = self.reference.model.config.hidden_size
        self.reference.replaced = (layer, (torch.zeros(width, width), torch.zeros(width)))
        self.reference.route = None if mask is None else torch.as_tensor(mask)
        return torch.log_softmax(self.reference.model(self.ids).logits[:, :-1].double(), -1)

    def damage(self, layer, mask):
        changed = self.log_probabilities(layer, mask)
        targets = self.ids[:, 1:, None]
        delta = (self.full - changed).gather(-1, targets)[..., 0]
        return delta.numpy(), (self.full.exp() * (self.full - changed)).sum(-1).numpy()


def check_ablation(checks, reference, splits, layer, result, layers):
    at, name = layers.index(layer.index), f"layer {layer.index}"
    ablated = Ablated(reference, splits["report"])
    kept = layer.kept["report"]
    level = np.where(kept, base.array(result, "level.1")[at], -1).astype(int)[:, :-1]
    everywhere = np.ones(kept.shape, dtype=bool)
    no_sinks = everywhere.copy()
    no_sinks[:, :SINKS] = False
    row = base.rows(result["tables"]["layers"], layer=layer.index)[0]
    damages = {"levels": ablated.damage(layer.index, everywhere), "levels_no_sinks": ablated.damage(layer.index, no_sinks)}
    for suffix, table in (("", "levels"), ("_no_sinks", "levels_no_sinks")):
        delta, kl = damages[table]
        checks.near(f"{name} cost in nats{suffix}", math.log1p(row[f"change{suffix}"]), delta.mean(), 1e-4)
        checks.near(f"{name} KL{suffix}", row[f"kl{suffix}"], kl.mean(), 1e-4)
    delta, kl = damages["levels"]
    checks.near(f"{name} mean |difference of δCE|", np.abs(base.array(result, "delta_ce.1")[at] - delta).mean(), 0, 1e-4)
    checks.near(f"{name} mean |difference of KL|", np.abs(base.array(result, "kl.1")[at] - kl).mean(), 0, 1e-4)
    for table in ("levels", "levels_no_sinks", "levels_alone"):
        for row in base.rows(result["tables"][table], layer=layer.index):
            here, title = level == int(row["level"]), f"{name} {table} {int(row['level'])}"
            checks.near(f"{title} tokens", row["tokens"], here.sum(), 0)
            if not here.any():
                continue
            whole = np.concatenate([here, np.where(kept[:, -1:], base.array(result, "level.1")[at][:, -1:], -1)
                                    == row["level"]], 1)
            delta, kl = damages.get(table) or ablated.damage(layer.index, whole)
            checks.near(f"{title} δCE", row["delta_ce"], delta[here].mean(), 1e-4)
            checks.near(f"{title} KL", row["kl"], kl[here].mean(), 1e-4)
            checks.near(f"{title} whole", math.log1p(row["whole_change"]), delta.mean(), 1e-4)


def check_quorum(checks, reference, splits, full, layer, result, layers):
    level = base.array(result, "level.1")[layers.index(layer.index)]
    config, gated = reference.model.config, splits["gate"]
    width, hidden = config.hidden_size, layer.seen["gate"][2].shape[-1]
    eligible = np.ones(level.shape, dtype=bool)
    eligible[:, :SINKS] = False
    surrogates = {"linear": base.float32(layer.surrogate), "skip": (torch.zeros(width, width), torch.zeros(width))}
    gates = {}
    for row in base.rows(result["tables"]["rules"], layer=layer.index):
        path, rule, q, k = row["path"], row["rule"], int(row["quorum"]), int(row["of"])
        title = f"layer {layer.index} {path} {rule} {q} of {k}"
        asked = k * width if rule == "quorum" else width if rule == "logistic" else 0
        saved = row["routed"] * (2 * width * hidden - (width * width if path == "linear" else 0))
        checks.near(f"{title} work", row["work_saved"], (saved - eligible.mean() * asked) / (2 * width * hidden), 1e-9)
        if rule == "random":
            continue
        if rule == "quorum":
            route = eligible & (level >= q)
        else:
            if path not in gates:
                used = layer.kept["gate"][:, :-1]
                delta = (reference.linear(gated, layer.index, surrogates[path]) - full["gate"])[used]
                bound = np.quantile(delta, 0.25 if np.mean(delta < 0) < 0.05 else 0.5)
                gates[path] = base.logistic().fit(layer.seen["gate"][0][:, :-1][used].astype(np.float64), delta <= bound)
            x = layer.seen["report"][0]
            p = gates[path].predict_proba(x.reshape(-1, width).astype(np.float64))[:, 1].reshape(level.shape)
            route = eligible & (p > row["threshold"])
        checks.near(f"{title} routed", row["routed"], route.mean(), 0 if rule == "quorum" else 2e-3)
        cost = (reference.routed(splits["report"], layer.index, surrogates[path], route) - full["report"]).mean()
        checks.near(f"{title} cost in nats", math.log1p(row["cost"]), cost, 1e-4 if rule == "quorum" else 2e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", default="0,7", help="which layers to compare")
    parser.add_argument("--source-dir", default=os.path.join(os.path.dirname(__file__), "..", ".."))
    args = parser.parse_args()

    reference = base.Reference(args.model)
    layers = sorted({min(int(layer), len(reference.mlps) - 1) for layer in args.layers.split(",")})
    tokens = golden.corpus(os.path.join(args.model, "tokenizer.json"), args.source_dir,
                           reference.model.config.vocab_size)
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        text, plans = os.path.join(directory, "corpus"), os.path.join(directory, "splits")
        tokens.astype("<i4").tofile(text)
        for kind in ("consensus", "ablation", "quorum"):
            command = [args.probe, args.model, kind, "--tokens", text, "--splits", plans, "--resamples", "200",
                       "--layers", ",".join(map(str, layers)), "--window-tokens", str(base.WINDOW)]
            for name, size in SIZES.items():
                command += [f"--{name}-tokens", str(size)]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            results[kind] = json.loads(run.stdout)
        with open(plans, encoding="utf-8") as file:
            plan = json.load(file)[0]
    window = plan.pop("window")
    splits = {name: torch.tensor(np.stack([tokens[b * window:(b + 1) * window] for b in blocks]), dtype=torch.long)
              for name, blocks in plan.items()}
    full, seen = {}, {layer: {} for layer in layers}
    for name, ids in splits.items():
        full[name], caught = observe(reference, ids)
        for layer in layers:
            seen[layer][name] = caught[layer]

    checks = golden.Checks()
    for index in layers:
        layer = Layer(seen[index], index)
        check_neurons(checks, layer, results["consensus"]["tables"]["neurons"])
        check_levels(checks, layer, results["consensus"], layers)
        check_prediction(checks, layer, results["consensus"])
        check_ablation(checks, reference, splits, layer, results["ablation"], layers)
        check_quorum(checks, reference, splits, full, layer, results["quorum"], layers)
    if not results["quorum"]["tables"]["rules"]["layer"]:
        sys.exit("FAIL no layer has consensus neurons: nothing was compared")
    sys.exit(f"{checks.failed} checks failed" if checks.failed else 0)


if __name__ == "__main__":
    main()
