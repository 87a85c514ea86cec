"""CO-RE relocations: against BTF made by hand, whose offsets are sums, and against libbpf."""

import struct
from pathlib import Path

import libbpf_oracle
import pytest
from test_bpf_btf import K, Writer
from test_bpf_object import builder, compile_text

from egpu import Object
from egpu.bpf.asm import disassemble
from egpu.bpf.btf import Btf
from egpu.bpf.core_spec import essential
from egpu.bpf.core_target import CoreTarget, context_target
from egpu.bpf.core_types import Matcher
from egpu.bpf.insn import decode, encode
from egpu.bpf.interp import run
from egpu.bpf.object import read_object
from egpu.bpf.program import MISSING_HELPER
from egpu.cli import main
from egpu.errors import InputError, UnsupportedError, VerifierError
from egpu.session.kernel_types import RUNNING, kernel_types
from egpu.verifier import verify

OBJECTS = Path(__file__).resolve().parent / "objects"
CORE = OBJECTS / "core.bpf.o"
needs_libbpf = pytest.mark.skipif(
    bool(libbpf_oracle.unavailable()), reason=libbpf_oracle.unavailable()
)
needs_btf = pytest.mark.skipif(not RUNNING.exists(), reason="the kernel has no BTF")


def kernel(writer):
    """The types of a kernel as ``writer`` has them."""
    return lambda: CoreTarget.of(writer.btf(), "made by hand")


def load(writer):
    return read_object(CORE.read_bytes(), "core.bpf.o", kernel=kernel(writer))


def types(**changes):
    """A kernel: every field lies elsewhere than in the object; ``changes`` replace members."""
    w = Writer()
    i32, u32 = w.integer("int", 4, 1), w.integer("unsigned int", 4)
    u64, char = w.integer("unsigned long", 8), w.integer("char", 1, 1)
    u16 = w.integer("unsigned short", 2)
    pid_t, umode = w.add(K.TYPEDEF, "pid_t", i32), w.add(K.TYPEDEF, "umode_t", u16)
    here = w.count + 1
    pointer = w.add(K.PTR, "", here + 1)
    head = w.struct("list_head", 16, ("next", pointer, 0), ("prev", pointer, 64))
    text = w.array(char, 16)
    members = {
        "pad": (u64, 0),
        "__state": (u32, 64),
        "on_cpu": (i32, 96),
        "tgid": (pid_t, 128),
        "pid": (pid_t, 160),
        "sched_reset_on_fork": (u32, 192 | 1 << 24),
        "in_execve": (u32, 197 | 1 << 24),
        "tasks": (head, 256),
        "comm": (text, 384),
    }
    numbers = {"i32": i32, "u32": u32, "u64": u64, "u16": u16}
    for name, (kind, offset) in changes.items():
        members[name] = numbers[kind], offset
    rows = [(name, *member) for name, member in members.items()]
    w.struct("task_struct", 128, *rows, flag=1)
    nameless = w.struct("", 8, ("i_nlink", u32, 32), kind=K.UNION)
    w.struct("inode", 64, ("i_ino", u64, 0), ("i_mode", umode, 64), ("", nameless, 128))
    enumerators = (w.text("PIDTYPE_PID"), 0, w.text("PIDTYPE_TGID"), 5)
    w.add(K.ENUM, "pid_type", 4, *enumerators, count=2)
    w.head = head
    return w


def values(obj):
    """What the program ``values`` stores: one number for each relocation."""
    memory = bytearray(8 * 32)
    run(obj.by_name()["values"], memory)
    return struct.unpack("<32Q", memory)


