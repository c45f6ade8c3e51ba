#!/usr/bin/env python3
"""Writes tests/data/tokenizer/vectors.json: what the reference makes of random texts.

  make_tokenizer_fixtures.py --source-dir .

Needs the Python package tokenizers; the tests that read the file do not.
"""

import argparse
import hashlib
import json
import os

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from tokenizer_cases import apply_patch, random_texts, variants

MAIN_TEXTS = 300
OTHER_TEXTS = 80
MAIN_VARIANTS = ("plain", "neox", "smollm")


def class_digit(expression, digits, c):
    kind = next((k for k, neighbour in enumerate("!a1")
                 if len(expression.pre_tokenize_str(neighbour + chr(c))) == 1), 3)
    return "%X" % (kind + (8 if len(digits.pre_tokenize_str("a" + chr(c))) == 2 else 0))


def unicode_digests():
    """SHA-256 over all code points in order: classes as hexadecimal digits, and NFC in UTF-8."""
    code_points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    expression = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    nfc = normalizers.NFC()
    classes = "".join(class_digit(expression, digits, c) for c in code_points)
    alone = "".join(nfc.normalize_str(chr(c)) for c in code_points)
    marked = "".join(nfc.normalize_str("A\u0345%s\u0338" % chr(c)) for c in code_points)
    sha = lambda text: hashlib.sha256(text.encode()).hexdigest()
    return {"classes": sha(classes), "nfc": sha(alone), "nfc_between_marks": sha(marked)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source-dir", default=".")
    source = parser.parse_args().source_dir
    base_path = "models/novella-gpt2-7m/tokenizer.json"
    with open(os.path.join(source, base_path), encoding="utf-8") as file:
        base = json.load(file)
    texts = random_texts(MAIN_TEXTS, seed=3, longest=14)
    result = {"reference": "tokenizers " + tokenizers.__version__, "base": base_path, "texts": texts, "variants": []}
    for name, patch in variants(base).items():
        reference = tokenizers.Tokenizer.from_str(json.dumps(apply_patch(base, patch)))
        ids = []
        for i, text in enumerate(texts[:MAIN_TEXTS if name in MAIN_VARIANTS else OTHER_TEXTS]):
            reference.encode_special_tokens = i % 2 == 1
            ids.append(reference.encode(text, add_special_tokens=i % 4 < 2).ids)
        result["variants"].append({"name": name, "patch": patch, "ids": ids})
    result["unicode"] = unicode_digests()
    path = os.path.join(source, "tests", "data", "tokenizer", "vectors.json")
    with open(path, "w", encoding="utf-8") as file:
        # One list of ids a line, so that a change can be read.
        text = json.dumps(result, ensure_ascii=True)
        file.write(text.replace('{"name"', '\n{"name"').replace('"ids": [[', '"ids": [\n[').replace("], [", "],\n["))
        file.write("\n")


if __name__ == "__main__":
    main()
