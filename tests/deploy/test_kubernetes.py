"""The Kubernetes manifests: their schemas, what schemas cannot see, and their servers run as they say."""

import copy
import functools
import re
import shutil
import signal
import subprocess

import pytest
import service
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate")

MANIFESTS = service.SOURCE / "deploy/kubernetes"
OVERLAYS = ["overlays/cpu", "overlays/gpu", "overlays/autoscaling"]
ROOTS = [*OVERLAYS, "calibration", "fill"]
# The oldest that has all that is used (a Job's sidecar, a pause before a container ends), and the newest there is
# a schema of.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
OPERATOR = "monitoring.coreos.com/v1"


@functools.cache
def build(root):
    """The objects of a kustomization, by (kind, name)."""
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize"]
    elif shutil.which("kustomize"):
        command = ["kustomize", "build"]
    else:
        pytest.skip("neither kubectl nor kustomize is installed")
    built = subprocess.run([*command, MANIFESTS / root], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    return {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(built.stdout)}


def pods(objects):
    """The name and pod template of everything that makes pods."""
    return [(name, thing if kind == "Pod" else thing["spec"]["template"])
            for (kind, name), thing in objects.items() if kind in ("Deployment", "Job", "Pod")]


def containers(template):
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


def all_containers(objects):
    return [c for _, template in pods(objects) for c in containers(template)]


def server_of(root):
    objects = build(root)
    template = objects["Job" if root == "calibration" else "Deployment",
                       "gatehouse-calibration" if root == "calibration" else "gatehouse"]["spec"]["template"]
    return next(c for c in containers(template) if c["name"] == "server")


def flag(container, name):
    return next(a.split("=", 1)[1] for a in container["args"] if a.startswith(name + "="))


def selects(selector, labels):
    return selector.items() <= labels.items()


def one_selected(objects, selector):
    """The one pod template that the labels select."""
    found = [t for _, t in pods(objects) if selects(selector, t["metadata"]["labels"])]
    assert len(found) == 1, f"{selector} selects {len(found)} of the pods"
    return found[0]


def ports_of(template):
    return {p["name"]: p["containerPort"] for c in containers(template) for p in c.get("ports", [])}


def seconds(duration):
    return float(re.fullmatch(r"(\d+(?:\.\d+)?)s?", str(duration)).group(1))


@pytest.fixture(params=ROOTS)
def objects(request):
    return build(request.param)


# ---- Schemas ----


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_have_the_form_that_kubernetes_takes(objects, version):
    for thing in objects.values():
        if thing["apiVersion"] != OPERATOR:
            kubernetes_validate.validate(thing, version, strict=True)


def test_a_misspelt_field_is_not_taken(objects):
    for _, template in pods(objects):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": copy.deepcopy(template["spec"])}
        kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)
        pod["spec"]["containers"][0]["readinesProbe"] = {}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


def test_the_operators_objects_have_the_form_of_its_definitions():
    models = pytest.importorskip("cloudcoil.models.prometheus_operator.v1")

    def without_none(value):
        if isinstance(value, dict):
            return {k: without_none(v) for k, v in value.items() if v is not None}
        return [without_none(v) for v in value] if isinstance(value, list) else value

    checked = 0
    for root in ROOTS:
        for thing in build(root).values():
            if thing["apiVersion"] != OPERATOR:
                continue
            parsed = getattr(models, thing["kind"]).model_validate(thing)
            # What the definitions do not know is dropped by the parse.
            assert without_none(parsed.model_dump(mode="json", by_alias=True, exclude_unset=True)) == thing
            checked += 1
    assert checked


def test_everything_is_in_the_namespace(objects):
    for (kind, name), thing in objects.items():
        if kind != "Namespace":
            assert thing["metadata"].get("namespace") == "gatehouse", f"{kind} {name}"


# ---- Pods ----


