#!/usr/bin/env python3
"""Compares the engine's log-probabilities with transformers on random models.

  engine_golden.py --probe build/release/tests/engine_probe [--sizes tiny,small] [--device cpu]

float32: no token differs by more than 1e-4.  bfloat16: the mean difference from the
float32 reference is under 0.02.  Exits with 77 (skipped) where transformers is absent.
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


def compare(args, directory, arch, size):
    reference.make(directory, arch, size, vocabulary=VOCABULARY[size])
    generator = random.Random(7)
    ids = [generator.randrange(VOCABULARY[size]) for _ in range(TOKENS)]
    expected = reference.logprobs(directory, ids)
    requests = [{"op": "score", "ids": ids, "chunk": chunk} for chunk in (256, 16)]
    ok = True
    for dtype, bounds in (("float32", {"largest": 1e-4}), ("bfloat16", {"mean": 0.02})):
        for request, answer in zip(requests, probe(args.probe, directory, dtype, args.device, requests)):
            if len(answer.get("logprobs", [])) != TOKENS - 1:
                sys.exit(f"unexpected answer: {answer}")
            differences = [abs(a - b) for a, b in zip(answer["logprobs"], expected)]
            ok &= check(f"{arch} {size} {dtype} in chunks of {request['chunk']}", differences, **bounds)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    ok = True
    for size in args.sizes.split(","):
        for arch in reference.ARCHITECTURES:
            with tempfile.TemporaryDirectory() as directory:
                ok &= compare(args, directory, arch, size)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