def test_values_are_those_of_the_arithmetic():
    w = types()
    out = values(load(w))
    assert out[:4] == (160 // 8, 4, 1, 1)  # pid: offset, size, exists, signed
    # in_execve: bit 197 lies in the word of bytes 24 to 28, 5 bits in
    assert out[4:9] == (24, 4, 64 - 6, 63, 0)
    assert out[9:13] == (0, 0, 1, 64 // 8)  # no_such_field, state, __state
    assert out[13:15] == (16 + 4, 2)  # i_nlink inside the nameless union, i_mode
    assert out[15:17] == (384 // 8 + 3, 256 // 8 + 8)  # comm[3], tasks.prev
    assert out[17:22] == (1, 0, 16, 1, 0)  # types: exist, sizes, matches
    assert out[22:25] == (5, 1, 0)  # enumerators: value here, exist
    assert out[26] == w.head
    assert out[27:29] == (2, 0)


def text(obj, name):
    return disassemble(obj.by_name()[name].code)


def test_offsets_of_accesses():
    lines = text(load(types()), "accesses")
    assert "stxw [%r1+12], %r2" in lines[1] or "stw [%r1+12]" in lines[0]
    assert any("ldxw" in line and f"+{160 // 8}]" in line for line in lines)
    assert any("stxw" in line and f"+{128 // 8}]" in line for line in lines)
    assert any("ldxb" in line and f"+{384 // 8 + 2}]" in line for line in lines)


def resized(kind, tmp_path, width):
    """A program that reads an unsigned field of ``width`` bits, against one of type ``kind``."""
    source = f"""
struct task_struct {{ __u{width} pad; }} __attribute__((preserve_access_index));
SEC("kprobe/x") __u64 get(struct task_struct *t) {{ return t->pad; }}
"""
    data = compile_text(tmp_path, source)
    return read_object(data, "resized.o", kernel=kernel(types(pad=(kind, 512))))


@pytest.mark.parametrize(
    ("width", "kind", "mnemonic"), [(64, "u32", "ldxw"), (32, "u64", "ldxdw"), (16, "u32", "ldxw")]
)
def test_unsigned_fields_may_change_size(width, kind, mnemonic, tmp_path):
    lines = text(resized(kind, tmp_path, width), "get")
    assert any(f"{mnemonic} %r0, [%r1+64]" in line for line in lines)


def test_signed_fields_may_not_change_size(tmp_path):
    obj = resized("i32", tmp_path, 64)
    with pytest.raises(VerifierError, match=r"task_struct.pad has 4 bytes here, not 8"):
        verify(obj.by_name()["get"])


def test_unguarded_missing_field_names_it():
    obj = load(types())
    verify(obj.by_name()["guarded"])
    with pytest.raises(VerifierError, match=r"by hand has no struct task_struct.no_such_field"):
        verify(obj.by_name()["unguarded"])


def test_two_types_that_disagree_are_ambiguous():
    w = types()
    i32 = w.integer("int", 4, 1)
    w.struct("task_struct___other", 8, ("pid", i32, 32))
    with pytest.raises(InputError, match=r"task_struct.pid differs between 2 types"):
        load(w)


def test_kernel_types_are_asked_for():
    with pytest.raises(UnsupportedError, match=r"field offset of task_struct.*core.bpf.c:59"):
        read_object(CORE.read_bytes(), "core.bpf.o")


def test_context_needs_no_kernel(tmp_path):
    """struct pt_regs is the context's, whatever kernel runs here."""
    source = """
struct pt_regs___core { int first; unsigned long di, si; } __attribute__((preserve_access_index));
SEC("kprobe/x") long get(struct pt_regs___core *ctx) { return ctx->si; }
"""
    program = read_object(compile_text(tmp_path, source), "regs.o").by_name()["get"]
    verified = verify(program)
    assert verified.facts.parameters == {1}


def test_context_target_has_the_fields_of_the_header():
    target = context_target()
    (ctx,) = (target.btf.type_at(each) for each in target.named("egpu_ctx"))
    offsets = {member.name: member.offset // 8 for member in ctx.members}
    assert (offsets["regs"], offsets["param"]) == (0, 288)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("task_struct", "task_struct"),
        ("task_struct___v2", "task_struct"),
        ("a___b___c", "a___b"),
        ("___x", "___x"),
        ("a____b", "a____b"),
        ("a___", "a___"),
    ],
)
def test_flavours(name, expected):
    assert essential(name) == expected


def masked(code):
    """Instructions with calls that must not be reached made alike."""
    poison = {libbpf_oracle.POISON}
    return [
        (insn.opcode, "poison")
        if insn.opcode == 0x85 and (insn.imm in poison or insn.imm >= MISSING_HELPER)
        else insn
        for insn in decode(code)
    ]


def compare(path, kernel, btf=None):
    theirs = libbpf_oracle.relocated(path, btf)
    if theirs is None:
        pytest.skip("the kernel lets nobody load programs here")
    obj = read_object(path.read_bytes(), path.name, kernel=kernel)
    assert set(theirs) == set(obj.by_name())
    for name, program in obj.by_name().items():
        assert masked(encode(program.code)) == masked(theirs[name]), name


@needs_libbpf
def test_running_kernel_as_libbpf():
    compare(CORE, kernel_types())


@needs_libbpf
@pytest.mark.parametrize("cpu", ["v1", "v2", "v4"])
def test_other_processors_as_libbpf(cpu, tmp_path):
    target = tmp_path / "core.o"
    builder().compile_object(OBJECTS / "core.bpf.c", target, cpu=cpu)
    compare(target, kernel_types())


@needs_libbpf
@pytest.mark.parametrize("changes", [{}, {"on_cpu": ("i32", 448)}, {"pid": ("u64", 448)}])
def test_given_types_as_libbpf(changes, tmp_path):
    w = types(**changes)
    path = tmp_path / "kernel.btf"
    path.write_bytes(w.blob())
    compare(CORE, kernel_types(path), path)


@needs_btf
def test_given_file_is_read_as_the_running_kernels(tmp_path):
    copy = tmp_path / "vmlinux.btf"
    copy.write_bytes(RUNNING.read_bytes())
    assert len(kernel_types(copy)().btf.types) == len(Btf.parse(RUNNING.read_bytes()).types)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF" + bytes(80), b"text"])
def test_files_without_types(content, tmp_path):
    path = tmp_path / "vmlinux"
    path.write_bytes(content)
    with pytest.raises(InputError, match="vmlinux"):
        kernel_types(path)()


def test_a_missing_file():
    with pytest.raises(InputError, match="No such file"):
        kernel_types(Path("/nonexistent/btf"))()


def test_types_that_nest_in_themselves_end():
    """No compiler makes them; nameless members would be searched for ever."""
    w = Writer()
    here = w.count + 1
    w.struct("", 8, *[("", here, 0)] * 8, kind=K.UNION)
    w.struct("task_struct", 8, *[("", here, 0)] * 8, kind=K.STRUCT)
    obj = load(w)
    assert any("no struct task_struct.pid" in text for text in obj.programs[0].missing)


def test_matching_of_types_that_nest_deep_ends():
    one, other = Writer(), Writer()
    for w in (one, other):
        inner = w.integer("int", 4, 1)
        for depth in range(30):
            members = [(f"m{place}", inner, 0) for place in range(6)]
            inner = w.struct(f"level{depth}", 4, *members)
    assert Matcher(one.btf(), other.btf()).matches(inner, inner)


def test_an_object_takes_a_file_of_types(tmp_path):
    """The Python interface's --btf."""
    w = types()
    path = tmp_path / "kernel.btf"
    path.write_bytes(w.blob())
    assert [program.name for program in load(w).programs] == list(Object(CORE, btf=path).programs)
    with pytest.raises(InputError, match="nothing"):
        Object(CORE, btf=tmp_path / "nothing")


def test_types_of_an_object_are_written_whatever_kernel_it_is_for(tmp_path, capsys, monkeypatch):
    """`egpu gen` reads what `egpu run` reads, and names the option that helps where it cannot."""
    monkeypatch.setattr("egpu.session.kernel_types.RUNNING", tmp_path / "vmlinux")
    assert main(["gen", str(CORE)]) == 1
    assert "--btf FILE" in capsys.readouterr().err
    given = tmp_path / "types"
    given.write_bytes(types().blob())
    assert main(["gen", "--btf", str(given), str(CORE)]) == 0
    assert "class Core(" in capsys.readouterr().out
