#!/usr/bin/env python3
"""Recomputes the experiments of the single layers with transformers, numpy and scikit-learn.

  experiments_golden.py --probe build/release/tests/experiment_probe --model models/novella-gpt2-7m

Same tokens, same blocks, nothing else shared.  Costs agree to 1e-4 nats, R² to 1e-4, the
decisions of every gate on 99.9 % of the tokens, AUC to 1e-3, correlations to 1e-3, and no-fly
lists but for tokens on the rule's very edge.  Exits with 77 (skipped) where a package is absent.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import calibration_golden as golden

try:
    import numpy as np
    import torch
    import transformers
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SINKS, WINDOW = golden.SINKS, 256
SIZES = {"fit": 2560, "gate": 2048, "select": 512, "report": 768}
EDGE = 2e-4  # nats: closer to a rule's bound than this, either answer is right


class Reference(golden.Reference):
    """The model with one layer's MLP replaced where a mask says so, and its residual stream."""

    def __init__(self, directory):
        super().__init__(directory)
        tokenizer = os.path.join(directory, "tokenizer.json")
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer)
        base = self.model.base_model
        blocks = base.h if hasattr(base, "h") else base.layers
        self.norms = [getattr(block, "ln_2", None) or block.post_attention_layernorm for block in blocks]
        self.residual, self.route = {}, None
        for index, norm in enumerate(self.norms):
            norm.register_forward_hook(lambda _, args, y, i=index: self.residual.__setitem__(i, args[0]))

    def catch(self, index, x, y):
        self.read[index], self.written[index] = x, y
        layer, surrogate = self.replaced
        if index != layer:
            return None
        return torch.where(self.route.unsqueeze(-1), x @ surrogate[0].T + surrogate[1], y)

    def routed(self, ids, layer, surrogate, route):
        self.route = torch.as_tensor(route)
        return self.cross_entropy(ids, layer, surrogate)

    def linear(self, ids, layer, surrogate, sinks=SINKS):
        route = np.ones(ids.shape, dtype=bool)
        route[:, :sinks] = False
        return self.routed(ids, layer, surrogate, route)

    def embed(self, ids):
        """Token embeddings, and what the residual stream begins with."""
        base = self.model.base_model
        token = (base.wte if hasattr(base, "wte") else base.embed_in)(ids).detach()
        return token, token + base.wpe(torch.arange(ids.shape[1])).detach() if hasattr(base, "wpe") else token


def texts(tokenizer_path, source_dir, vocabulary):
    """Two corpora of token ids."""
    first = golden.corpus(tokenizer_path, source_dir, vocabulary)
    path = os.path.join(source_dir, "..", "shared", "data", "wikitext2-raw", "wiki.test.raw")
    if os.path.exists(path):
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer_path)
        with open(path, encoding="utf-8") as file:
            second = np.array(tokenizer(file.read(80_000))["input_ids"], dtype=np.int32)
    else:
        second = np.minimum(np.random.default_rng(2).zipf(1.2, 20_000), vocabulary - 1).astype(np.int32)
    return first, second


class Text:
    """A corpus: its splits, and what the full model does on them."""

    def __init__(self, reference, tokens, plan):
        cut = {name: torch.tensor(np.stack([tokens[b * WINDOW:(b + 1) * WINDOW] for b in blocks]), dtype=torch.long)
               for name, blocks in plan.items() if name != "window"}
        held = sorted(plan["gate"] + plan["select"] + plan["report"])
        cut["held"] = torch.tensor(np.stack([tokens[b * WINDOW:(b + 1) * WINDOW] for b in held]), dtype=torch.long)
        self.ids, self.full, self.seen = cut, {}, {}
        for name in ("fit", "gate", "report", "held"):
            self.full[name] = reference.cross_entropy(cut[name])
            self.seen[name] = {i: (reference.read[i].numpy(), reference.written[i].numpy(),
                                   reference.residual[i].numpy()) for i in reference.read}

    def fit(self, layer):
        """The surrogate, the norm limit and ȳ; with sinks, the surrogate and ȳ."""
        x, y, _ = self.seen["fit"][layer]
        limit = 20 * np.median(np.linalg.norm(y, axis=-1))
        mask = golden.kept(y, limit)
        flat = [a.reshape(-1, a.shape[-1]) for a in (x, y)]
        return golden.fit_ridge(x[mask], y[mask]), golden.fit_ridge(*flat), limit


