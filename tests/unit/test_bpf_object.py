"""Objects: what the committed ones hold, that they run, and how broken ones are answered."""

import importlib.util
import struct
from pathlib import Path

import pytest

from egpu.bpf import isa
from egpu.bpf.asm import disassemble
from egpu.bpf.elf import read_elf
from egpu.bpf.interp import run
from egpu.bpf.interp_state import MapState, Place
from egpu.bpf.maptypes import MapType
from egpu.bpf.object import read_object
from egpu.bpf.program import AttachKind, Level
from egpu.errors import InputError, UnsupportedError

OBJECTS = Path(__file__).resolve().parent / "objects"
GOOD = ("count", "globals", "records")
WORD = struct.Struct("<I")
LONG = struct.Struct("<Q")
SHORT = struct.Struct("<H")


def raw(name):
    return (OBJECTS / f"{name}.bpf.o").read_bytes()


def load(name):
    return read_object(raw(name), f"{name}.bpf.o")


def test_programs_and_attach_points():
    programs = load("count").by_name()
    assert {point.pattern for point in programs["enter"].attach} == {
        "vectorAdd",
        "_Z6reducePKfPfi",
    }
    (leave,) = programs["leave"].attach
    assert (leave.kind, leave.level) == (AttachKind.EXIT, Level.WARP)
    assert programs["leave"].license == "Dual MIT/GPL"
    assert all(
        isa.check_fields(insn, following) is None
        for program in programs.values()
        for _, insn, following in isa.instructions(program.code)
    )


def test_context_reads():
    text = disassemble(load("count").by_name()["leave"].code)
    offsets = {112, 88, 72, 288 + 24}  # parameters 1, 4 and 5, and byte 24 of all of them
    assert all(any(f"+{offset}]" in line for line in text) for offset in offsets)


def test_declared_maps():
    maps = {spec.name: spec for spec in load("records").maps}
    assert maps["events"].type is MapType.RINGBUF
    assert maps["events"].max_entries == 4096
    assert (maps["plain"].key_size, maps["plain"].value_size) == (4, 16)
    assert maps["plain"].value_type == 0
    last = maps["last"]
    assert last.value_size == last.btf.size_of(last.value_type) == 72
    (threads,) = load("count").maps
    assert (threads.type, threads.max_entries) == (MapType.PERCPU_ARRAY, 2)
    assert threads.btf.decode(threads.value_type, LONG.pack(7)) == 7


def test_data_sections():
    maps = {spec.name: spec for spec in load("globals").maps}
    rodata = maps[".rodata"]
    assert rodata.read_only
    assert rodata.max_entries == 1
    value = rodata.btf.decode(rodata.value_type, rodata.initial)
    assert value._asdict() == {"scale": 3, "table": (10, 20, 30, 40)}
    bss = maps[".bss"]
    assert bss.initial is None
    value = bss.btf.decode(bss.value_type, LONG.pack(1) + LONG.pack(2) + LONG.pack(3))
    assert value._asdict() == {"total": 1, "hidden": (2, 3)}
    assert not maps[".data"].read_only


def run_main(obj):
    program = obj.by_name()["main_program"]
    maps = [MapState(spec) for spec in program.maps]
    result = run(program, bytearray(LONG.pack(6)), maps=maps)
    return result, {state.spec.name: bytes(state.values) for state in maps}


def check_main(obj):
    # total = table[6 & 3] + 6 * scale = 30 + 18; other = total ^ 0x55; triple(2) = 6; hidden[1] = 2
    result, values = run_main(obj)
    assert result == (48 ^ 0x55) + 6 + 2
    assert values[".data"][:4] == WORD.pack(6)


def test_linked_program_runs():
    obj = load("globals")
    check_main(obj)
    functions = {function.name: function for function in obj.by_name()["main_program"].functions}
    assert set(functions) == {"main_program", "from_table", "other", "triple"}
    assert functions["main_program"].start == 0
    assert functions["from_table"].is_global
    assert not functions["triple"].is_global


@pytest.mark.parametrize("path", sorted(OBJECTS.glob("clang/*.o")), ids=lambda path: path.name)
def test_objects_of_upstream_clang(path):
    """The same sources by clang 16 and 19: the same programs, maps and results."""
    name = path.name.split(".")[0]
    theirs, ours = read_object(path.read_bytes(), path.name), load(name)
    assert set(theirs.by_name()) == set(ours.by_name())
    assert sorted(spec.name for spec in theirs.maps) == sorted(spec.name for spec in ours.maps)
    for program in theirs.programs:
        assert program.attach == ours.by_name()[program.name].attach
        assert program.lines
    if name == "globals":
        check_main(theirs)
    if name == "records":
        program = theirs.by_name()["record"]
        maps = [MapState(spec) for spec in program.maps]
        ctx = bytearray(4384)
        ctx[224:228] = WORD.pack(11)
        assert run(program, context=bytes(ctx), maps=maps, place=Place(sm=11)) == 1
        (data,) = next(state for state in maps if state.spec.name == "events").records
        last = next(state for state in maps if state.spec.name == "last")
        assert bytes(last.values) == data


