"""Builds the messages of proto/gatehouse/v1 into the package; pyproject.toml has all else.

The .proto files are those of the checkout, or the copy that an sdist carries.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = pathlib.PurePath("gatehouse/v1")
PROTOS = next((path for path in (HERE / "proto", HERE.parent.parent / "proto") if (path / PACKAGE).is_dir()), None)


def generate(out: pathlib.Path) -> str:
    """Writes the package gatehouse.v1 below `out`; the version of protobuf that its code needs."""
    if PROTOS is None:
        raise SystemExit("proto/gatehouse/v1 is neither here nor two folders up: build from a checkout or an sdist")
    files = sorted(str(path) for path in (PROTOS / PACKAGE).glob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}", f"--python_out={out}",
                    f"--pyi_out={out}", *files], check=True)
    (out / PACKAGE / "__init__.py").write_text('"""The messages of proto/gatehouse/v1, as protoc writes them."""\n')
    written = (out / PACKAGE / "common_pb2.py").read_text()
    match = re.search(r"Protobuf Python Version: ([0-9.]+)", written)
    return match.group(1) if match else "4.21"


class BuildWithMessages(build_py):
    """Adds the generated package; an editable installation gets it beside the sources, where git ignores it."""

    def run(self) -> None:
        super().run()
        target = HERE / "src" if self.editable_mode else pathlib.Path(self.build_lib)
        shutil.copytree(generated / PACKAGE, target / PACKAGE, dirs_exist_ok=True)


class SdistWithProtos(sdist):
    """An sdist is away from the checkout, so it carries the .proto files."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copytree(PROTOS / PACKAGE, pathlib.Path(base_dir) / "proto" / PACKAGE, dirs_exist_ok=True)


# Nothing is left in the checkout, and nothing of an earlier build is taken up.
with tempfile.TemporaryDirectory() as scratch:
    generated = pathlib.Path(scratch, "generated")
    generated.mkdir()
    (pathlib.Path(scratch) / "egg").mkdir()
    version = generate(generated)
    setup(
        package_dir={"": "src"},
        packages=find_packages("src", exclude=["gatehouse.v1"]),
        package_data={"gatehouse": ["py.typed", "*.css"]},
        install_requires=["grpcio>=1.60,<2", "numpy>=1.26,<3",
                          f"protobuf>={version},<{int(version.split('.')[0]) + 2}"],
        cmdclass={"build_py": BuildWithMessages, "sdist": SdistWithProtos},
        options={"build": {"build_base": f"{scratch}/build"}, "egg_info": {"egg_base": f"{scratch}/egg"}},
    )
