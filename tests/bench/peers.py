"""The engines a user would run instead, each behind the same four questions.

A peer answers, for one model directory: `decode(batch, new, prompt)` → tokens per second
after the first; `prefill(tokens)` → tokens per second, last position projected;
`score(tokens)` → tokens per second, every position projected.  None where the peer cannot.
Speed does not depend on the values of weights or tokens, so random ones serve.
"""
import os
import pathlib
import subprocess
import time

THREADS = os.cpu_count()


def best_of(run, repeats=3):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def decode_rate(run, batch, new):
    """Tokens per second of the tokens after the first; run(n) generates n tokens a row."""
    run(2)
    return batch * (new - 1) / (best_of(lambda: run(new)) - best_of(lambda: run(1)))


class Transformers:
    def __init__(self, directory, dtype):
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(THREADS)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()

    def _ids(self, rows, tokens):
        return self._torch.randint(0, self._model.config.vocab_size, (rows, tokens))

    def decode(self, batch, new, prompt):
        ids = self._ids(batch, prompt)
        with self._torch.inference_mode():
            return decode_rate(lambda n: self._model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False,
                                                              pad_token_id=0), batch, new)

    def _forward(self, tokens, keep):
        ids = self._ids(1, tokens)
        with self._torch.inference_mode():
            self._model(ids)
            return tokens / best_of(lambda: self._model(ids, logits_to_keep=keep))

    def prefill(self, tokens):
        return self._forward(tokens, 1)

    def score(self, tokens):
        return self._forward(tokens, 0)


class CTranslate2:
    def __init__(self, directory, kind):
        import ctranslate2
        out = pathlib.Path(directory) / "ct2"
        if not (out / "model.bin").exists():
            subprocess.run(["ct2-transformers-converter", "--model", directory, "--output_dir", str(out), "--force"],
                           check=True, capture_output=True)
        self._model = ctranslate2.Generator(str(out), device="cpu", compute_type=kind, intra_threads=THREADS)

    def decode(self, batch, new, prompt):
        rows = [["a"] * prompt] * batch
        return decode_rate(lambda n: self._model.generate_batch(rows, max_length=n, min_length=n, sampling_topk=1,
                                                                include_prompt_in_result=False), batch, new)

    def prefill(self, tokens):
        return None

    def score(self, tokens):
        run = lambda: self._model.score_batch([["a"] * tokens])
        run()
        return tokens / best_of(run)


class LlamaCpp:
    def __init__(self, directory, kind):
        import llama_cpp
        write_gguf(directory, kind)
        self._load = lambda all_rows: llama_cpp.Llama(f"{directory}/{kind}.gguf", n_ctx=1024, n_batch=512, n_threads=THREADS,
                                                      n_threads_batch=THREADS, logits_all=all_rows, verbose=False)
        self._model = self._load(False)

    def decode(self, batch, new, prompt):
        if batch != 1:
            return None

        def run():
            for i in range(new):
                self._model.eval([i * 37 % 50000])
        times = []
        for _ in range(3):
            self._model.reset()
            self._model.eval(list(range(100, 100 + prompt)))
            times.append(best_of(run, 1))
        return new / min(times)

    def _eval(self, model, tokens):
        def run():
            model.reset()
            model.eval([i * 91 % 50000 for i in range(tokens)])
        run()
        return tokens / best_of(run)

    def prefill(self, tokens):
        return self._eval(self._model, tokens)

    def score(self, tokens):
        return self._eval(self._load(True), tokens)


def write_gguf(directory, kind):
    """A GPT-2 directory as DIRECTORY/KIND.gguf (f32, bf16 or q8_0)."""
    import gguf
    import json
    import numpy as np
    from safetensors import safe_open
    path = pathlib.Path(directory) / f"{kind}.gguf"
    if path.exists():
        return
    quant, file_type = {"f32": (None, 0), "bf16": (gguf.GGMLQuantizationType.BF16, 32), "q8_0": (gguf.GGMLQuantizationType.Q8_0, 7)}[kind]
    config = json.loads((path.parent / "config.json").read_text())
    tokenizer = json.loads((path.parent / "tokenizer.json").read_text())["model"]
    w = gguf.GGUFWriter(str(path), "gpt2")
    w.add_block_count(config["n_layer"])
    w.add_context_length(config["n_positions"])
    w.add_embedding_length(config["n_embd"])
    w.add_feed_forward_length(4 * config["n_embd"])
    w.add_head_count(config["n_head"])
    w.add_layer_norm_eps(config["layer_norm_epsilon"])
    w.add_file_type(file_type)
    tokens = [t for t, _ in sorted(tokenizer["vocab"].items(), key=lambda item: item[1])]
    tokens += [f"<pad{i}>" for i in range(config["vocab_size"] - len(tokens))]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([1] * len(tokens))
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["merges"]])
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config["n_layer"])
    with safe_open(path.parent / "model.safetensors", "np") as f:
        for key in f.keys():
            if key.endswith(".attn.bias") or key == "lm_head.weight":
                continue
            array = f.get_tensor(key).astype(np.float32)
            if key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                array = np.ascontiguousarray(array.T)
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
            if array.ndim == 2 and quant is not None and "position" not in name:
                w.add_tensor(name, gguf.quants.quantize(array, quant), raw_dtype=quant)
            else:
                w.add_tensor(name, array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


PEERS = {
    "transformers float32": lambda d: Transformers(d, "float32"),
    "transformers bfloat16": lambda d: Transformers(d, "bfloat16"),
    "ctranslate2 float32": lambda d: CTranslate2(d, "float32"),
    "ctranslate2 int8": lambda d: CTranslate2(d, "int8_float32"),
    "llama.cpp f32": lambda d: LlamaCpp(d, "f32"),
    "llama.cpp bf16": lambda d: LlamaCpp(d, "bf16"),
    "llama.cpp q8_0": lambda d: LlamaCpp(d, "q8_0"),
}
