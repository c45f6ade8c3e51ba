#!/usr/bin/env python3
"""Nonlinearity scores of every layer by Gatehouse beside the straightforward Python way.

    .venv/bin/pip install -r tools/requirements-bench.txt
    .venv/bin/python tests/bench/compare.py --peers '' --rounds 1      # makes build/bench/medium
    .venv/bin/python tests/bench/nonlinearity_compare.py --model build/bench/medium

Both fit a surrogate for each layer on the same tokens and score the same others, in float32 on
all cores, in one run.  The Python way: transformers with hooks that catch what an MLP reads and
writes, ridge regression in float64 and scores with numpy.  Gatehouse: what `gatehouse experiment
nonlinearity` runs, beside which it finds regimes and clusters (timed apart).  The scores of both
are compared.  The rates at which the libraries at hand multiply float32 matrices of the layers'
shape are measured in the same run, by turns.  Random tokens serve, since time does
not depend on them.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SINKS, RIDGE, BATCH_TOKENS = 4, 0.01, 2048
STAGES = ("surrogates", "scores", "clusters")


def peak_memory(pid):
    """MiB, so far.  What wait4 says of a child begins with its parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0


def gatehouse(args, tokens, sizes, directory):
    """Seconds of each stage, the splits, the scores [layers, blocks, window], which tokens are no sinks, and the peak
    memory until the scores are there."""
    tokens.astype("<i4").tofile(f"{directory}/tokens")
    command = [args.probe, args.model, "nonlinearity", "--tokens", f"{directory}/tokens",
               "--window-tokens", str(args.window), "--splits", f"{directory}/splits", "--resamples", "100"]
    for name, size in sizes.items():
        command += [f"--{name}-tokens", str(size)]
    began = {}
    with open(f"{directory}/result", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE)
        tail, memory = b"", 0
        while chunk := os.read(process.stderr.fileno(), 65536):
            tail, memory = tail[-100:] + chunk, max(memory, peak_memory(process.pid))
            for stage in re.findall(rb"% (\w+) on|% (done)", tail):
                began.setdefault((stage[0] or stage[1]).decode(), time.perf_counter())
    if process.wait() != 0:
        raise SystemExit(f"the probe failed: {tail.decode(errors='replace')}")
    with open(f"{directory}/result", "rb") as file:
        arrays = json.load(file)["arrays"]
    with open(f"{directory}/splits", encoding="utf-8") as file:
        splits = json.load(file)[0]
    values = [np.array(arrays[name]["values"]).reshape(arrays[name]["shape"]) for name in ("score.1", "kept.1")]
    ends = [began[stage] for stage in STAGES[1:]] + [began["done"]]
    seconds = {stage: end - began[stage] for stage, end in zip(STAGES, ends)}
    return seconds, splits, values[0], values[1] > 0, memory


class Straightforward:
    def __init__(self, directory):
        torch.set_num_threads(os.cpu_count())
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.model = model.base_model
        self.mlps = [block.mlp for block in (self.model.h if hasattr(self.model, "h") else self.model.layers)]
        self.caught = {}
        for index, mlp in enumerate(self.mlps):
            mlp.register_forward_hook(
                lambda _, args, y, i=index: self.caught.__setitem__(i, (args[0].numpy(), y.numpy())))

    @torch.no_grad()
    def batches(self, blocks):
        batch = max(1, BATCH_TOKENS // blocks.shape[1])
        for first in range(0, len(blocks), batch):
            self.model(torch.tensor(blocks[first:first + batch]))
            yield self.caught

    def fit(self, blocks):
        caught = [[(c[i][0], c[i][1]) for i in range(len(self.mlps))] for c in self.batches(blocks)]
        surrogates = []
        for i in range(len(self.mlps)):
            x, y = (np.concatenate([batch[i][part] for batch in caught]) for part in (0, 1))
            norms = np.linalg.norm(y, axis=-1)
            kept = norms <= 20 * np.median(norms)
            kept[:, :SINKS] = False
            x, y = x[kept].astype(np.float64), y[kept].astype(np.float64)
            x_mean, y_mean = x.mean(0), y.mean(0)
            x -= x_mean
            weight = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (y - y_mean))
            surrogates.append((weight.astype(np.float32), (y_mean - x_mean @ weight).astype(np.float32)))
        return surrogates

    def score(self, blocks, surrogates):
        scores = []
        for caught in self.batches(blocks):
            scores.append([np.linalg.norm(caught[i][1] - (caught[i][0] @ w + b), axis=-1)
                           for i, (w, b) in enumerate(surrogates)])
        return np.concatenate(scores, axis=1)


