"""The stand-in driver under C programs of their own processes, and its server under bad clients."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_runtime_cli import PATIENCE, egpu

from egpu.errors import AgentError, InputError, UnsupportedError
from egpu.sim import Server, SimulatedDevice, driver_directory
from egpu.sim.wire import HEADER, MAGIC, VERSION, WireKind

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).parent / "sim_programs/driver_check.c"


def driver_or_skip():
    try:
        return driver_directory()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    directory = driver_or_skip()
    path = tmp_path_factory.mktemp("sim") / "driver_check"
    command = [
        compiler,
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Werror",
        "-g",
        f"-I{ROOT / 'native/sim'}",
    ]
    subprocess.run(
        [*command, str(SOURCE), "-o", str(path), str(directory / "libcuda.so.1")], check=True
    )
    return path


@pytest.fixture(scope="module")
def device():
    driver_or_skip()
    with SimulatedDevice() as device:
        yield device


def run(device, program, *arguments, **extra):
    return run_with({**os.environ, **device.environment(), **extra}, program, *arguments)


def run_with(environment, program, *arguments):
    return subprocess.run(
        [str(program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    "part",
    [
        *("device", "memory", "pools", "mappings", "launch", "library", "capture", "host"),
        *("lookup", "fork", "constants"),
    ],
)
def test_part(device, program, part):
    done = run(device, program, part)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_a_twin_reads_constants_that_the_program_changes(program):
    done = egpu("run", "kernelcount", "--sim", "--json", "--", program, "constants")
    assert done.returncode == 0, done.stderr
    output, _, document = done.stdout.partition("\n{\n")
    assert output == "ok"
    (row,) = json.loads("{" + document)["kernels"]
    assert (row["name"], row["threads"], row["exits"]) == ("bump", 192, 192)
    assert row["launches_probed"] == 3


def test_printed_text_reaches_standard_output(device, program):
    done = run(device, program, "print")
    assert (done.returncode, done.stdout) == (0, "hi 0\nhi 1\nok\n"), done.stderr


def test_driver_under_sanitizers(device, tmp_path):
    """The driver's sources linked into the program: leaks are left to the program's own habits."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    program = tmp_path / "sanitized"
    sources = [str(SOURCE), *map(str, sorted((ROOT / "native/sim").glob("*.c")))]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=undefined", f"-I{ROOT / 'native/sim'}", "-pthread"]
    built = subprocess.run(
        [compiler, *flags, *sources, "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find -lasan" in built.stderr or "libasan" in built.stderr:
        pytest.skip("the compiler has no sanitizer libraries")
    assert built.returncode == 0, built.stderr
    parts = ("device", "memory", "launch", "library", "capture", "host", "fault", "refusals")
    for part in (*parts, "pools", "mappings"):
        done = run(device, program, part, ASAN_OPTIONS="detect_leaks=0")
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_fault_is_sticky_and_named(device, program):
    done = run(device, program, "fault")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert "crash, block (0, 0, 0), thread (0, 0, 0)" in done.stderr
    assert "ld.global.u32 %r1, [16]" in done.stderr


def test_refusals_are_named_once(device, program):
    done = run(device, program, "refusals")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert "wgmma.fence.sync.aligned" in done.stderr
    assert done.stderr.count("CUDA runtime (cudart)") == 1


def test_runtime_programs_are_recognised(device, tmp_path):
    """cudart asks a driver for its private tables; the answer is a refusal that says why."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    source = tmp_path / "runtime.cu"
    source.write_text("int main() { void *p; return cudaMalloc(&p, 4) == cudaSuccess; }\n")
    subprocess.run(
        [nvcc, str(source), "-o", str(tmp_path / "runtime")], check=True, timeout=PATIENCE
    )
    done = run(device, tmp_path / "runtime")
    assert done.returncode == 0
    assert done.stderr.count("CUDA runtime (cudart)") == 1


def test_without_a_server(program):
    environment = {k: v for k, v in os.environ.items() if k != "EGPU_SIM_SOCKET"}
    for extra in ({}, {"EGPU_SIM_SOCKET": "/nonexistent/socket"}):
        done = subprocess.run(
            [str(program), "launch"],
            env={**environment, **extra, "LD_LIBRARY_PATH": str(driver_directory())},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 1
        assert "CUDA_ERROR_NO_DEVICE" in done.stderr
        assert "no simulated device" in done.stderr


def test_memory_size_is_checked(device, program):
    done = run(device, program, "launch", EGPU_SIM_MEMORY="lots")
    assert "EGPU_SIM_MEMORY=lots" in done.stderr
    assert run(device, program, "launch", EGPU_SIM_MEMORY="1048576").returncode == 0


def test_several_clients_at_once(device, program):
    environment = {**os.environ, **device.environment()}
    running = [
        subprocess.Popen([str(program), part], env=environment, stdout=subprocess.PIPE, text=True)
        for part in ("launch", "capture", "memory", "library")
    ]
    assert [each.communicate(timeout=PATIENCE)[0] for each in running] == ["ok\n"] * 4


def talk(device, data):
    """Send bytes and give what comes back until the server closes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(device.socket_path))
        connection.settimeout(PATIENCE)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(4096):
                answer += part
        return answer


def frame(kind, payload=b"", magic=MAGIC, version=VERSION):
    return HEADER.pack(magic, version, kind, 0, 0, len(payload)) + payload


def test_malformed_requests_close_only_their_connection(device, program):
    for data in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n" + bytes(64),
        frame(WireKind.HELLO)[:10],
        frame(99),
        frame(WireKind.LAUNCH, magic=1),
        frame(WireKind.LAUNCH, version=7),
        frame(WireKind.HELLO, bytes(24)),  # no descriptor
        frame(WireKind.HELLO, bytes(3)),
        frame(WireKind.LAUNCH, bytes(7)),
        frame(WireKind.LAUNCH, struct.pack("<11I", *[1] * 11)),
        frame(WireKind.UNLOAD, struct.pack("<Q", 5)),
        HEADER.pack(MAGIC, VERSION, WireKind.LOAD, 0, 0, 1 << 60),
        HEADER.pack(MAGIC, VERSION, WireKind.LOAD, 0, 0, 100) + b"short",
    ):
        assert talk(device, data) == b""
    done = run(device, program, "launch")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_refused_requests_are_answered(device):
    answer = talk(device, frame(WireKind.LOAD, b"no image"))
    _, _, kind, status, _, size = HEADER.unpack(answer[: HEADER.size])
    assert (kind, status) == (WireKind.LOAD, 200)
    assert len(answer) == HEADER.size + size
    answer = talk(device, frame(WireKind.ADD_RANGE, struct.pack("<2Q", 0, 1 << 50)))
    assert HEADER.unpack(answer[: HEADER.size])[3] == 1


