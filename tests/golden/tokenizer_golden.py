#!/usr/bin/env python3
"""Compares the tokenizer with the reference, the Python package tokenizers.

  tokenizer_golden.py --probe build/release/tests/tokenizer_probe --source-dir . [--texts 10000]

Checks the character classes and NFC over all code points, and the ids of random texts
under every setting of tokenizer_cases.py.  Exits with 77 (skipped) where the package
is absent.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from tokenizer_cases import added, apply_patch, byte_level, digits_first, random_texts, variants

try:
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers
except ImportError:
    print("skipped: the Python package tokenizers is not installed")
    sys.exit(77)

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
SHOWN = 5
failures = 0


def report(name, count, differences):
    """`differences` are strings; a check of nothing is a failure as well."""
    global failures
    ok = count > 0 and not differences
    failures += not ok
    print("%s %s: %d compared, %d differ" % ("ok  " if ok else "FAIL", name, count, len(differences)))
    for difference in differences[:SHOWN]:
        print("     " + difference)


def probe(arguments, lines=()):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([options.probe] + arguments, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit("the probe failed: " + done.stderr)
    # Not splitlines(), which also splits at U+2028 and the like.
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def class_of(expression, c):
    """0 other, 1 letter, 2 number, 3 white space, from what the reference joins the character to."""
    for kind, neighbour in enumerate("!a1"):
        if len(expression.pre_tokenize_str(neighbour + chr(c))) == 1:
            return kind
    return 3


def check_classes():
    bits = probe(["classes"])[0]
    expression = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    differences = []
    for c in CODE_POINTS:
        numeric = len(digits.pre_tokenize_str("a" + chr(c))) == 2
        want = class_of(expression, c) + (8 if numeric else 0)
        got = int(bits[c], 16) & ~4
        if got != want:
            differences.append("U+%04X: %d, the reference %d" % (c, got, want))
    report("classes of all code points", len(CODE_POINTS), differences)
    return bits


def check_word_characters(bits, base):
    """\\w, as single-word tokens see it, and \\s, as stripping tokens do."""
    size = len(base["model"]["vocab"])
    tokens = [added(size, "Qq", single_word=True), added(size + 1, "Qx", rstrip=True)]
    patched = apply_patch(base, {"added_tokens": base["added_tokens"] + tokens})
    reference = tokenizers.Tokenizer.from_str(json.dumps(patched))
    differences = []
    for c in CODE_POINTS:
        ids = reference.encode("Qq" + chr(c) + "Qx" + chr(c)).ids
        want = (4 if size not in ids else 0, ids[-1] == size + 1)
        value = int(bits[c], 16)
        if (value & 4, value & 3 == 3) != want:
            differences.append("U+%04X: %s, the reference %s" % (c, (value & 4, value & 3 == 3), want))
    report("word characters and white space", len(CODE_POINTS), differences)


def check_nfc():
    nfc = normalizers.NFC()
    marks = ["\u0338", "\u0323", "\u0301", "\u0345"]
    texts = [chr(c) for c in CODE_POINTS if c != 0x0A]
    # Each character after a mark of low class and before one, which shows its own class.
    texts += ["A\u0345%s\u0338" % chr(c) for c in CODE_POINTS if c < 0x20000 or c > 0xE0000]
    texts += ["".join(marks[i % 4] for i in range(n)) + "\u00e9" + chr(0x1100 + n) for n in range(200)]
    got = probe(["nfc"], texts)
    differences = ["%a: %a, the reference %a" % (text, mine, nfc.normalize_str(text))
                   for text, mine in zip(texts, got) if mine != nfc.normalize_str(text)]
    report("NFC of all code points", len(got), differences)
    texts = random_texts(options.texts, seed=11)
    got = probe(["nfc"], texts)
    differences = ["%a: %a" % (text, mine) for text, mine in zip(texts, got) if mine != nfc.normalize_str(text)]
    report("NFC of random texts", len(got), differences)


def check_ids(name, document, count, seed):
    reference = tokenizers.Tokenizer.from_str(json.dumps(document))
    texts = random_texts(count, seed=seed)
    requests = [{"text": text, "plain_text": i % 2 == 1, "add_special_tokens": i % 4 < 2}
                for i, text in enumerate(texts)]
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        got = probe(["encode", file.name], requests)
    differences = []
    for request, reply in zip(requests, got):
        reference.encode_special_tokens = request["plain_text"]
        want = reference.encode(request["text"], add_special_tokens=request["add_special_tokens"]).ids
        if reply.get("ids") != want:
            differences.append("%a\n       %s\n       %s, the reference" % (request, reply, want))
    report(name, len(got), differences)


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def check_files():
    source = options.source_dir
    shared = os.path.join(source, "..", "shared", "data")
    local = os.path.join(source, "models-local")
    files = {
        "novella": os.path.join(source, "models", "novella-gpt2-7m", "tokenizer.json"),
        "GPT-2": os.path.join(shared, "gpt2-tokenizer", "tokenizer.json"),
        "GPT-NeoX": os.path.join(shared, "gpt-neox-tokenizer", "tokenizer.json"),
    }
    for name in sorted(os.listdir(local)) if os.path.isdir(local) else []:
        files[name] = os.path.join(local, name, "tokenizer.json")
    for name, path in files.items():
        if not os.path.exists(path):
            print("skip %s: no file %s" % (name, path))
            continue
        document = load(path)
        check_ids(name, document, options.texts, seed=1)
        if name == "GPT-2":
            smollm = apply_patch(document, {"pre_tokenizer": digits_first(True)})
            check_ids("GPT-2 with SmolLM2's pre-tokenizer", smollm, options.texts, seed=2)
        if name == "novella":
            for number, (variant, patch) in enumerate(variants(document).items()):
                check_ids("novella, " + variant, apply_patch(document, patch), options.texts // 2, seed=10 + number)


def main():
    print("reference: tokenizers", tokenizers.__version__)
    base = load(os.path.join(options.source_dir, "models", "novella-gpt2-7m", "tokenizer.json"))
    base["pre_tokenizer"] = byte_level()
    check_files()
    check_nfc()
    check_word_characters(check_classes(), base)
    sys.exit(1 if failures else 0)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--probe", required=True, help="the program tokenizer_probe")
parser.add_argument("--source-dir", default=".", help="the repository")
parser.add_argument("--texts", type=int, default=10000, help="random texts for each tokenizer")
options = parser.parse_args()
if __name__ == "__main__":
    main()