def float32(fit):
    return tuple(torch.tensor(t, dtype=torch.float32) for t in fit[:2])


def r2(x, y, fit):
    return 1 - np.sum((y - (x @ fit[0].T + fit[1])) ** 2) / np.sum((y - fit[2]) ** 2)


def logistic(*before):
    regression = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-9, max_iter=1000)
    return make_pipeline(StandardScaler(), *before, regression)


def array(result, name):
    entry = result["arrays"][name]
    return np.array(entry["values"], dtype=np.float64).reshape(entry["shape"])


def rows(table, **where):
    """The table's rows, as dicts, with these values."""
    listed = [dict(zip(table, cells)) for cells in zip(*table.values())]
    return [row for row in listed if all(row[key] == value for key, value in where.items())]


def check_costs(checks, reference, texts_, layers, result):
    text, table = texts_[0], result["tables"]["layers"]
    for row in rows(table, corpus="corpus-0"):
        layer = int(row["layer"])
        without, with_sinks, limit = text.fit(layer)
        x, y, _ = text.seen["report"][layer]
        mask = golden.kept(y, limit)
        checks.near(f"layer {layer} R2", row["r2"], r2(x[mask], y[mask], without), 1e-4)
        flat = [a.reshape(-1, a.shape[-1]) for a in (x, y)]
        checks.near(f"layer {layer} R2 with sinks", row["r2_with_sinks"], r2(*flat, with_sinks), 1e-4)
        change = reference.linear(text.ids["report"], layer, float32(without)) - text.full["report"]
        checks.near(f"layer {layer} cost in nats", row["delta_ce"], change.mean(), 1e-4)
        theirs = array(result, "delta_ce.1")[layers.index(layer)]
        checks.near(f"layer {layer} mean |difference of δCE|", np.abs(theirs - change).mean(), 0, 1e-4)
        change = reference.linear(text.ids["report"], layer, float32(with_sinks), 0) - text.full["report"]
        checks.near(f"layer {layer} cost with sinks in nats", math.log1p(row["cost_with_sinks"]), change.mean(), 1e-4)


def check_gates(checks, reference, texts_, layers, result):
    text = texts_[0]
    for layer in layers:
        without, _, limit = text.fit(layer)
        x, y, _ = text.seen["gate"][layer]
        used = golden.kept(y, limit)[:, :-1]
        delta = (reference.linear(text.ids["gate"], layer, float32(without)) - text.full["gate"])[used]
        bound = np.quantile(delta, 0.25 if np.mean(delta < 0) < 0.05 else 0.5)
        inputs = x[:, :-1][used].astype(np.float64)
        report = text.seen["report"][layer][0]
        held_delta = reference.linear(text.ids["report"], layer, float32(without)) - text.full["report"]
        kinds = {"logistic": ()} | {f"pca_{d}": (PCA(d, svd_solver="full"), StandardScaler()) for d in (2, 6, 12)}
        for name, steps in kinds.items():
            gate = logistic(*steps).fit(inputs, delta <= bound)
            p = gate.predict_proba(report.reshape(-1, report.shape[-1]).astype(np.float64))[:, 1]
            p = p.reshape(report.shape[:2])
            ours = array(result, f"p_{name}.1")[layers.index(layer)]
            thresholds = np.arange(1, 10)[:, None, None] / 10
            same = ((ours > thresholds) == (p > thresholds))[:, :, SINKS:].mean()
            checks.near(f"layer {layer} {name}, share of other decisions", 1 - same, 0, 1e-3)
            auc = roc_auc_score((held_delta <= bound)[:, SINKS:].ravel(), p[:, SINKS:-1].ravel())
            half = rows(result["tables"]["equal_work"], layer=layer, gate=name)[0]
            checks.near(f"layer {layer} {name} AUC", half["auc"], auc, 1e-3)
            route = p > 0.5
            route[:, :SINKS] = False
            row = rows(result["tables"]["sweep"], layer=layer, gate=name, threshold=0.5)[0]
            checks.near(f"layer {layer} {name} routed fraction", row["linear_fraction"], route.mean(), 1e-3)
            change = reference.routed(text.ids["report"], layer, float32(without), route) - text.full["report"]
            checks.near(f"layer {layer} {name} cost in nats", math.log1p(row["cost"]), change.mean(), 1e-4)


