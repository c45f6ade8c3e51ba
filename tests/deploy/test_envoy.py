"""deploy/envoy for real: Envoy before servers that come, drain and die."""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest
import yaml
from envoy_proxy import Envoy, Names, free_addresses_port
from fleet import GENERATE, MODEL, PATIENCE, ask, generate, start_streams
from service import SOURCE, gatehouse, wait_until

grpc = pytest.importorskip("grpc")

# Longer than any timeout that Envoy has where none is set: a route's is 15 s.
IDLE_SECONDS = 17


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
        stream.join(PATIENCE)
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
        stream.join(PATIENCE)
    assert all(stream.ended_well and stream.tokens == expected for stream in streams)
    fleet.start(1)
    fleet.wait_for_all()


def test_a_new_replica_is_found_and_a_gone_one_forgotten(fleet):
    fleet.start(3)
    try:
        fleet.wait_for_all()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert set(pool.map(lambda _: generate(fleet.envoy.address)[0], range(24))) == {200}
        assert fleet.generations("127.0.0.3") > 0
    finally:
        fleet.names.addresses.remove("127.0.0.3")
        fleet.servers.pop("127.0.0.3").stop()
    fleet.wait_for_all()


def test_tokens_come_as_they_are_made(fleet):
    connection = http.client.HTTPConnection(fleet.envoy.address, timeout=PATIENCE)
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


def test_an_envoy_that_drains_lets_calls_go_on(envoy, tmp_path):
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
        with Envoy(tmp_path, envoy, names, port) as proxy, grpc.insecure_channel(proxy.address) as channel:
            wait_until(lambda: list(proxy.replicas().values()) == [True], "the replica's health")
            call = channel.unary_stream("/gatehouse.v1.GenerationService/Generate")(b"")
            assert next(call) == b"1"
            assert ask(f"127.0.0.1:{proxy.admin}", path, {})[0] == 200
            go_on.set()
            assert list(call) == [b"2"]
            assert ask(proxy.address, "/healthz")[0] == 200  # who does not know yet is not turned away
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
def test_only_what_has_not_begun_is_repeated(envoy, tmp_path, first, method, ends, calls):
    names, port = Names("127.0.0.1", "127.0.0.2"), free_addresses_port(2)
    replicas = {"first": FakeReplica(f"127.0.0.1:{port}", first), "second": FakeReplica(f"127.0.0.2:{port}", serve)}
    try:
        with Envoy(tmp_path, envoy, names, port) as proxy, grpc.insecure_channel(proxy.address) as channel:
            wait_until(lambda: list(proxy.replicas().values()) == [True, True], "both replicas' health")
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
