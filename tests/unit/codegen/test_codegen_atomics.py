"""Atomics, fences and ordered accesses: the PTX text of each, and that ptxas takes it."""

import pytest
from codegen_programs import ARCHES, assemble_ptx, in_kernel, needs_ptxas, same_as_golden

from egpu.bpf.isa import AtomicOp
from egpu.codegen.atomics import Atomic, MemoryScope, Operands, emit
from egpu.codegen.device_code import DeviceCode
from egpu.codegen.ir import Body
from egpu.codegen.library import declarations
from egpu.codegen.primitives import PRIMITIVES
from egpu.codegen.ptx_text import embed
from egpu.codegen.targets import Machine, emit_ptx, header

CASES = {
    f"{scope.value}_{op.name.lower()}_{bits}": (op, bits, scope)
    for scope in (MemoryScope.GPU, MemoryScope.SYS)
    for op in AtomicOp
    for bits in (32, 64)
    if scope is MemoryScope.GPU or (bits == 64 and op in (AtomicOp.ADD, AtomicOp.FETCH_ADD))
}
# Primitives that order or scope memory: name, arguments, type of the result.
ORDERED = {
    "fence_sys": ("", "void"),
    "fence_gpu": ("", "void"),
    "load_gpu": ("i64 %a", "i64"),
    "add_gpu": ("i64 %a, i64 %v", "void"),
    "cas_gpu": ("i64 %a, i64 %c, i64 %v", "i64"),
    "acquire_gpu": ("i64 %a", "i64"),
    "load_pair_gpu": ("i64 %a", "{ i64, i64 }"),
    "fetch_add_gpu": ("i64 %a, i64 %v", "i64"),
    "swap_gpu": ("i64 %a, i64 %c, i64 %v", "i64"),
    "add_release_gpu": ("i64 %a, i64 %v", "void"),
    "claim_gpu": ("i64 %a, i64 %c, i64 %v", "i64"),
    "take_gpu": ("i64 %a, i64 %v", "i64"),
    "pin_gpu": ("i64 %a", "i64"),
    "or_gpu": ("i64 %a, i64 %v", "void"),
    "max_gpu": ("i64 %a, i64 %v", "void"),
    "release_gpu": ("i64 %a, i64 %v", "void"),
    "release_sys": ("i64 %a, i64 %v", "void"),
    "release_pair_sys": ("i64 %a, i64 %v, i64 %c", "void"),
    "store_pair_gpu": ("i64 %a, i64 %v, i64 %c", "void"),
    "release_flag_gpu": ("i64 %a, i16 1", "void"),
    "sync": ("i32 7", "void"),
    "active": ("", "i32"),
    "match": ("i64 %v, i32 7", "i32"),
    "shuffle32": ("i32 5, i32 3, i32 7", "i32"),
    "slot_of": ("i32 %s, i32 132", "i32"),
}
INPUTS = """\
  %a = call i64 asm "mov.b64 $0, __egpu_param_0;", "=l"() nounwind memory(none)
  %v = call i64 asm "mov.b64 $0, __egpu_param_1;", "=l"() nounwind memory(none)
  %c = call i64 asm "mov.b64 $0, __egpu_param_2;", "=l"() nounwind memory(none)
  %s = trunc i64 %v to i32
"""


def statements(body, result=None):
    """The statements of a kernel made of ``body``; ``result`` (type, value) is kept alive."""
    keep = ""
    if result is not None:
        kind, value = result
        keep = (
            "  %p = inttoptr i64 %c to ptr addrspace(1)\n"
            f"  store {kind} {value}, ptr addrspace(1) %p, align 8\n"
        )
    kernel = f"define ptx_kernel void @k() {{\n{INPUTS}{body}\n{keep}  ret void\n}}\n"
    module = header(Machine.NVPTX) + declarations(kernel, Machine.NVPTX) + kernel
    return embed(emit_ptx(module), "e0")


def text_of(kernel):
    return "\n".join((*kernel.declarations, *kernel.statements)) + "\n"


def atomic_kernel(name):
    op, bits, scope = CASES[name]
    body = Body()
    value, compare = "%v", "%c"
    if bits == 32:
        value = body.resize("%v", 64, 32)
        compare = body.resize("%c", 64, 32)
    old = emit(body, Machine.NVPTX, Atomic(op, bits, scope), Operands("%a", value, compare))
    lines = body.text("go").split("br label %go\n")[1]
    return statements(lines, None if old is None else (f"i{bits}", old))


def ordered_kernel(name):
    arguments, kind = ORDERED[name]
    if kind == "void":
        return statements(f"  call void @egpu.{name}({arguments})")
    return statements(f"  %r = call {kind} @egpu.{name}({arguments})", (kind, "%r"))


@pytest.mark.parametrize("name", CASES)
def test_atomic(name):
    same_as_golden(f"atomic_{name}", text_of(atomic_kernel(name)))


@pytest.mark.parametrize("name", ORDERED)
def test_ordered(name):
    same_as_golden(f"ordered_{name}", text_of(ordered_kernel(name)))


def test_plain_atomics_give_nothing_back_and_others_are_ordered():
    for name, (op, bits, scope) in CASES.items():
        text = text_of(atomic_kernel(name))
        fetches = op not in (AtomicOp.ADD, AtomicOp.OR, AtomicOp.AND, AtomicOp.XOR)
        wanted = f"{'atom.acq_rel' if fetches else 'red.relaxed'}.{scope.value}.global."
        assert wanted in text
        assert f"{bits} " in text.split(wanted)[1].split(";")[0]


def test_both_machines_have_every_primitive():
    names = {machine: set(table) for machine, table in PRIMITIVES.items()}
    assert names[Machine.NVPTX] == names[Machine.X86_64]


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_them_all(arch, tmp_path):
    kernels = [atomic_kernel(name) for name in CASES] + [ordered_kernel(name) for name in ORDERED]
    codes = [as_code(text_of(kernel)) for kernel in kernels]
    assemble_ptx(in_kernel(*codes), tmp_path, arch)


def as_code(text):
    return DeviceCode(None, "p", None, None, text, (), (), (6, 2), "")