def test_killed_client(device, program):
    environment = {**os.environ, **device.environment()}
    running = subprocess.Popen(
        [str(program), "capture"], env=environment, stdout=subprocess.DEVNULL
    )
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert run(device, program, "memory").returncode == 0


def test_server_killed_under_a_client(program):
    with SimulatedDevice() as device:
        running = subprocess.Popen(
            [str(program), "lost"],
            env={**os.environ, **device.environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdout.readline() == "ready\n"
        os.kill(device.pid, signal.SIGKILL)
        out, errors = running.communicate("x", timeout=PATIENCE)
    assert (running.returncode, out) == (0, "ok\n"), errors
    assert errors.count("server is gone") == 1


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_device_stays_for_clients_that_outlive_its_block(program):
    with SimulatedDevice() as device:
        path = device.socket_path
        first, second = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        first.connect(str(path))
        first.sendall(frame(WireKind.LOAD, b"no image"))
        assert first.recv(HEADER.size)
        environment = {**os.environ, **device.environment()}
    assert run_with(environment, program, "launch").returncode == 0
    second.connect(str(path))
    first.close()
    second.sendall(frame(WireKind.LOAD, b"no image"))
    assert second.recv(HEADER.size)
    second.close()
    wait_until(lambda: not path.parent.exists())


def test_a_server_whose_parent_was_killed_ends_after_its_clients(program, tmp_path):
    """And a signal to the parent's process group does not reach it."""
    script = (
        "import os, sys, time\n"
        "from egpu.sim import SimulatedDevice\n"
        "with SimulatedDevice() as device:\n"
        "    print(device.socket_path, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    path = Path(parent.stdout.readline().strip())
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        os.killpg(parent.pid, signal.SIGINT)
        parent.kill()
        parent.communicate()
        time.sleep(0.3)  # more than the server takes to notice
        client.sendall(frame(WireKind.LOAD, b"no image"))
        assert client.recv(HEADER.size)
    wait_until(lambda: not path.parent.exists())


def test_socket_that_cannot_be_made(tmp_path):
    with pytest.raises(InputError, match="no socket at"):
        Server(tmp_path / "missing" / "socket")


def test_server_that_does_not_start(monkeypatch):
    driver_or_skip()
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(AgentError, match="before it was ready"), SimulatedDevice():
        pass


def test_demo_program(device):
    demo = driver_directory().parent / "demo/demo"
    if not demo.exists():
        pytest.skip("the demo program is not built")
    done = run(device, demo)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" ok") == 5
