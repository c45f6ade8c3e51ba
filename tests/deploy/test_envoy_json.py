"""JSON over HTTP through Envoy: what curl needs, and what is wrong with a request."""

import base64
import http.client
import json
import re
import shutil
import socket
import subprocess

import pytest
from fleet import GENERATE, MODEL, PATIENCE, ask
from service import SOURCE

CORPUS = SOURCE / "tests/data/corpus/treasure_island.txt"


def curl(fleet, path, *arguments):
    ran = subprocess.run(["curl", "-sS", "--max-time", "60", *arguments, f"http://{fleet.envoy.address}{path}"],
                         capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_curl_is_enough(fleet):
    models = json.loads(curl(fleet, "/v1/models"))
    assert [model["name"] for model in models["models"]] == [MODEL]
    assert json.loads(curl(fleet, f"/v1/models/{MODEL}"))["layers"] == 6

    lines = [json.loads(line) for line in curl(fleet, GENERATE, "-d", json.dumps(
        {"prompt": {"text": "The captain"}, "max_tokens": 9, "gating": {"mode": "MODE_LINEAR"}})).splitlines()]
    assert [next(iter(line)) for line in lines] == ["start"] + 9 * ["token"] + ["summary"]
    assert lines[-1]["summary"]["routing"]["linear_fraction"] > 0

    body, status = curl(fleet, "/v1/models/absent", "-w", "\n%{http_code}").splitlines()
    error = json.loads(body)
    assert status == "404" and error["code"] == 5 and "absent" in error["message"]
    assert error["details"][0]["reason"] == "MODEL_NOT_FOUND"

    text = base64.b64encode(CORPUS.read_bytes()).decode()
    chunks = [{"display_name": "island", "data": text[:40000]}, {"data": text[40000:]}]
    uploaded = json.loads(curl(fleet, "/v1/corpora", "-d", json.dumps(chunks)))
    assert int(uploaded["size_bytes"]) == CORPUS.stat().st_size
    there = ("-H", f"gatehouse-replica: {uploaded['replica']}")
    request = {"model": MODEL, "calibrate": {"corpus": uploaded["corpus"], "fit_tokens": 1000, "activate": False}}
    name = json.loads(curl(fleet, "/v1/operations", *there, "-d", json.dumps(request)))["operation"]["name"]
    assert name.startswith(f"operations/{uploaded['replica']}/")
    assert json.loads(curl(fleet, f"/v1/{name}:cancel", "-X", "POST"))["operation"]["name"] == name
    assert name in curl(fleet, "/v1/operations?page_size=5", *there)


@pytest.mark.parametrize("path, body, headers, status, said", [
    (GENERATE, {"prompt": {"text": "x"}, "max_tokens": 0}, {}, 400, "max_tokens"),
    (GENERATE, {"prompt": {"text": "x"}, "gating": {"mode": "MODE_ODD"}}, {}, 400, "MODE_ODD"),
    (f"/v1/models/{MODEL}:sing", {}, {}, 404, ""),
    ("/v1/models?nonsense=1", None, {}, 400, "nonsense"),
    (GENERATE, {"prompt": {"text": "x"}}, {"grpc-timeout": "1u"}, 504, '"code":4'),
    ("/v1/operations/127.0.0.9/1", None, {}, 404, "ask replica 127.0.0.9"),
    ("/v1/models", None, {"origin": "https://elsewhere.example"}, 403, ""),
    (GENERATE, {"prompt": {"text": "x"}}, {"origin": "https://elsewhere.example"}, 403, ""),
    ("/metrics", None, {}, 404, ""),
    ("/healthz", None, {}, 200, ""),
])
def test_json_errors_have_their_status(fleet, path, body, headers, status, said):
    answer = ask(fleet.envoy.address, path, body, **headers)
    assert answer[0] == status and said in answer[1], answer


@pytest.mark.parametrize("body, status, said", [
    (b"", 400, "prompt has no tokens"),
    (b'{"prompt":', 400, "Unexpected end"),
    (b'{"prompt": {"text": "x"}} {}', 400, "before end of input"),
    (b'{"prompt":' * 5000, 400, "too deep"),
    (b'{"prompt": {"text": "\xff"}}', 400, "UTF-8"),
    (b'{"prompt": {"text": "\\ud800"}}', 400, "surrogate"),
    (b'{"prompt": {"text": 5}}', 400, "prompt.text"),
    (b'{"prompt": {"text": "x"}, "max_tokens": -1}', 400, "max_tokens"),
    (b'{"prompt": {"text": "x"}, "gating": {"mode": "MODE_GATED", "threshold": "NaN"}}', 400, "threshold is nan"),
    (b'{"prompt": {"text": "' + b"x" * (9 << 20) + b'"}}', 429, "8388608"),
    # Envoy passes over what it does not know (docs/api.md says so).
    (b'{"prompt": {"text": "x"}, "max_tokens": 1, "gatingg": {}}', 200, "summary"),
])
def test_bodies_that_make_no_sense(fleet, body, status, said):
    connection = http.client.HTTPConnection(fleet.envoy.address, timeout=PATIENCE)
    connection.request("POST", GENERATE, body)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    assert answer.status == status and said in text, text[:300]


def test_a_body_that_breaks_off_harms_nobody(fleet):
    begun = f"POST {GENERATE} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode()
    for bytes_sent in (begun, b"\0\xff\r\n\r\n"):
        with socket.create_connection(fleet.envoy.address.split(":")) as connection:
            connection.sendall(bytes_sent)
        assert ask(fleet.envoy.address, "/v1/models")[0] == 200


def test_the_documentation_lists_every_path():
    rules = (SOURCE / "deploy/envoy/transcoding/http_rules.txt").read_text()
    there = {tuple(line.split()[:3]) for line in rules.splitlines() if not line.startswith("#")}
    page = (SOURCE / "docs/api.md").read_text()
    rows = re.findall(r"^\| (GET|POST) \| `([^`]+)` \| `([^`]+)` \|$", page, re.MULTILINE)
    assert set(rows) == there
