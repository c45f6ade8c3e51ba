#!/usr/bin/env python3
"""Fails when a file includes a layer that its own layer may not use.

The layers, lowest first, are those of docs/architecture.md.  A public header of the
engine (server/engine/*.h) names no Torch type, no file of the engine includes a
protobuf header, and nothing outside the engine includes Torch: the two bring
different protobuf headers, and one translation unit must never see both.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# folder -> the other folders its files may include.
LAYERS = {
    "server/base": (),
    "server/tokenizer": ("server/base",),
    "server/engine": ("server/base",),
    "server/serving": ("server/base", "server/tokenizer", "server/engine"),
    "server/telemetry": ("server/base", "server/serving", "server/engine"),
    "server/rpc": ("server/base", "server/serving", "server/engine", "server/tokenizer", "gatehouse/v1"),
    "server/page": ("server/base", "client", "gatehouse/v1"),
    "client": ("gatehouse/v1",),
}
# Single headers beside these: the program saves captured activations as .npz files, and one
# writer of those is enough.  The client library stays with the protos alone.
HEADERS = {"client/cli": ("server/base/npz.h",)}
# Headers of libraries that only some folders may include.
LIBRARIES = {
    "torch": (re.compile(r"^(torch|ATen|c10|caffe2)/"), ("server/engine", "tests/engine", "tests/support", "tests/bench")),
    "protobuf and gRPC": (re.compile(r"^(google/protobuf|grpcpp|grpc|gatehouse/v1)/"),
                          ("server/rpc", "server/page", "server/main.cc", "client", "tests/rpc", "tests/client", "tests/page", "tests/integration", "tests/support", "tests/bench")),
    "civetweb": (re.compile(r"^civetweb"), ("server/page",)),
    "prometheus-cpp": (re.compile(r"^prometheus/"), ("server/telemetry", "tests/telemetry")),
}
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)


def layer_of(path):
    return next((layer for layer in LAYERS if path.startswith(layer + "/")), None)


def errors_of(path, text):
    layer = layer_of(path)
    for used in INCLUDE.findall(text):
        used_layer = layer_of(used) or ("gatehouse/v1" if used.startswith("gatehouse/v1/") else None)
        if any(path.startswith(folder + "/") and used in headers for folder, headers in HEADERS.items()):
            continue
        if layer and used_layer and used_layer != layer and used_layer not in LAYERS[layer]:
            yield f"{path}: {layer} may not include {used}"
        if layer and layer != "server/engine" and re.match(r"server/engine/[^/]+/", used):
            yield f"{path}: {used} is private to the engine"
        for library, (pattern, allowed) in LIBRARIES.items():
            if pattern.match(used) and not path.startswith(allowed):
                yield f"{path}: may not include {library} ({used})"
        if re.match(r"server/engine/[^/]+\.h$", path) and LIBRARIES["torch"][0].match(used):
            yield f"{path}: a public header of the engine may not include {used}"


def main():
    files = [p for top in ("server", "client", "tests") for suffix in ("*.h", "*.cc") for p in sorted((ROOT / top).rglob(suffix))]
    errors = [e for p in files for e in errors_of(p.relative_to(ROOT).as_posix(), p.read_text())]
    print("\n".join(errors) or f"{len(files)} files keep the layers", file=sys.stderr)
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