def test_no_container_has_rights_it_does_not_need(objects):
    for name, template in pods(objects):
        spec = template["spec"]
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True and pod["runAsUser"] > 0 and pod["runAsGroup"] > 0, name
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "hostUsers"}
        for container in containers(template):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert not own.keys() & {"privileged", "runAsUser", "runAsNonRoot", "seccompProfile"}
            assert not any("hostPort" in port for port in container.get("ports", []))
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "persistentVolumeClaim", "configMap"}


def test_containers_say_what_they_need(objects):
    for container in all_containers(objects):
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys()
        assert "memory" in resources["limits"]
        for entry in container.get("env", []):
            if reference := entry.get("valueFrom", {}).get("resourceFieldRef"):
                assert reference["containerName"] == container["name"]
                kind, resource = reference["resource"].split(".")
                assert resource in resources[kind]


def test_every_mount_has_a_volume_and_every_volume_is_mounted(objects):
    for name, template in pods(objects):
        volumes = {v["name"]: v for v in template["spec"]["volumes"]}
        mounts = [m for c in containers(template) for m in c.get("volumeMounts", [])]
        assert {m["name"] for m in mounts} == volumes.keys(), name
        for mount in mounts:
            claim = volumes[mount["name"]].get("persistentVolumeClaim", {"readOnly": True})
            assert claim.get("readOnly", False) or not mount.get("readOnly", False)


@pytest.mark.parametrize("root", [*OVERLAYS, "calibration"])
def test_a_server_writes_its_state_and_nothing_else(root):
    objects = build(root)
    server = server_of(root)
    state = flag(server, "--state-dir")
    written = {m["mountPath"]: m["name"] for m in server["volumeMounts"] if not m.get("readOnly")}
    assert written.keys() == {state, *([f"{state}/calibrations"] if root == "calibration" else [])}
    volumes = {v["name"]: v for _, template in pods(objects) for v in template["spec"]["volumes"]}
    assert "emptyDir" in volumes[written[state]]
    for volume in volumes.values():
        if root != "calibration" and (claim := volume.get("persistentVolumeClaim")):
            assert claim["readOnly"] is True and ("PersistentVolumeClaim", claim["claimName"]) in objects


def test_models_and_calibrations_are_read_from_the_claims():
    for root in ["overlays/gpu", "overlays/autoscaling"]:
        server = server_of(root)
        mounts = {m["mountPath"]: m["name"] for m in server["volumeMounts"]}
        models = next(e["value"] for e in server["env"] if e["name"] == "GATEHOUSE_MODELS")
        assert mounts[models] == "models" and mounts[flag(server, "--calibrations-dir")] == "calibrations"


@functools.cache
def known_flags(program):
    text = subprocess.run([service.BIN / program, "--help"], capture_output=True, text=True, timeout=60).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def test_every_flag_exists_and_every_variable_is_set(objects):
    for container in all_containers(objects):
        words = container.get("command", ["gatehouse-server"]) + container.get("args", [])
        if not (container["image"].startswith("gatehouse:") and words[0].startswith("gatehouse")):
            continue
        known = known_flags(words[0])
        if words[0] == "gatehouse":
            command = next(w for w in words[1:] if not w.startswith("-"))
            known = known | set(re.findall(r"--[a-z][a-z-]+", subprocess.run(
                [service.BIN / "gatehouse", command, "--help"], capture_output=True, text=True, timeout=60).stdout))
        assert {w.split("=")[0] for w in words[1:] if w.startswith("-")} <= known
        provided = {e["name"] for e in container.get("env", [])}
        for source in container.get("envFrom", []):
            name = source["configMapRef"]["name"]
            provided |= objects["ConfigMap", name]["data"].keys()
        assert set(re.findall(r"\$\((\w+)\)", " ".join(words))) <= provided


def test_probes_ask_for_names_that_the_server_has(objects):
    documented = (service.SOURCE / "docs/api.md").read_text()
    for name, template in pods(objects):
        server = next((c for c in containers(template) if c["name"] == "server"), None)
        if server is None:
            continue
        listens = int(flag(server, "--listen").rsplit(":", 1)[1])
        kinds = [k for k in server if k.endswith("Probe")]
        assert kinds == ["startupProbe"] or sorted(kinds) == ["livenessProbe", "readinessProbe", "startupProbe"], name
        for kind in kinds:
            probe = server[kind]
            wanted = "liveness" if kind == "livenessProbe" else "readiness"
            assert probe["grpc"] == {"port": listens, "service": wanted}
            assert f"`{wanted}`" in documented
            assert probe["timeoutSeconds"] > 1