def test_unreached_functions_are_left_out():
    assert [function.name for function in load("globals").by_name()["second"].functions] == [
        "second"
    ]


def test_lines_point_at_the_source():
    program = load("globals").by_name()["main_program"]
    source = (OBJECTS / "globals.bpf.c").read_text().splitlines()
    assert len(program.lines) > 10
    for line in program.lines:
        assert line.file.endswith("globals.bpf.c")
        assert source[line.line - 1].strip() == line.text
    triple = next(function for function in program.functions if function.name == "triple")
    inside = [line.text for line in program.lines if line.pc >= triple.start]
    assert "return x * scale;" in inside


def test_record_decodes_to_a_namedtuple():
    program = load("records").by_name()["record"]
    maps = [MapState(spec) for spec in program.maps]
    ctx = bytearray(4384)
    ctx[224:228] = WORD.pack(11)
    assert run(program, context=bytes(ctx), maps=maps, place=Place(sm=11)) == 1
    events, last = maps[0], maps[1]
    (data,) = events.records
    assert bytes(last.values) == data
    value = last.spec.btf.decode(last.spec.value_type, data)
    assert value.name == b"k" + bytes(7)
    assert value.at == ((0, 0), (-7, 0))
    assert value.at[1].x == -7
    assert (value.phase, value.low, value.high) == (2, 5, -3)
    assert (value.whole, value.first, value.second) == (1 + (11 << 32), 1, 11)
    assert (value.bytes, value.flag, value.big) == ((0, 9), True, 1 << 32)
    assert (value.pointer, value.class_, value.pad) == (0, 2, 0)


def test_short_data_is_refused():
    spec = load("records").maps[1]
    with pytest.raises(InputError, match="71 bytes are too few for STRUCT record of 72"):
        spec.btf.decode(spec.value_type, bytes(71))


def test_externs_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="external symbol 'CONFIG_HZ'"):
        load("externs")


# Broken files: (what to change, message).


def section_header(data, name):
    elf = read_elf(data, "x")
    section = elf.section(name)
    return LONG.unpack_from(data, 0x28)[0] + 64 * section.index


def patched(data, changes):
    copy = bytearray(data)
    for offset, value in changes:
        copy[offset : offset + len(value)] = value
    return bytes(copy)


ELF_HEADER = {
    "magic": ([(0, b"\x7fELG")], "not an ELF file"),
    "32 bits": ([(4, b"\x01")], "32-bit"),
    "big endian": ([(5, b"\x02")], "big-endian"),
    "version": ([(6, b"\x07")], "ELF version 7"),
    "executable": ([(16, SHORT.pack(2))], "not a relocatable"),
    "machine": ([(18, SHORT.pack(62))], "machine is 62, not BPF"),
    "unknown machine": ([(18, SHORT.pack(0xFFFE))], "machine is 65534, not BPF"),
    "section table": ([(0x28, LONG.pack(1 << 60))], "section headers end at"),
    "entry size": ([(0x3A, SHORT.pack(40))], "section headers have 40 bytes"),
    "no sections": ([(0x3C, SHORT.pack(0))], "0 sections"),
    "many sections": ([(0x3C, SHORT.pack(0xFFF0))], "65520 sections"),
    "names": ([(0x3E, SHORT.pack(0xFFFF))], "section 65535 of names does not exist"),
}


@pytest.mark.parametrize("change", ELF_HEADER)
def test_broken_elf_header(change):
    changes, message = ELF_HEADER[change]
    with pytest.raises(InputError, match=message) as caught:
        read_object(patched(raw("globals"), changes), "broken.o")
    assert str(caught.value).startswith("broken.o: ")


