"""The package as pip makes it: what is in it, what it asks for, and its types."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile

import pytest
import service
from test_client import MODEL

SOURCES = service.SOURCE / "client/python"
USER = """
import gatehouse as g

client = g.connect()
reveal_type(client.generate("m", "x", seed=1).result().text)
reveal_type(client.score("m", "x").logprobs)
reveal_type(client.calibrate("m", "corpora/x", budgets=[0.01]).wait().report())
client.generate("m", "x", sed=1)
client.experiment("m", "x", g.Quorum(3))

async def main() -> None:
    async with g.AsyncClient() as other:
        reveal_type(await other.nonlinearity("m", ["x", "y"]))
        async for token in other.generate("m", "x"):
            reveal_type(token)
"""


def build(hook, where, *arguments):
    """Runs a hook of the build backend, as pip does."""
    code = f"import setuptools.build_meta as b; print('\\n' + b.{hook}(*{arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=where, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_it_asks_for_the_protobuf_that_its_messages_need(gh, package):
    meta = importlib.metadata.PathDistribution(next(package.glob("gatehouse-*.dist-info")))
    written = re.search(r"Protobuf Python Version: ([0-9.]+)", (package / "gatehouse/v1/common_pb2.py").read_text())
    wanted = {re.match(r"[a-z]+", needed)[0]: needed for needed in meta.requires if "extra" not in needed}
    assert set(wanted) == {"grpcio", "protobuf", "numpy"} and f">={written[1]}" in wanted["protobuf"]
    assert set(meta.metadata.get_all("Provides-Extra")) == {"pandas", "notebook"}
    assert (package / "gatehouse/py.typed").exists() and (package / "gatehouse/notebook.css").exists()


def test_nothing_generated_is_in_the_checkout(package):
    git = subprocess.run(["git", "ls-files", "--others", "--cached", "."], cwd=SOURCES, capture_output=True, text=True)
    if git.returncode:
        pytest.skip("this is no git checkout")
    assert not [path for path in git.stdout.split() if "pb2" in path or "egg-info" in path or path.startswith("build")]


def test_an_sdist_builds_away_from_the_checkout(package, tmp_path):
    archive = tmp_path / build("build_sdist", SOURCES, str(tmp_path))
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "away", filter="data")
    root = next((tmp_path / "away").iterdir())
    assert {path.name for path in (root / "proto/gatehouse/v1").iterdir()} == {
        path.name for path in (service.SOURCE / "proto/gatehouse/v1").glob("*.proto")}
    (tmp_path / "meta").mkdir()
    made = build("prepare_metadata_for_build_wheel", root, str(tmp_path / "meta"))
    assert "protobuf" in (tmp_path / "meta" / made / "METADATA").read_text()


def test_types_are_complete_and_reach_the_user(package, tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed: tools/requirements-test.txt")
    (tmp_path / "user.py").write_text(USER)
    mypy = [sys.executable, "-m", "mypy", f"--cache-dir={tmp_path}/cache", "--config-file", SOURCES / "pyproject.toml"]
    environment = {**os.environ, "MYPYPATH": str(package)}
    own = subprocess.run(mypy, cwd=package, env=environment, capture_output=True, text=True, timeout=300)
    assert own.returncode == 0, own.stdout
    user = subprocess.run([*mypy, tmp_path / "user.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=300).stdout
    told = re.findall(r'user.py:\d+: \w+: (.*)', user)
    revealed = [re.match(r'Revealed type is "([\w.]+)', line)[1] for line in told if line.startswith("Revealed")]
    assert revealed == ["str", "numpy.ndarray", "gatehouse.report.Report", "gatehouse.results.NonlinearityResult",
                        "gatehouse.results.Token"]
    errors = [line for line in told if not line.startswith("Revealed")]
    assert len(errors) == 2 and '"sed"' in errors[0] and "Quorum" in errors[1]


def test_frames_say_what_to_install(package):
    code = ("import sys; sys.modules['pandas'] = None; sys.path.insert(0, sys.argv[1])\n"
            "from gatehouse.trace import frame\nframe({})")
    done = subprocess.run([sys.executable, "-c", code, package], capture_output=True, text=True)
    assert "pip install 'gatehouse[pandas]'" in done.stderr


def test_the_guide_runs_and_names_everything(gh, server, tmp_path, monkeypatch):
    guide = (service.SOURCE / "docs/python.md").read_text()
    assert [name for name in gh.__all__ if not re.search(rf"\b{name}\b", guide)] == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_bytes((service.SOURCE / "tests/data/corpus/treasure_island.txt").read_bytes())
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.M | re.S)
    assert len(blocks) >= 8
    program = "\n".join(blocks).replace("127.0.0.1:50151", server.address).replace("novella-gpt2-7m", MODEL)
    exec(compile(program, "docs/python.md", "exec"), {"__name__": "guide"})
    assert {"heatmap.html", "report.json", "mine.safetensors"} <= {path.name for path in tmp_path.iterdir()}
