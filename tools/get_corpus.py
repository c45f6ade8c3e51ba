#!/usr/bin/env python3
"""Fetches a corpus by name and writes it as plain text; tools/get-corpus calls this."""
import argparse
import json
import pathlib
import sys
import tempfile

WIKITEXT = {"wikitext-2": "wikitext-2-raw-v1", "wikitext-103": "wikitext-103-raw-v1"}
SPLITS = ("train", "validation", "test")


def fail(message):
    print(f"get-corpus: {message}", file=sys.stderr)
    sys.exit(1)


def fetch(repository, pattern, folder):
    """The files of a data set's repository that match, in the order of their names."""
    from huggingface_hub import snapshot_download
    try:
        snapshot_download(repository, repo_type="dataset", local_dir=folder, allow_patterns=[pattern])
    except Exception as error:  # the hub's client has no common base class
        fail(f"could not fetch {repository} from the Hugging Face hub ({type(error).__name__}).\n"
             "A network is needed for this; any UTF-8 text file will do as a corpus.")
    files = sorted(path for path in folder.rglob(pathlib.PurePath(pattern).name) if path.is_file())
    if not files:
        fail(f"{repository} has no {pattern}: the data set has changed on the hub")
    return files


def wikitext(config, scratch):
    """Split -> text.  An empty row is a blank line; every other one ends its own line."""
    import pyarrow.parquet
    texts = {}
    for split in SPLITS:
        rows = []
        for path in fetch("Salesforce/wikitext", f"{config}/{split}-*.parquet", scratch):
            rows += pyarrow.parquet.read_table(path, columns=["text"])["text"].to_pylist()
        texts[split] = "".join(row or "\n" for row in rows)
    return texts


def lambada(scratch):
    """One passage a paragraph."""
    path, *_ = fetch("EleutherAI/lambada_openai", "data/lambada_test_en.jsonl", scratch)
    passages = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {"test": "\n\n".join(passages) + "\n"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*sorted(WIKITEXT), "lambada"])
    parser.add_argument("directory", type=pathlib.Path)
    args = parser.parse_args()
    target = args.directory / args.name
    if (target / "test.txt").exists():
        print(f"{target} is there already")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        texts = wikitext(WIKITEXT[args.name], folder) if args.name in WIKITEXT else lambada(folder)
    target.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():  # test.txt, which says that all is there, comes last
        (target / f"{split}.txt").write_text(text, encoding="utf-8")
    print(f"{args.name} is in {target}: {', '.join(sorted(f'{split}.txt' for split in texts))}")


if __name__ == "__main__":
    main()
