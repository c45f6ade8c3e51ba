"""The images: the runtime stages of docker/Dockerfile, built and run; compose.yaml against what it names."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
import service
import yaml

DOCKER = service.SOURCE / "docker"
BUILD = service.BIN.parent
SUITE = "bookworm"
# In place of Docker Hub's debian:bookworm-slim, and like it without documentation; kept for the next time.
BASE = service.SOURCE / f"build/debian-{SUITE}"


def run(*command, timeout=600, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


# What apt says where a mirror cannot be reached.
NO_MIRROR = re.compile("Temporary failure resolving|Could not resolve|Could not connect|Unable to connect|"
                       "Failed to fetch|Connection timed out|Unable to fetch|Couldn't download")


def fetching(*command, always=False, **options):
    """Runs what fetches packages; a mirror that cannot be reached, or is too slow, skips the test."""
    try:
        return run(*command, **options)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} took over {options['timeout']} s: the mirror of Debian is slow")
    except AssertionError as error:
        if not always and not NO_MIRROR.search(str(error)):
            raise
        pytest.skip(f"{command[0]} could not fetch what it needs: {str(error)[-400:]}")


def size(folder):
    return int(run("du", "-sxb", folder).split()[0])


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """What `cmake --install` makes, moved elsewhere."""
    if not (BUILD / "cmake_install.cmake").exists():
        pytest.skip(f"{BUILD} is not a build folder of CMake")
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", BUILD, "--strip", "--prefix", folder / "first")
    (folder / "first").rename(folder / "staged")
    yield folder / "staged"
    shutil.rmtree(folder)


# ---- The installed folder ----


def test_the_installed_folder_works_wherever_it_lies(staged, tmp_path):
    loaded = run("ldd", staged / "bin/gatehouse-server", env={})
    torch = re.findall(r"(libtorch\S*|libc10\S*|libgomp\S*) => (\S+)", loaded)
    assert {name for name, _ in torch} >= {"libtorch_cpu.so", "libc10.so", "libgomp.so.1"}
    assert all(pathlib.Path(path).resolve().is_relative_to(staged) for _, path in torch), loaded
    assert "not found" not in loaded
    with service.Process([staged / "bin/gatehouse-server", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0",
                          "--kv-memory-mb=64", f"--state-dir={tmp_path}"], tmp_path / "log",
                         env={"OMP_NUM_THREADS": "1"}) as server:
        ready = server.wait_for(r"listening on ([^,\s]+),.* models (.*)")
        assert ready.group(2).split(", ") == sorted(f.name for f in (service.SOURCE / "models").iterdir())
    assert (staged / "share/gatehouse/envoy/gatehouse.pb").exists()


def test_of_a_cuda_build_nvidias_libraries_come_along(tmp_path):
    for name in ["torch/lib/libtorch.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_cuda.so",
                 "torch/lib/libtorch_cuda_linalg.so", "torch/lib/libc10.so", "torch/lib/libc10_cuda.so",
                 "torch/lib/libgomp.so.1", "torch/lib/libtorch_python.so", "torch/lib/libshm.so",
                 "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cu13/lib/libcublas.so.13"]:
        library = tmp_path / "packages" / name
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(b"")
    run("cmake", "-D", f"torch_package={tmp_path}/packages/torch", "-D", f"destination={tmp_path}/out",
        "-P", service.SOURCE / "cmake/install_torch.cmake")
    assert {f.name for f in (tmp_path / "out").iterdir()} == {
        "libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so", "libc10.so", "libc10_cuda.so",
        "libgomp.so.1", "libcudnn.so.9", "libcublas.so.13"}


# ---- The images ----


class Images:
    """Images that buildah builds of docker/Dockerfile in a store of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.mounts = {}

    def buildah(self, *arguments, runs=run, **options):
        return runs("buildah", "--root", self.folder / "store", "--runroot", self.folder / "run", "--storage-driver",
                   "vfs", *arguments, **options)

    def build(self, target, staged):
        # The context holds nothing: all that the runtime stages take comes from `staged`.
        (self.folder / "context").mkdir(exist_ok=True)
        self.buildah("build", "--layers", "--isolation", "chroot", "--format", "docker", "--pull=never",
                     "--build-arg", "BASE=localhost/base", "--build-context", f"staged={staged}", "--target", target,
                     "-f", DOCKER / "Dockerfile", "-t", f"localhost/{target}", self.folder / "context", runs=fetching,
                     timeout=600)
        container = self.buildah("from", "--pull=never", f"localhost/{target}").strip()
        self.mounts[target] = pathlib.Path(self.buildah("mount", container).strip())

    def config(self, target):
        return json.loads(self.buildah("inspect", "--type", "image", f"localhost/{target}"))["Docker"]["config"]

    def command(self, target, words, writable=()):
        """A command line that runs `words` in the image as Kubernetes would: its user, its environment, no
        capabilities, no way to get any, and a root that is read-only but for the folders named."""
        config = self.config(target)
        user, group = config["User"].split(":")
        root = self.mounts[target]
        # A mount namespace of its own: what is mounted here is gone with the process.
        steps = ["set -e", f"mount --bind {root} {root}"]
        for inside, outside in writable:
            steps.append(f"mount --bind {outside} {root}{inside}")
        steps += [f"mount -t proc proc {root}/proc", f"mount -t tmpfs dev {root}/dev",
                  f"touch {root}/dev/null {root}/dev/urandom", f"mount --bind /dev/null {root}/dev/null",
                  f"mount --bind /dev/urandom {root}/dev/urandom", f"mount -o remount,bind,ro {root}",
                  f"exec chroot {root} setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs "
                  "--bounding-set=-all --inh-caps=-all env -i " + '"$@"']
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(steps), "sh",
                *config["Env"], *words]


