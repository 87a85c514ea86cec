"""egpu inspect: PTX, fatbins inside host programs, and what is neither."""

import json
import struct
import sys
from pathlib import Path

import pytest

from egpu.cli import main

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "workloads" / "demo" / "kernels.ptx"
PTX = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry two_exits(.param .u64 a, .param .u32 n)
{
  .reg .pred %p<2>;
  setp.eq.u32 %p1, 1, 2;
  @%p1 ret;
  { trap; }
  exit;
}
"""


def host_program(section):
    """An x86-64 ELF file with one section ``.nv_fatbin``, written by hand."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    offset = 64
    headers = offset + len(section) + len(names)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, headers, 0, 64, 0, 0, 64, 3, 2)
    rows = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 1, 2, 0, offset, len(section), 0, 0, 8, 0),
        (12, 3, 0, 0, offset + len(section), len(names), 0, 0, 1, 0),
    ]
    return head + section + names + b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)


def fatbin(ptx):
    text = ptx.encode() + b"\0"
    text += bytes(-len(text) % 8)
    entry = bytearray(64)
    struct.pack_into("<HHIQ", entry, 0, 1, 0x0101, 64, len(text))
    struct.pack_into("<I", entry, 28, 75)
    struct.pack_into("<Q", entry, 40, 0x11)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + len(text)) + bytes(entry) + text


def inspect(capsys, path):
    code = main(["inspect", str(path), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if code == 0 else captured.err


def test_ptx_kernels_and_sites(capsys, tmp_path):
    (tmp_path / "x.ptx").write_text(PTX)
    code, document = inspect(capsys, tmp_path / "x.ptx")
    assert code == 0
    assert document["schema"] == "egpu.inspect/1"
    (member,) = document["members"]
    assert (member["kind"], member["arch"], member["error"]) == ("ptx", "compute_75", None)
    (kernel,) = member["kernels"]
    assert kernel["name"] == "two_exits"
    assert kernel["parameters"] == [[0, 8], [8, 4]]
    assert (kernel["entry_sites"], kernel["exit_sites"], kernel["traps"]) == (1, 2, 1)


def test_a_program_with_two_fatbins(capsys, tmp_path):
    path = tmp_path / "app"
    path.write_bytes(host_program(fatbin(PTX) + fatbin(PTX.replace("two_exits", "other"))))
    code, document = inspect(capsys, path)
    assert code == 0
    assert document["kind"] == "fatbin"
    names = [member["kernels"][0]["name"] for member in document["members"]]
    assert names == ["two_exits", "other"]


def test_one_bad_member_does_not_hide_the_others(capsys, tmp_path):
    path = tmp_path / "app"
    path.write_bytes(host_program(fatbin(PTX.replace("setp.eq", "{{{")) + fatbin(PTX)))
    code, document = inspect(capsys, path)
    assert code == 0
    bad, good = document["members"]
    assert bad["error"]
    assert good["kernels"]


def test_text_is_80_columns(capsys):
    assert main(["inspect", str(DEMO)]) == 0
    out = capsys.readouterr().out
    assert "vecadd" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "neither"),
        (b"", "neither"),
        (b"\x7fELF\x02\x01\x01", "malformed ELF"),
        (host_program(b""), "without GPU code"),
        (host_program(fatbin(PTX)[:40]), ""),
    ],
)
def test_what_is_no_image_is_one_line(capsys, tmp_path, data, message):
    path = tmp_path / "thing"
    path.write_bytes(data)
    code, err = inspect(capsys, path)
    assert code == 1
    assert err.startswith(f"egpu: {path}: ")
    assert message in err
    assert err.count("\n") == 1


def test_this_python_has_no_gpu_code(capsys):
    code, err = inspect(capsys, sys.executable)
    assert code == 1
    assert "without GPU code" in err


def test_members_without_kernels_have_no_table(capsys, tmp_path):
    """As nvcc programs have them, of files with host code alone."""
    path = tmp_path / "app"
    nothing = ".version 7.0\n.target sm_75\n.address_size 64\n"
    path.write_bytes(host_program(fatbin(nothing) + fatbin(PTX) + fatbin(nothing)))
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.count("KERNEL") == 1
    assert "Without kernels, and not shown: 2 members" in text
    code, document = inspect(capsys, path)
    assert code == 0
    assert [len(member["kernels"]) for member in document["members"]] == [0, 1, 0]
