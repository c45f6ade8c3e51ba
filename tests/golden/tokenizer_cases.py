"""Texts and tokenizer settings that the tokenizer is compared with the reference on."""

import copy
import random

# Characters by kind; a text mixes a few kinds.
RANGES = {
    "ascii letters": [(0x41, 0x5A), (0x61, 0x7A)],
    "ascii punctuation": [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)],
    "digits": [(0x30, 0x39)],
    "other numbers": [(0xB2, 0xB3), (0xBC, 0xBE), (0x660, 0x669), (0x966, 0x96F), (0x2160, 0x2188), (0x2460, 0x249B),
                      (0x3021, 0x3029), (0x1D7CE, 0x1D7FF), (0x11DE0, 0x11DE9)],
    "blanks": [(0x20, 0x20)],
    "white space": [(0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E),
                    (0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x2060), (0x3000, 0x3000), (0xFEFF, 0xFEFF)],
    "controls": [(0x00, 0x1F), (0x7F, 0x9F)],
    "latin": [(0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "marks": [(0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x64B, 0x65F), (0x8D3, 0x8FF), (0x1AB0, 0x1AFF),
              (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0x302A, 0x302F), (0x3099, 0x309A), (0xFE20, 0xFE2F)],
    "greek and cyrillic": [(0x370, 0x3FF), (0x1F00, 0x1FFF), (0x400, 0x4FF)],
    "hebrew and arabic": [(0x590, 0x6FF), (0xFB1D, 0xFDFF)],
    "indic": [(0x900, 0xDFF), (0x11000, 0x114FF)],
    "tibetan and thai": [(0xE00, 0xFFF)],
    "hangul": [(0x1100, 0x11FF), (0xAC00, 0xD7A3), (0x3130, 0x318F)],
    "kana": [(0x3040, 0x30FF)],
    "cjk": [(0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1D), (0x20000, 0x2A6DF)],
    "symbols": [(0x2010, 0x2BFF), (0x1F100, 0x1F1FF)],
    "emoji": [(0x1F300, 0x1FAFF), (0x1F1E6, 0x1F1FF), (0x200D, 0x200D), (0xFE0F, 0xFE0F)],
    "any": [(0x00, 0xD7FF), (0xE000, 0x10FFFF)],
}
WORDS = [
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "\u2019s", "don't", "I'll", " they've", "the", " of",
    "Hello", " world", "Zuckerberg", "1234567", " 3.14", "\u00bd", "x\u00b2", "  ", "   ", "\n\n", "\r\n", "\t",
    " " * 24, " " * 31, " \n ", "\u00a0", " \u0085", "e\u0301", "\u00e9", "a\u0323\u0307", "\u212b", "\uac00\u11a8",
    "\u1112\u1161\u11ab", "\ufffd", "\u200d", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f600",
    "<|endoftext|>", "<|endoftext|", "|>", "<|padding|>", "<|", "[MASK]", "[X]", "<b>", "caf\u00e9", "cafe\u0301",
    "_", "__", "^^^", "aaaa", "http://", "{}", "\\n", "\u0e01\u0e33", "\u1e9b\u0323",
]


def random_texts(count, seed=20240607, longest=40):
    rng = random.Random(seed)
    kinds = list(RANGES)
    texts = ["", " ", "  a", "def f():\n    return  x", " \u0085a", "a  1"]
    while len(texts) < count:
        chosen = rng.sample(kinds, rng.randint(1, 4))
        text = ""
        for _ in range(rng.randint(1, longest)):
            draw = rng.random()
            if draw < 0.15:
                text += rng.choice(WORDS)
            elif draw < 0.30:
                text += " " * rng.randint(1, 3)
            else:
                low, high = rng.choice(RANGES[rng.choice(chosen)])
                text += chr(rng.randint(low, high)) * (1 if rng.random() < 0.9 else rng.randint(2, 9))
        texts.append(text)
    return texts


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def digits_first(individual, prefix=False):
    # None takes away what a patched file has there.
    return {"type": "Sequence", "add_prefix_space": None, "trim_offsets": None, "use_regex": None,
            "pretokenizers": [{"type": "Digits", "individual_digits": individual}, byte_level(prefix)]}


def added(token_id, content, **flags):
    token = dict(id=token_id, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False,
                 special=False)
    token.update(flags)
    return token


def template(token_id):
    text = {"Sequence": {"id": "A", "type_id": 0}}
    mark = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    single = {"type": "TemplateProcessing", "single": [mark, text, mark, mark], "pair": [mark, text],
              "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [token_id],
                                                   "tokens": ["<|endoftext|>"]}}}
    return {"type": "Sequence", "processors": [byte_level(), single]}


def variants(base):
    """{name: JSON merge patch} for a tokenizer.json whose only added token is <|endoftext|>."""
    size = len(base["model"]["vocab"])
    end = base["model"]["vocab"]["<|endoftext|>"]
    endoftext = added(end, "<|endoftext|>", special=True)
    runs = [added(size + i, " " * (24 - i), normalized=True) for i in range(23)]
    odd = [
        ("[MASK]", dict(lstrip=True, special=True)),
        ("[X]", dict(rstrip=True)),
        ("<b>", dict(single_word=True, normalized=True)),
        ("  ", dict(normalized=True)),
        ("cafe\u0301", dict(normalized=True)),
        ("<|end", dict(special=True)),
        ("text|>", dict()),
        ("the", dict(single_word=True, lstrip=True, rstrip=True)),
        ("aa", dict(rstrip=True, lstrip=True, normalized=True)),
        (" \n", dict(rstrip=True, normalized=True)),
    ]
    # A token has the id that the vocabulary gives its spelling, or the next free one.
    ids = dict(base["model"]["vocab"])
    for content, _ in odd:
        ids.setdefault(content, len(ids))
    odd = [added(ids[content], content, **flags) for content, flags in odd]
    return {
        "plain": {},
        "neox": {"normalizer": {"type": "NFC"},
                 "added_tokens": [endoftext] + runs + [added(size + 23, "<|padding|>", special=True)]},
        "smollm": {"pre_tokenizer": digits_first(True)},
        "digit runs": {"pre_tokenizer": digits_first(False, prefix=True)},
        "prefix": {"pre_tokenizer": byte_level(prefix=True)},
        "no regex": {"pre_tokenizer": byte_level(regex=False)},
        "odd tokens": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
                       "added_tokens": [endoftext] + odd},
        "template": {"post_processor": template(end)},
        "ignore merges": {"model": {"ignore_merges": True}},
    }


def apply_patch(document, patch):
    """RFC 7396."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_patch(result.get(key), value)
    return result