@pytest.fixture(scope="module")
def images(tmp_path_factory, staged):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount and to change root")
    for program in ("buildah", "debootstrap", "unshare", "setpriv"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not let its root mount")
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(ORIGIN) $(COMPONENT)",
                  "Created-By: Packages")
    mirror = re.search(rf"^(\S+) {SUITE} Debian main$", targets, re.MULTILINE)
    if not mirror:
        pytest.skip(f"the machine's apt does not know Debian {SUITE}, which the images are made of")
    folder = tmp_path_factory.mktemp("images")
    if not BASE.exists():
        fetching("debootstrap", "--variant=minbase", SUITE, folder / "base", mirror.group(1), timeout=900, always=True)
        for junk in ["usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists", "dev"]:
            shutil.rmtree(folder / "base" / junk)
            (folder / "base" / junk).mkdir()
        shutil.move(folder / "base", BASE)
    built = Images(folder)
    container = built.buildah("from", "scratch").strip()
    built.buildah("copy", container, BASE, "/")
    built.buildah("commit", "--rm", container, "localhost/base")
    for target in ("client", "server"):
        built.build(target, staged)
    yield built
    built.buildah("rm", "--all")
    shutil.rmtree(folder)


def test_the_server_image_says_how_it_is_run(images):
    config = images.config("server")
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["gatehouse-server"] and config["ExposedPorts"].keys() == {"50151/tcp", "9464/tcp"}
    assert config["Volumes"].keys() == {"/var/lib/gatehouse"}
    assert config["Healthcheck"]["Test"] == ["CMD", "gatehouse", "--timeout", "5", "health", "readiness"]
    assert images.config("client")["Entrypoint"] == ["gatehouse"] and images.config("client")["User"] == "10001:10001"


def test_the_images_are_small(images):
    base = size(BASE)
    sizes = {target: size(root) for target, root in images.mounts.items()}
    print({"base": base, **sizes})
    # docs/deploy.md states them.
    assert sizes["server"] - base < 450e6
    assert sizes["client"] - base < 60e6
    assert not (images.mounts["client"] / "opt/gatehouse/lib").exists()


