"""The servers of the Kubernetes manifests run as their pods say."""

import copy
import re
import shutil
import signal

import service
from manifests import build, server_of


def runnable(words, env, folders):
    """The arguments with variables and folders in place, and on ports of the loopback."""
    filled = [re.sub(r"\$\((\w+)\)", lambda m: env[m.group(1)], w) for w in words]
    for inside, outside in sorted(folders.items(), reverse=True):
        filled = [w.replace(f"={inside}", f"={outside}") for w in filled]
    return [re.sub(r"^(--(?:metrics-)?listen)=.*", r"\1=127.0.0.1:0", w) for w in filled]


def folders_of(container, tmp_path):
    """A folder for each mount."""
    folders = {m["mountPath"]: tmp_path / m["mountPath"].strip("/") for m in container["volumeMounts"]}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return {inside: str(outside) for inside, outside in folders.items()}


class Container(service.Process):
    """A server with a container's arguments."""

    def __init__(self, container, tmp_path, env):
        folders = folders_of(container, tmp_path)
        given = {e["name"]: folders.get(e["value"], e["value"]) for e in container.get("env", []) if "value" in e}
        super().__init__([service.BIN / "gatehouse-server", *runnable(container["args"], {**given, **env}, folders)],
                         tmp_path / "server.log", env={"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **given})
        try:
            self.address, self.metrics = self.wait_for(
                r"ready: listening on ([^,\s]+), metrics on ([^,\s]+),").groups()
        except Exception:
            self.stop()
            raise

    def health(self, name):
        return service.gatehouse("health", name, "--timeout", 10, server=self.address).returncode


def test_a_replica_is_ready_and_ends_as_its_pod_expects(tmp_path):
    server = copy.deepcopy(server_of("overlays/cpu"))
    server["args"] = [re.sub("^--shutdown-delay=.*", "--shutdown-delay=5", a) for a in server["args"]]
    with Container(server, tmp_path, {"POD_IP": "10.1.2.3"}) as running:
        assert running.health("readiness") == 0 and running.health("liveness") == 0
        listed = service.gatehouse("models", "--json", server=running.address)
        assert '"replica":"10.1.2.3"' in listed.stdout
        running.popen.send_signal(signal.SIGTERM)
        service.wait_until(lambda: running.health("readiness") == 1, "the end of readiness", 10)
        assert running.health("liveness") == 0
        assert running.popen.wait(20) == 0


def test_the_job_calibrates_for_every_replica(tmp_path):
    model = "novella-neox-4m"
    job = build("calibration")["Job", "gatehouse-calibration"]["spec"]["template"]["spec"]
    [sidecar], [client] = job["initContainers"], job["containers"]
    env = {"MODEL": model, "BUDGET": "5%"}
    claims = {"models": tmp_path / "claims/models", "calibrations": tmp_path / "claims/calibrations"}
    shutil.copytree(service.SOURCE / "models" / model, claims["models"] / model,
                    ignore=shutil.ignore_patterns("calibrations"))
    claims["calibrations"].mkdir()

    def mount(container, at):
        for volume_mount in container["volumeMounts"]:
            if claim := claims.get(volume_mount["name"]):
                place = at / volume_mount["mountPath"].strip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(claim)

    mount(sidecar, tmp_path / "job")
    corpus = max((service.SOURCE / "tests/data/corpus").rglob("*.txt"), key=lambda f: f.stat().st_size)
    with Container(sidecar, tmp_path / "job", env) as running:
        words = [w for w in client["args"] if not w.startswith("--server=")]
        quick = ["--fit-tokens=600", "--gate-tokens=600", "--select-tokens=300", "--report-tokens=300",
                 "--window-tokens=128", "--no-ladders", "--no-sequential", "--no-tune", "--name=of-the-job"]
        done = service.gatehouse(*runnable(words, env, {"/corpus/corpus.txt": str(corpus)}), *quick,
                                 server=running.address, timeout=280)
        assert done.returncode == 0, done.stderr
    replica = server_of("overlays/autoscaling")
    mount(replica, tmp_path / "replica")
    with Container(replica, tmp_path / "replica", {"POD_IP": "10.1.2.3"}) as running:
        described = service.gatehouse("models", model, "--json", server=running.address)
        assert '"name":"of-the-job"' in described.stdout, running.log()
