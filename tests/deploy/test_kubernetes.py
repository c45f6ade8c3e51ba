"""The Kubernetes manifests: their schemas, and what schemas cannot see."""

import copy
import functools
import re
import subprocess

import pytest
import service
import yaml
from manifests import (MANIFESTS, OVERLAYS, ROOTS, all_containers, build, containers, flag, one_selected, pods, ports_of,
                       selects, server_of)

kubernetes_validate = pytest.importorskip("kubernetes_validate")

# The oldest that has all that is used (a Job's sidecar, a pause before a container ends), and the newest there is
# a schema of.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
OPERATOR = "monitoring.coreos.com/v1"


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
