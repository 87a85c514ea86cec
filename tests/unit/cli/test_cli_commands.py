"""The command line: exit codes, messages, JSON.  main() is the contract, so tests call it."""

import io
import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

import egpu
from egpu.bpf.asm import assemble
from egpu.bpf.insn import encode, program_from_code
from egpu.bpf.program import Object
from egpu.bpf.sections import parse_section
from egpu.cli import app, cuda_device, main, verify
from egpu.cli.values import plain, shown
from egpu.errors import EgpuError, InputError, VerifierError
from egpu.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
COUNT = ROOT / "src" / "egpu" / "tools" / "kernelcount" / "kernelcount.bpf.o"
RETURN_42 = "b70000002a0000009500000000000000"
FIRST_BYTE = "71100000000000009500000000000000"  # r0 = *(u8 *)r1
STORE = "72010000070000009500000000000000"  # *(u8 *)r1 = 7 ; exit without r0


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_help_lists_every_command_and_imports_none(run):
    code, out, _ = run("--help")
    assert code == 0
    for name, (_, text) in app.COMMANDS.items():
        assert name in out
        assert text.split()[0] in out


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_help(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert "Usage: egpu" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("group", ["", "map", "cache"])
def test_lists_of_commands_are_whole_sentences(run, group):
    code, out, _ = run(*group.split(), "--help")
    assert code == 0
    assert "..." not in out.partition("Commands:")[2]


def test_control_c_while_modules_are_read(tmp_path):
    """They take most of the time of a short command: still one line."""
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    paths = [str(tmp_path), str(Path(egpu.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-m", "egpu", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "egpu: interrupted\n")


def test_version(run):
    assert run("version") == (0, f"egpu {VERSION}\n", "")
    assert run("--version")[1] == f"egpu {VERSION}\n"


def test_wrong_usage_is_2(run):
    for arguments in (["bogus"], ["verify"], ["exec"], ["run", "kernelcount"], ["tools", "--no"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert "Usage: egpu" in err


@pytest.mark.parametrize("word", ["./app", "kernelcount"])
def test_one_word_is_a_tool_or_a_command(run, word):
    """Nobody knows which of them is missing."""
    code, _, err = run("run", "--", word)
    assert code == 2
    assert "the tool or object, or its command, is missing" in err


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("attach", "first", "kernelcount"), "whole number"),
        (("run", "--sample", "1.5", "kernelcount", "--", "true"), "whole number"),
        (("run", "--interval", "often", "kernelcount", "--", "true"), "number of seconds"),
    ],
)
def test_what_is_no_number(run, words, kind):
    code, _, err = run(*words)
    assert code == 2
    assert f"is not a valid {kind}." in err


def test_inspect_says_what_reads_objects(run):
    code, _, err = run("inspect", COUNT)
    assert code == 1
    assert err == f"egpu: {COUNT}: an object of eBPF programs, no image; egpu verify reads it\n"


def test_help_is_quick_and_needs_no_llvm():
    code = (
        "import sys; from egpu.cli import main; main(['--help']);"
        "heavy = {'llvmlite', 'numpy', 'rich', 'elftools'} & set(sys.modules);"
        "sys.exit(','.join(heavy) or 0)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_python_dash_m(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "egpu"]
    done = subprocess.run(
        [*command, "verify", str(tmp_path / "none.o")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"egpu: {tmp_path}/none.o: cannot be read (No such file or directory)\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EgpuError("broke", hint="try again"), 1, "egpu: broke; try again\n"),
        (InputError("bad", usage=True), 2, "egpu: bad\n"),
        (FileNotFoundError(2, "No such file", "x"), 1, "egpu: x: No such file\n"),
        (KeyboardInterrupt(), 130, "egpu: interrupted\n"),
        (
            ZeroDivisionError("oops"),
            1,
            "egpu: internal error: ZeroDivisionError: oops; EGPU_DEBUG=1",
        ),
    ],
)
def test_errors_become_exit_codes_and_no_traceback(run, monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(app.app, "main", fail)
    got, out, err = run("tools")
    assert (got, out) == (code, "")
    assert err.startswith(message)
    assert "Traceback" not in err


def test_debug_shows_the_traceback(run, monkeypatch, tmp_path):
    monkeypatch.setenv("EGPU_DEBUG", "1")
    code, _, err = run("verify", tmp_path / "none.o")
    assert code == 1
    assert "Traceback" in err
    assert "InputError" in err


def test_tools(run):
    code, out, _ = run("tools")
    assert code == 0
    assert "kernelcount  launches, threads and blocks" in out
    document = json.loads(run("tools", "--json")[1])
    assert document["schema"] == "egpu.tools/1"
    names = [row["name"] for row in document["tools"]]
    assert names == ["kernelcount", "kernellat", "blocksched"]


@pytest.mark.parametrize("executor", ["interp", "host"])
def test_exec_raw(run, executor):
    code, out, _ = run("exec", "--raw", RETURN_42, "--executor", executor)
    assert (code, out) == (0, "r0 = 0x2a (42)\n")
    code, out, _ = run(
        "exec", "--raw", FIRST_BYTE, "--memory", "fe 01", "--json", "--executor", executor
    )
    document = json.loads(out)
    assert document["schema"] == "egpu.exec/1"
    assert (document["r0"], document["memory"]) == ("0xfe", "fe01")


def test_exec_changes_memory(run):
    program = "7201000007000000000000000000000"[:16] + RETURN_42
    code, out, _ = run("exec", "--raw", program, "--memory", "0102")
    assert code == 0
    assert "memory = 07 02" in out


def test_exec_raw_from_files(run, tmp_path):
    (tmp_path / "hex").write_text(RETURN_42[:16] + "\n" + RETURN_42[16:])
    (tmp_path / "bytes").write_bytes(bytes.fromhex(RETURN_42))
    for name in ("hex", "bytes"):
        assert run("exec", "--raw", tmp_path / name)[:2] == (0, "r0 = 0x2a (42)\n")


def test_exec_mistakes_are_named(run, tmp_path):
    assert run("exec", "--raw", "xyz")[0] == 2
    assert "neither hexadecimal nor a file" in run("exec", "--raw", "xyz")[2]
    assert run("exec", "--raw", RETURN_42, "--memory", "0")[0] == 2
    code, _, err = run("exec", "--raw", "ffff")
    assert code == 1
    assert "Traceback" not in err
    assert run("exec", "--raw", RETURN_42, "--program", "x")[0] == 2
    assert run("exec", "--raw", "")[0] == 2
    code, _, err = run("exec", COUNT, "--program", "none")
    assert code == 2
    assert "it has count_entry, count_exit" in err
    code, _, err = run("exec", COUNT)
    assert code == 2
    assert "several programs" in err


def test_exec_refuses_what_the_verifier_refuses(run):
    code, out, err = run("exec", "--raw", FIRST_BYTE, "--executor", "host")  # no memory behind r1
    assert (code, out) == (1, "")
    assert "insn 0" in err


def test_exec_holds_programs_to_a_limit_that_it_has(run):
    """A compiled program is verified; the interpreter runs anything."""
    taken = "1500000000000000"  # if r0 == 0 goto +0
    words = ("exec", "--raw", RETURN_42[:16] * 9 + taken + RETURN_42, "--cost-limit", "5")
    code, _, err = run(*words, "--executor", "host")
    assert code == 1
    assert "allow more (--cost-limit" in err
    assert run(*words)[0] == 0
    assert run(*words[:-1], "50", "--executor", "host")[0] == 0


def test_exec_names_the_executor_that_ends_threads(run):
    ending = "85000000fb0100009500000000000000"  # bpf_cuda_exit
    code, _, err = run("exec", "--raw", ending, "--executor", "host")
    assert code == 1
    assert "changes the workload" in err
    assert "--executor interp runs it" in err
    assert run("exec", "--raw", ending, "--executor", "interp")[0] == 0


@pytest.mark.parametrize("option", ["--allow-control", "--print-limit=1", "--grid=2", "--count=2"])
def test_exec_has_options_for_kernels_alone(run, option):
    code, _, err = run("exec", "--raw", RETURN_42, option)
    assert code == 2
    assert "are for programs of kprobe/__directly_run" in err


def test_exec_shows_what_a_program_prints(run, tmp_path):
    form = int.from_bytes(b"n=%u", "little")
    text = f"stdw [%r10-8], {form}\nmov %r1, %r10\nadd %r1, -8\nmov %r2, 5\nmov %r3, 7\n"
    text += "call 6\nmov %r0, 3\nexit"
    path = tmp_path / "prints"
    path.write_bytes(encode(assemble(text)))
    assert run("exec", "--raw", path)[:2] == (0, "n=7\nr0 = 0x3 (3)\n")
    document = json.loads(run("exec", "--raw", path, "--json")[1])
    assert (document["printed"], document["r0"]) == (["n=7"], "0x3")
    code, _, err = run("exec", "--raw", path, "--grid", "2")
    assert code == 2
    assert "are for programs of kprobe/__directly_run" in err


def test_cuda_executor_without_a_driver_says_what_it_needs(run, monkeypatch):
    monkeypatch.setattr(cuda_device, "LIBRARY", "libno-such-driver.so.1")
    code, _, err = run("exec", "--raw", RETURN_42, "--executor", "cuda")
    assert code == 1
    assert err.startswith("egpu: not supported: the cuda executor")
    assert "needs an NVIDIA driver and a GPU" in err


@pytest.mark.parametrize("executor", ["interp", "host"])
def test_conformance_plugin_protocol(run, executor):
    spaced = " ".join(RETURN_42[i : i + 2] for i in range(0, len(RETURN_42), 2))
    plugin = ["conformance-plugin", "--executor", executor]
    assert run(*plugin, stdin=spaced + "\n") == (0, "2a\n", "")
    assert run(*plugin, "fe 01", stdin=FIRST_BYTE) == (0, "fe\n", "")
    code, out, err = run(*plugin, stdin="ff" * 8)
    assert (code != 0, out, bool(err)) == (True, "", True)


def test_verify_accepts_a_tool(run):
    code, out, _ = run("verify", COUNT, "--cost")
    assert code == 0
    assert "count_entry (kprobe.block/*): accepted" in out
    assert "instructions" in out
    document = json.loads(run("verify", COUNT, "--json")[1])
    assert document["schema"] == "egpu.verify/1"
    assert [row["accepted"] for row in document["programs"]] == [True, True]
    assert document["programs"][0]["cost"]["instructions"] > 10


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("launch/vecadd", '"launch/vecadd" (launch); needs a kprobe/, kretprobe/ or insn/ section'),
        ("kprobe/__directly_run", "needs egpu run-on-gpu, or egpu exec"),
        ("uprobe/libc.so.6:malloc", "uprobe/libc.so.6:malloc; needs a place where kernels are"),
        ("uprobe/libcuda.so.1:cuLaunchKernel", "it runs on the host and calls bpf_get_sm_id"),
    ],
)
def test_verify_notes_what_run_does_not_attach(run, monkeypatch, section, why):
    """The verifier accepts it: the exit code stays 0."""
    code = assemble("call 509\nmov %r0, 0\nexit")
    points = parse_section(section, "p")
    program = program_from_code(code, "p", attach=points, section=section)
    monkeypatch.setattr(verify, "load_object", lambda *_, **__: Object("o", (program,), ()))
    code, out, _ = run("verify", "o.bpf.o")
    assert (code, f"p ({section}): accepted\n  note: egpu run does not attach it: " in out) == (
        0,
        True,
    )
    assert why in out
    (row,) = json.loads(run("verify", "o.bpf.o", "--json")[1])["programs"]
    assert row["accepted"]
    assert why in row["note"]


def test_verify_has_no_note_of_what_run_attaches(run):
    assert "note:" not in run("verify", COUNT)[1]
    document = json.loads(run("verify", COUNT, "--json")[1])
    assert [row["note"] for row in document["programs"]] == ["", ""]


def test_verify_shows_costs_and_holds_them_to_a_limit(run):
    code, out, _ = run("verify", COUNT, "--cost")
    assert code == 0
    assert "per thread" in out
    assert "per warp" in out
    code, out, _ = run("verify", COUNT, "--cost-limit", "10")
    assert code == 1
    assert "over 10 instructions a thread" in out
    assert "--cost-limit" in out
    document = json.loads(run("verify", COUNT, "--json")[1])
    costs = [(each["cost"], each["warp_cost"]) for each in document["programs"]]
    assert all(warp["instructions"] >= cost["instructions"] for cost, warp in costs)


def test_run_refuses_programs_over_the_limit(run):
    code, _, err = run("run", "--sim", "--cost-limit", "10", COUNT, "--", "true")
    assert code == 1
    assert "over 10 instructions a thread" in err
    assert "--cost-limit" in err


def test_verify_says_why_not(run, monkeypatch):
    def refuse(program, **_):
        raise VerifierError(
            "too bad", rule="P2", program=program.name, pc=3, hint="do better", path=("0: r0 = 1",)
        )

    monkeypatch.setattr("egpu.session.arrivals.verify", refuse)
    code, out, _ = run("verify", COUNT, "--path")
    assert code == 1
    assert (
        "count_entry (kprobe.block/*): refused\n  P2: count_entry: insn 3: too bad; do better"
        in out
    )
    assert "    0: r0 = 1" in out
    document = json.loads(run("verify", COUNT, "--json")[1])
    assert document["programs"][0]["error"]["rule"] == "P2"
    assert document["programs"][0]["error"]["path"] == ["0: r0 = 1"]


@pytest.mark.parametrize("data", [b"", b"\x7fELF", os.urandom(300), COUNT.read_bytes()[:400]])
def test_malformed_objects_are_one_line(run, tmp_path, data):
    path = tmp_path / "bad.o"
    path.write_bytes(data)
    code, out, err = run("verify", path)
    assert (code, out) == (1, "")
    assert err.startswith("egpu: ")
    assert "Traceback" not in err
    assert "internal error" not in err


def test_run_names_the_tools_when_it_finds_neither(run, tmp_path):
    code, out, err = run("run", tmp_path / "none", "--", "true")
    assert (code, out) == (2, "")
    assert "neither a tool nor an object file" in err
    assert "kernelcount, kernellat" in err


def test_an_answer_that_cannot_be_written_is_named(run):
    ptx = ROOT / "workloads" / "demo" / "kernels.ptx"
    code, _, err = run("inspect", ptx, "-o", "/no/such/folder/x")
    assert code == 1
    assert "/no/such/folder/x: cannot be written" in err


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-"])
@pytest.mark.parametrize(
    "words",
    [
        ["map", "list"],
        ["cache", "list"],
        ["cache", "clear"],
        ["doctor"],
        ["tools", "--json"],
        ["gen", str(COUNT)],
        ["verify", str(COUNT)],
        ["conformance-plugin"],
    ],
)
def test_a_closed_stream_is_no_failure(tmp_path, words, stream):
    """What would have been written goes nowhere; the exit code is what it would have been."""
    places = {"EGPU_CACHE_DIR": str(tmp_path / "cache"), "EGPU_RUNTIME_DIR": str(tmp_path / "run")}
    imported = str(Path(egpu.__file__).parents[1])  # from the tree or installed
    environment = os.environ | places | {"PYTHONPATH": imported}
    script = f'exec "$@" {stream}'
    command = ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "egpu", *words]
    done = subprocess.run(command, capture_output=True, input=b"\xff", check=False, env=environment)
    assert b"internal error" not in done.stderr
    assert b"Traceback" not in done.stderr
    failing = {"<&-": 1, ">&-": 2, "2>&-": 2} if words == ["conformance-plugin"] else {}
    assert done.returncode == failing.get(stream, 0), done.stderr


def test_records_for_people_and_programs():
    inner = namedtuple("inner", "x y")(1, (2, 3))
    outer = namedtuple("outer", "name pair raw")(b"vadd\0\0", inner, b"\xff\x00")
    assert shown(outer) == "name=vadd pair=x=1 y=[2, 3] raw=ff00"
    assert plain(outer) == {"name": "766164640000", "pair": {"x": 1, "y": [2, 3]}, "raw": "ff00"}


@pytest.mark.parametrize(
    ("characters", "text"),
    [
        (b"vadd\0\0", "vadd"),
        (b"vadd", "vadd"),
        (b"\0\0", ""),
        (b"n=%d\n\0", '"n=%d\\n"'),  # as a format is written
        (b"two words\0", '"two words"'),
        (b'say "no"\0', '"say \\"no\\""'),
        ("größe".encode() + b"\0", "größe"),
        (b"name\0left over", "name"),  # what was there before is behind the end
        (b"\0left over", "006c656674206f766572"),
        (b"\x01\x02\0", "010200"),
        (b"\n\0\0\0", "0a000000"),
        (b"\xff\xfe\0", "fffe00"),
    ],
)
def test_arrays_of_characters(characters, text):
    assert shown(characters) == text
    assert shown(characters, typed=False) == characters.hex()
