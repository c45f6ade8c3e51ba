#!/usr/bin/env python3
"""Compares the engine's log-probabilities with transformers on random models, or on a
given one and the first tokens of a text.

  engine_golden.py --probe build/release/tests/engine_probe [--sizes tiny,small] [--device cpu]
  engine_golden.py --probe … --directory models-local/smollm2-135m --text FILE

float32: no token differs by more than 1e-4 (a given directory: 1e-3).  bfloat16: the mean difference from the
float32 reference is under 0.02.  Of the tiny models, the activations captured at every site are those that hooks see
in transformers, to 1e-4.  Exits with 77 (skipped) where transformers is absent.
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile

import reference

try:
    import torch  # noqa: F401
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

transformers.utils.logging.disable_progress_bar()
VOCABULARY = {"tiny": 1003, "small": 8191, "medium": 50304}
TOKENS = 200
GIVEN_TOKENS = 1024
CAPTURED_TOKENS = 40


def probe(program, directory, dtype, device, requests):
    done = subprocess.run([program, "--model", directory, "--dtype", dtype, "--device", device],
                          input="".join(json.dumps(request) + "\n" for request in requests),
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the probe failed: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(name, differences, largest=None, mean=None):
    worst, average = max(differences), sum(differences) / len(differences)
    ok = (largest is None or worst <= largest) and (mean is None or average < mean)
    print(f"{'ok  ' if ok else 'FAIL'} {name}: largest difference {worst:.2e}, mean {average:.2e}", flush=True)
    return ok


def compare_random(args, directory, arch, size):
    reference.make(directory, arch, size, vocabulary=VOCABULARY[size])
    generator = random.Random(7)
    ids = [generator.randrange(VOCABULARY[size]) for _ in range(TOKENS)]
    ok = compare(args, directory, f"{arch} {size}", ids, largest=1e-4)
    return ok and (size != "tiny" or compare_captures(args, directory, f"{arch} {size}", ids[:CAPTURED_TOKENS]))


def compare_captures(args, directory, name, ids):
    expected = reference.activations(directory, ids)
    ok = True
    for chunk in (CAPTURED_TOKENS, 7):
        answer, = probe(args.probe, directory, "float32", args.device, [{"op": "capture", "ids": ids, "chunk": chunk}])
        found = {(entry["layer"], entry["site"]): entry["values"] for entry in answer["activations"]}
        for layer, sites in enumerate(expected):
            for site in reference.SITES:
                values = torch.tensor(found.pop((layer, site))).reshape(sites[site].shape)
                difference = (values - sites[site]).abs().max().item()
                ok &= check(f"{name} {site} of layer {layer} in chunks of {chunk}", [difference], largest=1e-4)
        assert not found, found.keys()
    return ok


def compare_given(args):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{args.directory}/tokenizer.json")
    with open(args.text, encoding="utf-8") as file:
        ids = tokenizer(file.read(100 * GIVEN_TOKENS))["input_ids"][:GIVEN_TOKENS]
    return compare(args, args.directory, args.directory, ids, largest=1e-3)


def compare(args, directory, name, ids, largest):
    expected = reference.logprobs(directory, ids)
    requests = [{"op": "score", "ids": ids, "chunk": chunk} for chunk in (256, 16)]
    ok = True
    for dtype, bounds in (("float32", {"largest": largest}), ("bfloat16", {"mean": 0.02})):
        for request, answer in zip(requests, probe(args.probe, directory, dtype, args.device, requests)):
            if len(answer.get("logprobs", [])) != len(ids) - 1:
                sys.exit(f"unexpected answer: {answer}")
            differences = [abs(a - b) for a, b in zip(answer["logprobs"], expected)]
            ok &= check(f"{name} {dtype} in chunks of {request['chunk']}", differences, **bounds)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--directory", help="a model of your own; needs --text")
    parser.add_argument("--text")
    args = parser.parse_args()
    if bool(args.directory) != bool(args.text):
        parser.error("--directory and --text go together")
    if args.directory:
        sys.exit(0 if compare_given(args) else 1)
    ok = True
    for size in args.sizes.split(","):
        for arch in reference.ARCHITECTURES:
            with tempfile.TemporaryDirectory() as directory:
                ok &= compare_random(args, directory, arch, size)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