SECTION_HEADER = {
    # section, offset in its header, value, message
    "name": ("executor", 0, WORD.pack(1 << 30), "name at 1073741824 of a string table"),
    "offset": ("executor", 24, LONG.pack(1 << 40), "lie past the end of the file"),
    "size": (".BTF", 32, LONG.pack(1 << 62), "lie past the end of the file"),
    "odd code": ("executor", 32, LONG.pack(164), "no whole slots"),
    "short code": ("executor", 32, LONG.pack(160), "ends outside it"),
    "symbol size": (".symtab", 32, LONG.pack(25), "no whole rows of 24"),
    "symbol strings": (".symtab", 40, WORD.pack(999), "string table 999 does not exist"),
    "relocation target": (".relexecutor", 44, WORD.pack(999), "applies to section 999"),
    "relocation symbols": (".relexecutor", 40, WORD.pack(1), "symbol table 1 does not exist"),
    "relocation kind": (".relexecutor", 4, WORD.pack(4), "RELA relocations"),
    "short BTF": (".BTF", 32, LONG.pack(10), "truncated in its header"),
    "no BTF": (".BTF", 32, LONG.pack(100), "end at"),
    "short BTF.ext": (".BTF.ext", 32, LONG.pack(40), "header of|bytes .* of 40"),
    "bss": (".bss", 32, LONG.pack(1 << 40), "bytes of data, limit"),
    "rodata": (".rodata", 32, LONG.pack(8), "offset .* of .rodata, which has 8 bytes"),
}


@pytest.mark.parametrize("change", SECTION_HEADER)
def test_broken_section_header(change):
    name, offset, value, message = SECTION_HEADER[change]
    data = raw("globals")
    broken = patched(data, [(section_header(data, name) + offset, value)])
    with pytest.raises(InputError, match=message) as caught:
        read_object(broken, "broken.o")
    assert "broken.o: section " in str(caught.value)


def content(data, name):
    """Where the section's bytes begin in the file."""
    return LONG.unpack_from(data, section_header(data, name) + 24)[0]


CONTENT = {
    # section, offset in it, value, message
    "relocation offset": (".relexecutor", 0, LONG.pack(1 << 20), "lies past the end"),
    "relocation slot": (".relexecutor", 0, LONG.pack(9), "middle of a slot"),
    "relocation symbol": (".relexecutor", 8, LONG.pack(1 << 40 | 10), "symbol 256 does not exist"),
    "relocation type": (".relexecutor", 8, LONG.pack(2 << 32 | 3), "relocation"),
    "BTF magic": (".BTF", 0, SHORT.pack(0x9FEB), "magic is 0x9feb"),
    "BTF version": (".BTF", 2, b"\x05", "version 5"),
    "BTF types": (".BTF", 12, WORD.pack(1 << 28), "types end at"),
    "BTF kind": (".BTF", 24 + 4, WORD.pack(31 << 24), "unknown kind 31"),
    "BTF name": (".BTF", 24, WORD.pack(1 << 28), "of strings"),
    "BTF reference": (".BTF", 24 + 8, WORD.pack(1 << 28), "refers to type"),
    "BTF.ext magic": (".BTF.ext", 0, SHORT.pack(1), "magic 0x0001"),
    "BTF.ext lines": (".BTF.ext", 20, WORD.pack(1 << 20), "bytes .* of"),
    "BTF.ext rows": (".BTF.ext", 24 + 8, WORD.pack(4), "records of 4 bytes"),
    "licence": ("license", 0, b"\xff", "not ASCII"),
}


@pytest.mark.parametrize("change", CONTENT)
def test_broken_content(change):
    name, offset, value, message = CONTENT[change]
    data = raw("globals")
    broken = patched(data, [(content(data, name) + offset, value)])
    with pytest.raises(InputError, match=message):
        read_object(broken, "broken.o")


@pytest.mark.parametrize("name", GOOD)
def test_every_truncation_is_an_input_error(name):
    data = raw(name)
    for size in range(0, len(data), 97):
        with pytest.raises(InputError):
            read_object(data[:size], "cut.o")


def test_unknown_section_lists_the_forms():
    data = raw("count")
    broken = data.replace(b"kprobe/vectorAdd,_Z6", b"kprbbe/vectorAdd,_Z6")
    with pytest.raises(InputError, match=r"unknown section 'kprbbe.*kretprobe/<kernel>.*executor"):
        read_object(broken, "broken.o")


# With a compiler.


