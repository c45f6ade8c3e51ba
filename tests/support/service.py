"""Starts the programs that the Python tests need, and ends them."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

SOURCE = pathlib.Path(os.environ.get("GATEHOUSE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("GATEHOUSE_BIN_DIR", SOURCE / "build/release/bin"))


def free_port():
    """A port of the loopback that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, what, timeout=60):
    """The first true value of condition(); TimeoutError names what did not happen."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout} s")
        time.sleep(0.05)


class Process:
    """A program whose output is kept in a file; ended, with its children, when its `with` block is left."""

    def __init__(self, arguments, log, **options):
        self.log_path = pathlib.Path(log)
        self._log = open(self.log_path, "wb")
        self.popen = subprocess.Popen([str(a) for a in arguments], stdout=self._log, stderr=subprocess.STDOUT,
                                      start_new_session=True, **options)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def running(self):
        return self.popen.poll() is None

    def wait_for(self, pattern, timeout=120):
        """The match of a regular expression in the output, once it is there."""
        def found():
            match = re.search(pattern, self.log())
            if not match and not self.running():
                raise RuntimeError(f"{self.popen.args[0]} ended with {self.popen.returncode}:\n{self.log()}")
            return match
        return wait_until(found, f"{pattern!r} in the output of {self.popen.args[0]}", timeout)

    def kill(self):
        """As a crash would end it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def stop(self, timeout=30):
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGTERM)
            try:
                self.popen.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Server(Process):
    """A gatehouse-server on ports of the loopback, ready; `address` and `metrics` are HOST:PORT."""

    def __init__(self, directory, *flags, models=("novella-neox-4m",), host="127.0.0.1", port=0, metrics_port=0):
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        chosen = [f"--model={name}={SOURCE / 'models' / name}" for name in models]
        super().__init__([BIN / "gatehouse-server", f"--listen={host}:{port}",
                          f"--metrics-listen={host}:{metrics_port}", f"--state-dir={directory / 'state'}",
                          *chosen, *flags], directory / "server.log",
                         env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        try:
            ready = self.wait_for(r"ready: listening on ([^,\s]+), metrics on ([^,\s]+),")
        except Exception:
            self.stop()
            raise
        self.address, self.metrics = ready.groups()


def gatehouse(*arguments, server=None, **options):
    """Runs the client program; the CompletedProcess, with text output."""
    server = [f"--server={server}"] if server else []
    return subprocess.run([BIN / "gatehouse", *server, *map(str, arguments)], capture_output=True, text=True,
                          timeout=options.pop("timeout", 120), **options)