def test_a_pod_has_the_time_that_its_server_takes_to_end():
    for root in OVERLAYS:
        deployment = build(root)["Deployment", "gatehouse"]["spec"]["template"]["spec"]
        server = server_of(root)
        needed = seconds(flag(server, "--shutdown-delay")) + seconds(flag(server, "--shutdown-grace"))
        assert deployment["terminationGracePeriodSeconds"] >= needed + 15
        probe = server["readinessProbe"]
        assert seconds(flag(server, "--shutdown-delay")) >= probe["periodSeconds"]


def test_the_claims_are_filled_where_the_servers_read_them():
    filled = {m["mountPath"]: m["name"] for m in all_containers(build("fill"))[0]["volumeMounts"]}
    read = {m["mountPath"]: m["name"] for m in server_of("overlays/gpu")["volumeMounts"] if m.get("readOnly")}
    assert filled == read


def test_the_guide_names_files_that_exist():
    guide = (service.SOURCE / "docs/deploy.md").read_text()
    for name in re.findall(r"(?:deploy|docker|tools|tests)/[\w./-]*\w", guide):
        assert (service.SOURCE / name).exists(), name


def test_one_image_of_this_version_is_used_throughout():
    version = re.search(r"VERSION (\S+)", (service.SOURCE / "CMakeLists.txt").read_text().split("project(", 1)[1])
    for root in ROOTS:
        images = {c["image"] for c in all_containers(build(root)) if c["image"].startswith("gatehouse")}
        assert images == {f"gatehouse:{version.group(1)}{'-cuda' if root == 'overlays/gpu' else ''}"}