def products(d, d_mlp):
    """float32 GFLOP/s of [2048, d] × [d, d_mlp], by library: eight times of each, by turns."""
    x, w = torch.randn(BATCH_TOKENS, d), torch.randn(d_mlp, d)
    ways = {"numpy": lambda a=x.numpy(), b=w.numpy().T: a @ b, "torch": lambda: x @ w.T}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        ways["torch oneDNN"] = lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
    rates = {name: [] for name in ways}
    for turn in range(9):
        for name, product in ways.items():
            start = time.perf_counter()
            product()
            if turn > 0:
                rates[name].append(2 * BATCH_TOKENS * d * d_mlp / (time.perf_counter() - start) / 1e9)
    return rates


class Round:
    """Both on the same tokens, one after the other."""

    def __init__(self, args, python, tokens, sizes, directory):
        self.ours, splits, our_scores, kept, self.memory = gatehouse(args, tokens, sizes, directory)
        cut = tokens.reshape(-1, args.window)
        held = cut[sorted(splits["gate"] + splits["select"] + splits["report"])]
        config = python.model.config
        self.rates = products(config.hidden_size, python.mlps[0].c_fc.weight.shape[1]
                              if hasattr(python.mlps[0], "c_fc") else config.intermediate_size)
        self.theirs, start = {}, time.perf_counter()
        surrogates = python.fit(cut[splits["fit"]])
        self.theirs["surrogates"], start = time.perf_counter() - start, time.perf_counter()
        their_scores = python.score(held, surrogates)
        self.theirs["scores"] = time.perf_counter() - start
        self.difference = np.abs(our_scores / their_scores - 1)[kept].max()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--probe", default=ROOT / "build/release/tests/experiment_probe")
    parser.add_argument("--tokens", type=int, default=4096, help="to score in a round")
    parser.add_argument("--rounds", type=int, default=4, help="of both by turns, since a machine's speed drifts")
    parser.add_argument("--fit-tokens", type=int, default=4096, help="for the surrogates of a round, others than those")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--grow", action="store_true", help="run Gatehouse again with twice the tokens, for its memory")
    args = parser.parse_args()
    python = Straightforward(args.model)
    config = python.model.config

    def sizes(tokens):
        block = tokens // 4 // args.window * args.window
        return {"fit": args.fit_tokens, "select": block, "report": 2 * block, "gate": tokens - 3 * block}

    def draw(seed, tokens):
        count = args.fit_tokens + tokens
        return np.random.default_rng(seed).integers(0, config.vocab_size, count)

    if args.tokens % args.window or args.fit_tokens % args.window or args.tokens < 4 * args.window:
        parser.error(f"both counts of tokens must be multiples of {args.window}, --tokens at least {4 * args.window}")
    rounds, grown = [], None
    with tempfile.TemporaryDirectory() as directory:
        for number in range(args.rounds):
            rounds.append(Round(args, python, draw(number, args.tokens), sizes(args.tokens), directory))
            print(f"round {number + 1} of {args.rounds}: {rounds[-1].ours} {rounds[-1].theirs}", file=sys.stderr)
        if args.grow:
            *_, grown = gatehouse(args, draw(0, 2 * args.tokens), sizes(2 * args.tokens), directory)

    ours = {stage: sum(r.ours[stage] for r in rounds) for stage in STAGES}
    theirs = {stage: sum(r.theirs[stage] for r in rounds) for stage in STAGES[:2]}
    rates = {name: float(np.median([r.rates[name] for r in rounds])) for name in rounds[0].rates}
    # Attention's four products and the MLP's two, and the surrogate.
    scored = args.rounds * args.tokens
    flops = scored * len(python.mlps) * (24 + 2) * config.hidden_size ** 2
    best = max(rates.values())
    print(json.dumps({
        "rounds": args.rounds, "tokens": scored, "fit_tokens": args.fit_tokens, "layers": len(python.mlps),
        "gatehouse_s": {stage: round(s, 2) for stage, s in ours.items()},
        "python_s": {stage: round(s, 2) for stage, s in theirs.items()},
        "ratio_scores": round(theirs["scores"] / ours["scores"], 2),
        "ratio_with_fit": round(sum(theirs.values()) / (ours["surrogates"] + ours["scores"]), 2),
        "largest_relative_difference_of_scores": float(f"{max(r.difference for r in rounds):.2g}"),
        "matrix_product_gflops": {name: round(rate, 1) for name, rate in rates.items()},
        "gatehouse_gflops_while_scoring": round(flops / ours["scores"] / 1e9, 1),
        "share_of_best_product": round(flops / ours["scores"] / 1e9 / best, 2),
        "gatehouse_peak_mib": round(max(r.memory for r in rounds)),
        "gatehouse_peak_mib_at_twice_the_tokens": grown and round(grown),
        "python_peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }, indent=1))


if __name__ == "__main__":
    main()
