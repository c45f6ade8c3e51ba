#!/usr/bin/env python3
"""Trains a model for a few steps, saves it, and loads it with transformers.

  training_golden.py --probe build/release/tests/training_probe --model models/novella-gpt2-7m --source-dir .

The log-probabilities of the saved model must agree to 1e-4, it must differ from the model it came from, and a
calibration must lie beside it.  Exits with 77 (skipped) where a package is absent.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

transformers.utils.logging.disable_progress_bar()
IDS = [11, 7, 300, 42, 42, 900, 5, 17, 250, 33, 8, 64, 128, 700, 2, 9]


def logprobs(directory, dtype="auto"):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    assert model.dtype == torch.float32, model.dtype
    with torch.inference_mode():
        scores = torch.log_softmax(model(torch.tensor([IDS])).logits[0, :-1].double(), -1)
    return scores.gather(1, torch.tensor(IDS)[1:, None])[:, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--source-dir", required=True)
    args = parser.parse_args()
    text = os.path.join(args.source_dir, "tests", "data", "corpus", "treasure_island.txt")
    with tempfile.TemporaryDirectory() as folder:
        output = subprocess.run(
            [args.probe, "--model", args.model, "--out", folder, "--text", text, "--order", "3", "--window", "64",
             "--steps-per-layer", "2", "--final-steps", "1", "--batch", "2", "--learning-rate", "1e-3",
             "--fit-tokens", "1024", "--report-tokens", "256", "--save", "1", "--score", ",".join(map(str, IDS))],
            check=True, capture_output=True, text=True).stdout
        ours = torch.tensor(json.loads(output.splitlines()[-1])["logprobs"], dtype=torch.float64)
        saved = os.path.join(folder, "model")
        difference = (ours - logprobs(saved)).abs().max().item()
        moved = (ours - logprobs(args.model, torch.float32)).abs().max().item()
        print(f"saved model: {difference:.2e} from transformers; training moved it by {moved:.2e}")
        assert difference < 1e-4
        assert moved > 1e-3
        assert os.path.exists(os.path.join(saved, "calibrations", "default.safetensors"))
        assert not os.path.exists(os.path.join(saved, "..", "run.safetensors"))


if __name__ == "__main__":
    main()