def test_the_image_serves_read_only_and_without_rights(images, tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 10001, 10001)
    os.chmod(tmp_path, 0o755)
    writable = [("/var/lib/gatehouse", state)]
    config = images.config("server")
    port = service.free_port()
    words = [*config["Entrypoint"], f"--listen=127.0.0.1:{port}", "--metrics-listen=127.0.0.1:0", "--kv-memory-mb=64"]
    with service.Process(images.command("server", ["OMP_NUM_THREADS=1", *words], writable), tmp_path / "log") as server:
        server.wait_for("gatehouse-server ready")
        status = pathlib.Path(f"/proc/{server.popen.pid}/status").read_text()
        assert re.search(r"^Uid:\s+10001\s+10001\s+10001\s+10001$", status, re.MULTILINE), status
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
        here = f"GATEHOUSE_SERVER=127.0.0.1:{port}"
        healthy = config["Healthcheck"]["Test"][1:]
        assert run(*images.command("server", [here, *healthy])) == "readiness: serving\n"
        generated = run(*images.command("client", [here, *images.config("client")["Entrypoint"], "generate", "--model",
                                                   "novella-neox-4m", "--prompt", "The captain", "--max-tokens", "4",
                                                   "--json"]))
        assert json.loads(generated)["generated_tokens"] == 4
        refused = subprocess.run(images.command("server", ["touch", "/opt/gatehouse/new"]), capture_output=True,
                                 text=True)
        assert "Read-only file system" in refused.stderr
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(60) == 0
        unhealthy = subprocess.run(images.command("server", [here, *healthy]), capture_output=True)
        assert unhealthy.returncode != 0


# ---- What cannot be run here ----


def dockerfile_stages():
    text = re.sub(r"\\\n", " ", (DOCKER / "Dockerfile").read_text())
    return {m.group(2): m.group(1) for m in re.finditer(r"^FROM (\S+) AS (\S+)", text, re.MULTILINE)}


def test_every_folder_that_the_compilation_copies_is_let_through():
    allowed = {line[1:] for line in (service.SOURCE / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((service.SOURCE / name).exists() for name in allowed)
    wanted = set(re.findall(r"add_subdirectory\((\w+)", (service.SOURCE / "CMakeLists.txt").read_text())) - {"tests"}
    assert wanted | {"CMakeLists.txt", "CMakePresets.json", "cmake", "models", "tools"} == allowed


def test_compose_names_what_there_is():
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    services = compose["services"]
    stages = dockerfile_stages()
    known = set(re.findall(r"--[a-z][a-z-]+", run(service.BIN / "gatehouse-server", "--help")))
    assert {word.split("=")[0] for word in services["gatehouse"]["command"]} <= known
    for name, entry in services.items():
        assert not entry["image"].endswith(":latest") and ":" in entry["image"]
        assert entry["cap_drop"] == ["ALL"] and entry["security_opt"] == ["no-new-privileges:true"]
        assert entry.get("user") not in ("0", "root", 0)
        assert all(port.startswith("127.0.0.1:") for port in entry.get("ports", [])), name
        if build := entry.get("build"):
            assert build["target"] in stages
            assert (DOCKER / build["context"] / build["dockerfile"]).resolve() == DOCKER / "Dockerfile"
        for volume in entry.get("volumes", []):
            outside, inside = volume.split(":")[:2]
            if outside.startswith("."):
                assert (DOCKER / outside).is_dir() and volume.endswith(":ro"), volume
            else:
                assert outside in compose["volumes"]
    envoy = (service.SOURCE / "deploy/envoy/envoy.yaml").read_text()
    [alias] = services["gatehouse"]["networks"]["default"]["aliases"]
    assert f"address: {alias}" in envoy
    prometheus = yaml.safe_load((service.SOURCE / "deploy/prometheus/prometheus.yml").read_text())
    [scraped] = prometheus["scrape_configs"][0]["dns_sd_configs"]
    metrics = next(w for w in services["gatehouse"]["command"] if w.startswith("--metrics-listen="))
    assert scraped["names"][0] in services and metrics.endswith(f":{scraped['port']}")
    sources = (service.SOURCE / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", sources)) <= services["grafana"]["environment"].keys()
    dashboards = yaml.safe_load((service.SOURCE / "deploy/grafana/provisioning/dashboards/gatehouse.yml").read_text())
    assert any(v.split(":")[1] == dashboards["providers"][0]["options"]["path"] for v in services["grafana"]["volumes"])