def test_the_gpu_overlay_asks_for_one():
    server = server_of("overlays/gpu")
    assert server["resources"]["limits"]["nvidia.com/gpu"] == server["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert flag(server, "--device") == "cuda" and server["image"].endswith("-cuda")


# ---- What stands around the pods ----


@pytest.mark.parametrize("root", OVERLAYS)
def test_services_budget_and_policy_select_the_server(root):
    objects = build(root)
    for (kind, name), thing in objects.items():
        spec = thing.get("spec", {})
        if kind == "Service":
            ports = ports_of(one_selected(objects, spec["selector"]))
            assert {p["targetPort"]: p["port"] for p in spec["ports"]}.items() <= ports.items(), name
            assert all(p["appProtocol"] == "kubernetes.io/h2c" for p in spec["ports"] if p["name"] == "grpc")
        elif kind == "PodDisruptionBudget":
            one_selected(objects, spec["selector"]["matchLabels"])
        elif kind == "NetworkPolicy":
            template = one_selected(objects, spec["podSelector"]["matchLabels"])
            assert {p["port"] for rule in spec["ingress"] for p in rule["ports"]} == ports_of(template).keys(), name
    assert objects["Service", "gatehouse-headless"]["spec"]["clusterIP"] == "None"
    deployment = objects["Deployment", "gatehouse"]["spec"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]


@pytest.mark.parametrize("root", [*OVERLAYS, "calibration"])
def test_every_pod_is_under_a_network_policy(root):
    objects = build(root)
    policies = [o["spec"] for o in objects.values() if o["kind"] == "NetworkPolicy"]
    for name, template in pods(objects):
        covering = [p for p in policies if selects(p["podSelector"]["matchLabels"], template["metadata"]["labels"])]
        assert len(covering) == 1 and "Ingress" in covering[0]["policyTypes"], name
        if any(c["name"] == "server" for c in containers(template)):
            assert covering[0]["egress"] == [], "the server calls nobody"


@pytest.mark.parametrize("root", OVERLAYS)
def test_envoy_finds_the_replicas(root):
    objects = build(root)
    configured = yaml.safe_load((service.SOURCE / "deploy/envoy/envoy.yaml").read_text())["static_resources"]
    listens = {listener["name"]: listener["address"]["socket_address"]["port_value"]
               for listener in configured["listeners"]}
    template = objects["Deployment", "gatehouse-envoy"]["spec"]["template"]
    assert ports_of(template) == listens
    cluster = next(c for c in configured["clusters"] if c["name"] == "gatehouse")
    [[endpoint]] = [e["lb_endpoints"] for e in cluster["load_assignment"]["endpoints"]]
    replicas = endpoint["endpoint"]["address"]["socket_address"]
    headless = objects["Service", replicas["address"]]["spec"]
    assert headless["clusterIP"] == "None"
    assert replicas["port_value"] in [p["port"] for p in headless["ports"]]
    # Envoy knows a replica by its address, so that is its name.
    address = next(e for e in server_of(root)["env"] if "$(" + e["name"] + ")" == flag(server_of(root), "--replica"))
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    # The servers let it in.
    called = objects["NetworkPolicy", "gatehouse"]["spec"]
    callers = [f["podSelector"]["matchLabels"] for f in called["ingress"][0]["from"]]
    assert any(selects(labels, template["metadata"]["labels"]) for labels in callers)


@pytest.mark.parametrize("root", OVERLAYS)
def test_prometheus_scrapes_each_replica_once(root):
    objects = build(root)
    endpoint = objects["ServiceMonitor", "gatehouse"]["spec"]
    wanted = endpoint["selector"]["matchLabels"]
    services = [o for o in objects.values() if o["kind"] == "Service" and selects(wanted, o["metadata"]["labels"])]
    assert [s["metadata"]["name"] for s in services] == ["gatehouse-headless"]
    port = next(p for p in services[0]["spec"]["ports"] if p["name"] == endpoint["endpoints"][0]["port"])
    assert port["port"] == int(flag(server_of(root), "--metrics-listen").rsplit(":", 1)[1])


@pytest.mark.parametrize("root", OVERLAYS)
def test_rules_and_dashboards_are_those_of_prometheus_and_grafana(root):
    objects = build(root)
    groups = []
    for path in sorted((service.SOURCE / "deploy/prometheus/rules").glob("*.yml")):
        groups += yaml.safe_load(path.read_text())["groups"]
    assert objects["PrometheusRule", "gatehouse"]["spec"]["groups"] == groups, "run tools/make_prometheus_rule.py"
    held = {}
    for (kind, _), thing in objects.items():
        if kind == "ConfigMap" and thing["metadata"].get("labels", {}).get("grafana_dashboard") == "1":
            held.update(thing["data"])
    dashboards = (service.SOURCE / "deploy/grafana/dashboards").glob("*.json")
    assert held == {path.name: path.read_text() for path in dashboards}


def test_the_autoscaler_watches_metrics_that_exist():
    objects = build("overlays/autoscaling")
    autoscaler = objects["HorizontalPodAutoscaler", "gatehouse"]["spec"]
    assert ("Deployment", autoscaler["scaleTargetRef"]["name"]) in objects
    assert "replicas" not in objects["Deployment", "gatehouse"]["spec"]
    names = {m["pods"]["metric"]["name"]: float(m["pods"]["target"]["averageValue"]) for m in autoscaler["metrics"]}
    documented = (service.SOURCE / "docs/metrics.md").read_text()
    assert "gatehouse_requests_waiting" in names
    assert all(f"`{name}`" in documented for name in names)
    # Running calls must ask for a replica before they fill those there are.
    assert names["gatehouse_requests_running"] < 32
    adapter = yaml.safe_load((MANIFESTS / "components/autoscaling/prometheus-adapter.yaml").read_text())
    [rule] = adapter["rules"]["custom"]
    series = re.search(r'__name__=~"([^"]+)"', rule["seriesQuery"]).group(1)
    assert all(re.fullmatch(series, name) for name in names)


# ---- Run as they say ----


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
    server["args"] = [re.sub("^--shutdown-delay=.*", "--shutdown-delay=1", a) for a in server["args"]]
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
