"""The Kubernetes manifests as tests read them."""

import functools
import shutil
import subprocess

import pytest
import service
import yaml

MANIFESTS = service.SOURCE / "deploy/kubernetes"
OVERLAYS = ["overlays/cpu", "overlays/gpu", "overlays/autoscaling"]
ROOTS = [*OVERLAYS, "calibration", "fill"]


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