def check_routability(checks, reference, texts_, layers, result):
    text = texts_[0]
    tests = array(result, "test_block.1") >= 0
    for layer in layers:
        without, _, limit = text.fit(layer)
        ids = text.ids["held"]
        x, y, r = text.seen["held"][layer]
        mask = golden.kept(y, limit)[:, :-1]
        change = reference.linear(ids, layer, float32(without)) - text.full["held"]
        token, e = (t.numpy() for t in reference.embed(ids))
        norm = reference.norms[layer]
        centred = r - r.mean(-1, keepdims=True)
        scale = np.sqrt((centred ** 2).mean(-1, keepdims=True) + norm.eps)
        identity = (e - e.mean(-1, keepdims=True)) / scale * norm.weight.detach().numpy()
        context = x - norm.bias.detach().numpy() - identity
        train_mask, test_mask = mask & ~tests[:, None], mask & tests[:, None]
        median = np.median(change[train_mask])
        target = np.roll(token.reshape(-1, token.shape[-1]), -1, axis=0).reshape(token.shape)
        readings = {"identity": identity, "context": context, "full": x, "token": token, "target": target}

        def auc(reading, train, test):
            a, b = (reading[:, :-1][m].astype(np.float64) for m in (train, test))
            if np.ptp(a) < 1e-4:
                return 0.5  # a context of nothing
            gate = logistic().fit(a, change[train] <= median)
            return roc_auc_score(change[test] <= median, gate.decision_function(b))

        for name, reading in readings.items():
            row = rows(result["tables"]["gates"], layer=layer, gate=name)[0]
            checks.near(f"layer {layer} {name} AUC", row["auc"], auc(reading, train_mask, test_mask), 1e-3)
        repeated = []
        for part in (train_mask, test_mask):
            values, counts = np.unique(ids[:, :-1].numpy()[part], return_counts=True)
            repeated.append(part & np.isin(ids[:, :-1].numpy(), values[counts > 1]))
        row = rows(result["tables"]["gates"], layer=layer, gate="context, repeated tokens")[0]
        checks.near(f"layer {layer} context of repeated tokens AUC", row["auc"], auc(context, *repeated), 1e-3)


def token_means(tokens, delta):
    """Per token id: count, mean, share of positive."""
    values, inverse, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, delta) / counts
    return {int(v): (c, m, p) for v, c, m, p in zip(values, counts, means, np.bincount(inverse, delta > 0) / counts)}


def reliability(tokens, delta, blocks, halves, shared):
    found = []
    for half in halves:
        one, other = (token_means(tokens[half[blocks] == side], delta[half[blocks] == side]) for side in (1, 0))
        both = [t for t in shared if t in one and t in other]
        found.append(np.corrcoef([one[t][1] for t in both], [other[t][1] for t in both])[0, 1])
    r = np.mean(found)
    return 2 * r / (1 + r)