def builder():
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed, so no C is compiled")
    spec = importlib.util.spec_from_file_location("objects_build", OBJECTS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_text(tmp_path, text, **options):
    source = tmp_path / "test.bpf.c"
    source.write_text('#include "egpu.bpf.h"\n' + text)
    target = tmp_path / "test.bpf.o"
    builder().compile_object(source, target, **options)
    return target.read_bytes()


@pytest.mark.parametrize("name", GOOD)
def test_committed_objects_are_current(name, tmp_path):
    target = tmp_path / "fresh.o"
    builder().compile_object(OBJECTS / f"{name}.bpf.c", target)
    fresh = read_object(target.read_bytes(), f"{name}.bpf.o")
    assert fresh.programs == load(name).programs
    assert fresh.maps == load(name).maps


@pytest.mark.parametrize("cpu", ["v1", "v2", "v3", "v4"])
def test_every_processor_version(cpu, tmp_path):
    build = builder()
    for name in GOOD:
        target = tmp_path / f"{name}.o"
        build.compile_object(OBJECTS / f"{name}.bpf.c", target, cpu=cpu)
        obj = read_object(target.read_bytes(), name)
        for program in obj.programs:
            for pc, insn, following in isa.instructions(program.code):
                assert isa.check_fields(insn, following) is None, (name, program.name, pc)
        if name == "globals":
            check_main(obj)


OUTER = (
    "struct inner {{ __uint(type, {kind}); __uint(max_entries, 4096); __type(key, __u32);"
    ' __type(value, __u32); }} a SEC(".maps"), b SEC(".maps");'
    "struct {{ __uint(type, 2); __uint(max_entries, 7); __type(key, __u32);"
    ' __type(value, __u32); }} other SEC(".maps");'
    "struct {{ __uint(type, 12); __uint(max_entries, {count}); __type(key, __u32);"
    ' __array(values, struct inner); }} {name} SEC(".maps") {values};'
)


def test_maps_of_maps(tmp_path):
    values = "= { .values = { [0] = (void *)&b, [2] = (void *)&a } }"
    text = OUTER.format(name="outer", kind=1, count=3, values=values)
    specs = read_object(compile_text(tmp_path, text), "test.o").maps
    names = [spec.name for spec in specs]
    (outer,) = (spec for spec in specs if spec.inner)
    assert (outer.name, outer.type, outer.key_size, outer.max_entries) == (
        "outer",
        MapType.ARRAY_OF_MAPS,
        4,
        3,
    )
    assert [names[n] if n >= 0 else None for n in outer.inner] == ["b", None, "a"]


REFUSED = {
    "legacy maps": ('int m[5] SEC("maps");', "legacy 'maps' section"),
    "no inner maps": (OUTER.format(name="m", kind=2, count=1, values=""), "an empty ARRAY_OF_MAPS"),
    "an inner ring": (
        OUTER.format(name="m", kind=27, count=1, values="= { .values = { (void *)&a } }"),
        "a RINGBUF inside another map",
    ),
    "a program array": (
        OUTER.format(name="m", kind=2, count=1, values="= { .values = { (void *)&a } }").replace(
            "__uint(type, 12)", "__uint(type, 1)"
        ),
        "map type HASH with values",
    ),
    "map type": ('struct { __uint(type, 999); } m SEC(".maps");', "map type 999"),
    "pointers in data": ("int a; int *const volatile p = &a;", "addresses in initialised data"),
    "kernel function": (
        'extern int kfunc(int) SEC(".ksyms"); SEC("executor") int p(void *c) { return kfunc(1); }',
        "external symbol 'kfunc'",
    ),
}


@pytest.mark.parametrize(("pinning", "by_name"), [("", False), ("0", False), ("1", True)])
def test_pinning_by_name(pinning, by_name, tmp_path):
    member = f"__uint(pinning, {pinning});" if pinning else ""
    text = (
        "struct { __uint(type, 2); __uint(max_entries, 1); __type(key, __u32); "
        f'__type(value, __u32); {member} }} m SEC(".maps");'
    )
    (spec,) = read_object(compile_text(tmp_path, text), "test.o").maps
    assert spec.pin_by_name is by_name


@pytest.mark.parametrize("feature", REFUSED)
def test_refused_by_name(feature, tmp_path):
    text, message = REFUSED[feature]
    with pytest.raises(UnsupportedError, match=message):
        read_object(compile_text(tmp_path, text), "test.o")


BAD = {
    "different inner maps": (
        OUTER.format(
            name="m", kind=2, count=2, values="= { .values = { (void *)&a, (void *)&other } }"
        ),
        "the maps in it differ in type or sizes: a, other",
    ),
    "too many inner maps": (
        OUTER.format(
            name="m", kind=2, count=1, values="= { .values = { (void *)&a, (void *)&b } }"
        ),
        "2 maps, max_entries is 1",
    ),
    "what is no map": (
        "int x;" + OUTER.format(name="m", kind=2, count=1, values="= { .values = { (void *)&x } }"),
        "is no map's",
    ),
    "pinning": ('struct { __uint(type, 2); __uint(pinning, 2); } m SEC(".maps");', "pinning is 2"),
    "access from outside": (
        'struct { __uint(type, 2); __uint(map_flags, 0x18); } m SEC(".maps");',
        "BPF_F_RDONLY and BPF_F_WRONLY exclude each other",
    ),
    "a flag of other types": (
        'struct { __uint(type, 1); __uint(map_flags, 2); } m SEC(".maps");',
        "map 'm': a HASH does not take BPF_F_NO_COMMON_LRU; it takes BPF_F_NO_PREALLOC, ",
    ),
    "a flag that is not supported": (
        'struct { __uint(type, 9); __uint(map_flags, 1); } m SEC(".maps");',
        "map 'm': an LRU_HASH cannot have BPF_F_NO_PREALLOC: ",
    ),
    "access by programs": (
        'struct { __uint(type, 1); __uint(map_flags, 0x180); } m SEC(".maps");',
        "BPF_F_RDONLY_PROG and BPF_F_WRONLY_PROG exclude each other",
    ),
    "access to a ring": (
        'struct { __uint(type, 27); __uint(map_flags, 0x10); } m SEC(".maps");',
        "a RINGBUF does not take BPF_F_WRONLY",
    ),
    "access to events": (
        'struct { __uint(type, 4); __uint(map_flags, 0x80); } m SEC(".maps");',
        "a PERF_EVENT_ARRAY does not take BPF_F_RDONLY_PROG",
    ),
    "no type": ('struct { __uint(max_entries, 1); } m SEC(".maps");', "no type"),
    "member": (
        'struct { __uint(type, 2); __uint(size, 1); } m SEC(".maps");',
        "unknown member 'size'",
    ),
    "sizes": (
        'struct { __uint(type, 2); __uint(key_size, 8); __type(key, __u32); } m SEC(".maps");',
        "key_size is both 8 and 4",
    ),
    "not a struct": ('int m SEC(".maps");', "is INT, not a struct"),
    "no BTF": (
        'struct { __uint(type, 2); } m SEC(".maps");',
        "compile with -g",
        ("-g0",),
    ),
    "static program": (
        'SEC("kprobe/k") static int p(void *ctx) { return 0; }',
        "program 'p' is static",
    ),
    "section": ('SEC("kprobe/") int p(void *ctx) { return 0; }', "names no kernel"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes_in_sources(mistake, tmp_path):
    text, message, *flags = BAD[mistake]
    data = compile_text(tmp_path, text, flags=flags[0] if flags else ())
    with pytest.raises(InputError, match=message):
        read_object(data, "test.o")


def test_callbacks_keep_their_distance(tmp_path):
    text = """
    static int callback(void *ctx) { return 3; }
    int (*volatile kept)(void *);
    SEC("executor") int first(void *ctx) { return 1; }
    SEC("executor") int taker(void *ctx) { return ((long (*)(void *))9)(callback) != 0; }
    """
    program = read_object(compile_text(tmp_path, text), "t.o").by_name()["taker"]
    ((pc, insn),) = [
        (pc, insn) for pc, insn, _ in isa.instructions(program.code) if insn.opcode == isa.LD_IMM64
    ]
    callback = next(function for function in program.functions if function.name == "callback")
    assert insn.src == 4
    assert pc + 1 + insn.imm == callback.start


def test_static_functions_called_from_two_programs(tmp_path):
    text = """
    static __noinline int shared(int x) { return x * 7; }
    SEC("executor") int a(int *m) { return shared(m[0]); }
    SEC("executor") int b(int *m) { return shared(m[0]) + shared(m[1]); }
    """
    programs = read_object(compile_text(tmp_path, text), "t.o").by_name()
    memory = struct.pack("<ii", 2, 3)
    assert run(programs["a"], bytearray(memory)) == 14
    assert run(programs["b"], bytearray(memory)) == 35


def test_kprobe_macro_passes_six_parameters(tmp_path):
    text = """
    SEC("kprobe/k") long BPF_KPROBE(p, char *a, unsigned b, short c, long d, __u8 e, void *f)
    { return (long)a + b + c + d + e + (long)f; }
    SEC("kretprobe/k") int BPF_KRETPROBE(q) { return ctx != 0; }
    """
    programs = read_object(compile_text(tmp_path, text), "t.o").by_name()
    regs = bytearray(4384)
    for number, offset in enumerate((112, 104, 96, 88, 72, 64)):
        regs[offset : offset + 8] = LONG.pack(10**number)
    wide = 10**5 + 10**3 + 10**2 + 10 + 1 + (10**4 & 0xFF)
    assert run(programs["p"], context=bytes(regs)) == wide
    assert run(programs["q"], context=bytes(regs)) == 1
