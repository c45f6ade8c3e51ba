#!/usr/bin/env python3
"""Decode, prefill and scoring of Gatehouse (full, gated, linear) beside its peers, in one run.

    .venv/bin/pip install -r tools/requirements-bench.txt
    tools/test -N && .venv/bin/python tests/bench/compare.py [--shape medium] [--rounds 3]

Random weights at a GPT-2 shape; each peer and Gatehouse in turn, several rounds, medians.
Run it with nothing else running: machines differ, so quote ratios from one run.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import peers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHAPES = {"tiny": (64, 2, 4), "small": (768, 12, 12), "medium": (1024, 24, 16)}


def make_model(directory, shape):
    """A GPT-2 of random weights with a byte-level tokenizer, unless it is there."""
    if (directory / "model.safetensors").exists():
        return
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    width, layers, heads = SHAPES[shape]
    model = GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=layers, n_head=heads, bos_token_id=0, eos_token_id=0))
    model.save_pretrained(directory)
    tokenizer = json.loads((ROOT / "models/novella-gpt2-7m/tokenizer.json").read_text())
    # CTranslate2 wants a token for every row of the embedding.
    vocabulary = tokenizer["model"]["vocab"]
    for i in range(len(vocabulary), model.config.vocab_size):
        vocabulary[f"<unused{i}>"] = i
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))


def gatehouse(directory, dtype, args):
    """Figures of the engine bench: {(policy, what, batch): tokens per second}."""
    program = ROOT / "build/release/bin/gatehouse-engine-bench"
    lines = subprocess.run([program, "--model", str(directory), "--dtype", dtype, "--new", str(args.new), "--prompt", str(args.prompt),
                            "--batches", args.batches, "--tokens", str(args.tokens)],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    return {(f"gatehouse {dtype} {r['policy']}", r["what"], r["batch"]): r["tokens_per_s"] for r in rows if "tokens_per_s" in r}


def peer_figures(name, directory, args):
    peer = peers.PEERS[name](str(directory))
    figures = {(name, "decode", b): peer.decode(b, args.new, args.prompt) for b in map(int, args.batches.split(","))}
    figures[name, "prefill", 1] = peer.prefill(args.tokens)
    figures[name, "score", 1] = peer.score(args.tokens)
    return {key: rate for key, rate in figures.items() if rate is not None}


def in_own_process(argv, name):
    """A peer's figures from a process of its own, so that no peer holds threads or memory beside another."""
    out = subprocess.run([sys.executable, __file__, *argv, "--one-peer", name], capture_output=True, text=True)
    if out.returncode:
        print(f"{name}: left out ({out.stderr.strip().splitlines()[-1] if out.stderr.strip() else 'failed'})", file=sys.stderr)
        return {}
    return {tuple(key): rate for key, rate in json.loads(out.stdout.splitlines()[-1])}


def print_table(samples):
    columns = sorted({key[1:] for key in samples})
    print("| engine | " + " | ".join(f"{what} ×{batch}" for what, batch in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name in dict.fromkeys(key[0] for key in samples):
        cells = [f"{statistics.median(samples[(name, *c)]):.1f}" if (name, *c) in samples else "" for c in columns]
        print(f"| {name} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="medium", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(peers.PEERS), help="names, comma-separated; empty for none")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--directory", type=pathlib.Path, help="default: build/bench/SHAPE")
    parser.add_argument("--one-peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    directory = args.directory or ROOT / "build/bench" / args.shape
    make_model(directory, args.shape)
    if args.one_peer:
        print(json.dumps([[key, rate] for key, rate in peer_figures(args.one_peer, directory, args).items()]))
        return
    samples = {}
    for _ in range(args.rounds):
        for dtype in args.dtypes.split(","):
            for key, rate in gatehouse(directory, dtype, args).items():
                samples.setdefault(key, []).append(rate)
        for name in filter(None, args.peers.split(",")):
            for key, rate in in_own_process(sys.argv[1:], name).items():
                samples.setdefault(key, []).append(rate)
    for key, rates in samples.items():
        print(json.dumps({"engine": key[0], "what": key[1], "batch": key[2], "tokens_per_s": round(statistics.median(rates), 1),
                          "rounds": [round(r, 1) for r in rates]}))
    print_table(samples)


if __name__ == "__main__":
    main()