def check_no_fly(checks, reference, texts_, layers, result):
    listed = [array(result, f"listed.{i + 1}").astype(int) for i in range(2)]
    halves = [array(result, f"halves.{i + 1}").astype(int) for i in range(2)]
    for layer in layers:
        deltas, blocks = [], []
        for text in texts_:
            without, _, _ = text.fit(layer)
            change = reference.linear(text.ids["held"], layer, float32(without)) - text.full["held"]
            deltas.append(change[:, SINKS:])
            blocks.append(np.repeat(np.arange(len(change)), change.shape[1] - SINKS))
        for role, name in enumerate(("target", "processed")):
            tokens = [text.ids["held"].numpy()[:, SINKS + 1 - role:WINDOW - role].ravel() for text in texts_]
            means = [token_means(t, d.ravel()) for t, d in zip(tokens, deltas)]
            for i in range(2):
                def edge(m):
                    return abs(m[1] - 0.05) < EDGE or abs(m[2] - 0.6) < 1.5 / m[0]
                mine = {t for t, m in means[i].items() if m[0] >= 10 and m[1] > 0.05 and m[2] > 0.6}
                theirs = {int(t) for l, r, t in listed[i] if l == layer and r == role}
                differ = {t for t in mine ^ theirs if not edge(means[i][t])}
                checks.near(f"layer {layer} {name} list of text {i + 1} ({len(theirs)} tokens), other entries",
                            len(differ), 0, 0)
            shared = sorted(t for t in means[0] if t in means[1] and min(means[0][t][0], means[1][t][0]) >= 3)
            r = np.corrcoef(*([m[t][1] for t in shared] for m in means))[0, 1]
            row = rows(result["tables"][f"agreement_{name}"], layer=layer, lister="corpus-0", judge="corpus-1")[0]
            checks.near(f"layer {layer} {name} shared tokens", row["shared"], len(shared), 0)
            checks.near(f"layer {layer} {name} r", row["r_shared"], r, 1e-3)
            for key, i in (("reliability_lister", 0), ("reliability_judge", 1)):
                expected = reliability(tokens[i], deltas[i].ravel(), blocks[i], halves[i], shared)
                checks.near(f"layer {layer} {name} {key}", row[key], expected, 1e-3)


CHECKS = {"linearization_cost": check_costs, "gate_sweep": check_gates, "routability": check_routability,
          "no_fly": check_no_fly}


def main(kinds=CHECKS, description=__doc__, flags=()):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", default="0,5", help="which layers to compare")
    parser.add_argument("--kinds", default=",".join(kinds))
    parser.add_argument("--source-dir", default=os.path.join(os.path.dirname(__file__), "..", ".."))
    args = parser.parse_args()

    reference = Reference(args.model)
    layers = [min(int(layer), len(reference.mlps) - 1) for layer in args.layers.split(",")]
    corpora = texts(os.path.join(args.model, "tokenizer.json"), args.source_dir, reference.model.config.vocab_size)
    checks, texts_ = golden.Checks(), None
    with tempfile.TemporaryDirectory() as directory:
        files = []
        for i, tokens in enumerate(corpora):
            files += ["--tokens", os.path.join(directory, f"corpus-{i}")]
            tokens.astype("<i4").tofile(files[-1])
        for kind in args.kinds.split(","):
            command = [args.probe, args.model, kind, *files[:4 if kind == "no_fly" else 2],
                       "--layers", ",".join(map(str, layers)), "--window-tokens", str(WINDOW), "--resamples", "200",
                       *flags]
            if texts_ is None:
                plans = os.path.join(directory, "splits")
                command = command[:3] + files + command[3 + (4 if kind == "no_fly" else 2):] + ["--splits", plans]
            for name, size in SIZES.items():
                command += [f"--{name}-tokens", str(size)]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            result = json.loads(run.stdout)
            if texts_ is None:
                with open(plans, encoding="utf-8") as file:
                    texts_ = [Text(reference, tokens, plan) for tokens, plan in zip(corpora, json.load(file))]
            print(f"-- {kind}")
            kinds[kind](checks, reference, texts_, layers, result)
    sys.exit(f"{checks.failed} checks failed" if checks.failed else 0)


if __name__ == "__main__":
    main()
