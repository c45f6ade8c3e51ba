"""Runs Envoy with deploy/envoy/envoy.yaml before servers of the loopback."""

import json
import pathlib
import socket
import struct
import threading
import urllib.request

from service import BIN, SOURCE, Process, free_port, wait_until

DESCRIPTOR_SET = BIN.parent / "envoy/gatehouse.pb"


def free_addresses_port(count):
    """A port that is free on 127.0.0.1 and the `count` - 1 addresses after it."""
    while True:
        port = free_port()
        try:
            for last in range(1, count + 1):
                with socket.socket() as listener:
                    listener.bind((f"127.0.0.{last}", port))
            return port
        except OSError:
            continue


class Names:
    """A name server on the loopback that answers every name with `addresses`, as a headless Service does."""

    def __init__(self, *addresses):
        self.addresses = list(addresses)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                query, client = self._socket.recvfrom(4096)
            except OSError:  # closed
                return
            self._socket.sendto(self._answer(query), client)

    def _answer(self, query):
        end = query.index(b"\0", 12) + 5  # of the question: its name, type and class
        kind = struct.unpack("!H", query[end - 4:end - 2])[0]
        found = self.addresses if kind == 1 else []
        records = b"".join(struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(a) for a in found)
        return query[:2] + struct.pack("!HHHHH", 0x8580, 1, len(found), 0, 0) + query[12:end] + records

    def close(self):
        self._socket.close()


class Envoy(Process):
    """Envoy, ready; `address` is where calls go.  The replicas listen at `port` of the addresses that `names` gives."""

    def __init__(self, directory, program, names, port):
        directory = pathlib.Path(directory)
        listen, self.admin, status = free_port(), free_port(), free_port()
        text = (SOURCE / "deploy/envoy/envoy.yaml").read_text()
        for shipped, ours, times in (("port_value: 8080", f"port_value: {listen}", 1),
                                     ("port_value: 9901", f"port_value: {self.admin}", 2),
                                     ("port_value: 9902", f"port_value: {status}", 1),
                                     ("0.0.0.0", "127.0.0.1", 2),
                                     ("port_value: 50151", f"port_value: {port}", 1),
                                     (":50151", f":{port}", 2),
                                     ("/etc/envoy/gatehouse.pb", str(DESCRIPTOR_SET), 1)):
            assert text.count(shipped) == times, f"{shipped} stands {text.count(shipped)} times in envoy.yaml"
            text = text.replace(shipped, ours)
        (directory / "envoy.yaml").write_text(text)
        resolver = {"typed_dns_resolver_config": {"name": "envoy.network.dns_resolver.cares", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
            "resolvers": [{"socket_address": {"address": "127.0.0.1", "port_value": names.port}}]}}}
        super().__init__([program, "-c", directory / "envoy.yaml", "--config-yaml", json.dumps(resolver),
                          "--concurrency", "2", "--disable-hot-restart", "--log-level", "warning"],
                         directory / "envoy.log")
        self.address, self.status = f"127.0.0.1:{listen}", f"127.0.0.1:{status}"
        try:
            wait_until(self._ready, "Envoy's being ready", 30)
        except Exception:
            self.stop()
            raise

    def _ready(self):
        assert self.running(), f"Envoy ended:\n{self.log()}"
        try:
            with urllib.request.urlopen(f"http://{self.status}/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def replicas(self):
        """Address -> whether calls are sent to it."""
        url = f"http://127.0.0.1:{self.admin}/clusters?format=json"
        with urllib.request.urlopen(url, timeout=5) as answer:
            clusters = json.load(answer)["cluster_statuses"]
        hosts = next(c for c in clusters if c["name"] == "gatehouse").get("host_statuses", [])
        sick = ("failed_active_health_check", "failed_outlier_check", "pending_active_hc")
        return {h["address"]["socket_address"]["address"]: not any(h["health_status"].get(s) for s in sick)
                for h in hosts}
