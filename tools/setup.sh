# Sourced by tools/run, tools/test, tools/test-deploy, tools/check and tools/get-model: installs what is
# missing and configures and builds.  Everything it does a second time takes seconds.

set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
python="$root/.venv/bin/python"
# Threads of OpenMP that spin while they wait take the cores from each other.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

# Debian and Ubuntu packages; docs/dependencies.md says what each is for.
packages=(
  build-essential cmake ninja-build ccache pkg-config python3 python3-venv
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev prometheus-cpp-dev libcli11-dev nlohmann-json3-dev libutf8proc-dev libssl-dev libzip-dev
  libgtest-dev libgmock-dev
)
check_packages=(clang-format clang-tidy)
# What the tests of deploy/ run.
deploy_packages=(
  buildah debootstrap
  curl
  prometheus
)

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# install_packages NAME...: those of the packages that are not there yet.
install_packages() {
  local missing=() name
  for name in "$@"; do
    [ "$(dpkg-query -W -f='${Status}' "$name" 2>/dev/null)" = "install ok installed" ] || missing+=("$name")
  done
  [ "${#missing[@]}" -eq 0 ] && return
  command -v apt-get >/dev/null || {
    echo "These packages are missing and there is no apt-get to install them: ${missing[*]}" >&2
    exit 1
  }
  say "Installing ${#missing[@]} system packages: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# try_packages NAME...: the same, where tests that need them say that they are missing.
try_packages() {
  (install_packages "$@") || echo "They could not be installed: the tests that need them will be skipped." >&2
}

# torch_usable PYTHON: whether that Python has a LibTorch of a version we build with.
torch_usable() {
  "$1" - 2>/dev/null <<'PY'
import importlib.metadata as m, sys
major, minor = (int(x) for x in m.version("torch").split(".")[:2])
sys.exit(not (2, 11) <= (major, minor) <= (2, 13))
PY
}

# pip_install NAME: tools/NAME.txt into the virtual environment.  Its modules are compiled when they are
# first imported (--no-compile): most never are.
pip_install() {
  "$python" -m pip install --quiet --disable-pip-version-check --no-compile -r "tools/$1.txt" >&2
}

# The virtual environment of the checkout, with LibTorch: the machine's own torch (CPU
# or CUDA build) where its Python has a suitable one, else the wheel.
install_torch() {
  if [ ! -x "$python" ]; then
    if torch_usable python3; then
      say "Using the installed torch"
      python3 -m venv --system-site-packages .venv
    else
      python3 -m venv .venv
    fi
  fi
  if ! torch_usable "$python"; then
    say "Installing LibTorch (the torch wheel) into .venv"
    pip_install requirements
  fi
}

# install_python_requirements NAME: those of tools/requirements-NAME.txt, of which tests that need them
# say that they are missing where they cannot be had.
install_python_requirements() {
  local file=tools/requirements-$1.txt stamp=.venv/.$1-requirements
  cmp -s "$file" "$stamp" && return
  say "Installing what tests need ($file)"
  if pip_install "requirements-$1"; then
    cp "$file" "$stamp"
  else
    echo "It could not be installed: the tests that need it will be skipped." >&2
  fi
}

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
  if [ ! -f "build/$preset/build.ninja" ]; then
    say "Configuring"
    cmake --preset "$preset" >"$(log_file "$preset-configure")" || { cat "$(log_file "$preset-configure")" >&2; exit 1; }
  fi
  say "Building (the first time takes some minutes)"
  NINJA_STATUS='[%f/%t] ' cmake --build --preset "$preset" ${1:+--target "$@"} >&2
}

log_file() {
  mkdir -p build
  echo "build/$1.log"
}
