"""Section names, kernel names, and what matches what."""

import pytest

from egpu.bpf.demangle import demangle
from egpu.bpf.name_forms import name_forms
from egpu.bpf.program import AttachKind, AttachPoint, Level
from egpu.bpf.sections import matches, parse_section
from egpu.errors import InputError, UnsupportedError

K, L = AttachKind, Level

PARSED = {
    "kprobe/vectorAdd": (AttachPoint(K.ENTRY, "vectorAdd"),),
    "kretprobe/_Z3foov": (AttachPoint(K.EXIT, "_Z3foov"),),
    "kprobe.warp/a*": (AttachPoint(K.ENTRY, "a*", L.WARP),),
    "kprobe.block/a?": (AttachPoint(K.ENTRY, "a?", L.BLOCK),),
    "kretprobe.warp/x": (AttachPoint(K.EXIT, "x", L.WARP),),
    "kretprobe.block/x": (AttachPoint(K.EXIT, "x", L.BLOCK),),
    "kprobe/a, b,c": tuple(AttachPoint(K.ENTRY, name) for name in "abc"),
    "kprobe/f<int, 4>(int, float),g": (
        AttachPoint(K.ENTRY, "f<int, 4>(int, float)"),
        AttachPoint(K.ENTRY, "g"),
    ),
    "kprobe/ns/odd": (AttachPoint(K.ENTRY, "ns/odd"),),
    "insn/load/k": (AttachPoint(K.INSTRUCTION, "k", detail="load"),),
    "insn/ld.global/k,l": (
        AttachPoint(K.INSTRUCTION, "k", detail="ld.global"),
        AttachPoint(K.INSTRUCTION, "l", detail="ld.global"),
    ),
    "launch/*": (AttachPoint(K.LAUNCH, "*"),),
    "launchret/k": (AttachPoint(K.LAUNCH_RETURN, "k"),),
    "uprobe//usr/lib/libc.so.6:malloc": (
        AttachPoint(K.HOST_ENTRY, "malloc", detail="/usr/lib/libc.so.6:malloc"),
    ),
    "uretprobe/a.out:main": (AttachPoint(K.HOST_EXIT, "main", detail="a.out:main"),),
    "uprobe": (AttachPoint(K.HOST_ENTRY, ""),),
    "tracepoint/sched/sched_switch": (
        AttachPoint(K.KERNEL_SPACE, "sched/sched_switch", detail="tracepoint/sched/sched_switch"),
    ),
    "xdp": (AttachPoint(K.KERNEL_SPACE, "", detail="xdp"),),
    "executor": (AttachPoint(K.EXECUTOR, ""),),
    "kprobe/__memcapture": (AttachPoint(K.INSTRUCTION, "*", detail="__memcapture"),),
    "kprobe/__directly_run": (AttachPoint(K.EXECUTOR, "__directly_run"),),
    "kprobe/cuda_k,cuda__Z1fv": (
        AttachPoint(K.ENTRY, "cuda_k"),
        AttachPoint(K.ENTRY, "cuda__Z1fv"),
    ),
}


@pytest.mark.parametrize("section", PARSED)
def test_parsed(section):
    assert parse_section(section, "p") == PARSED[section]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("kprobe", "names no kernel"),
        ("kprobe/", "names no kernel"),
        ("kprobe/a,,b", "names no kernel"),
        ("kprobe/f<int", "unbalanced"),
        ("kprobe.lane/k", "unknown section"),
        ("kprobe/a,__memcapture", "stands alone"),
        ("insn/LOAD/k", "no instruction class"),
        ("insn/load", "names no kernel"),
        ("uprobe/libc.so.6", "names no symbol"),
        ("", "unknown section ''"),
        ("gpu/k", "kretprobe.block/<kernel>"),
    ],
)
def test_mistakes(section, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_section(section, "prog")
    assert "prog" in str(caught.value)


@pytest.mark.parametrize(
    ("section", "feature"),
    [
        ("?kprobe/k", "not loaded by default"),
    ],
)
def test_known_and_refused(section, feature):
    with pytest.raises(UnsupportedError, match=feature):
        parse_section(section, "p")


# Mangled by clang 22, demangled by llvm-cxxfilt 22 (return types and "> >" apart).
DEMANGLED = {
    "_Z9vectorAddPKfS0_Pf": "vectorAdd(float const*, float const*, float*)",
    "_Z6noargsv": "noargs()",
    "_ZL4statPKPViPcOi": "stat(int volatile* const*, char*, int&&)",
    "_ZN2ns12_GLOBAL__N_14anonERNS0_5InnerES1_": "ns::(anonymous namespace)::anon("
    "ns::(anonymous namespace)::Inner&, ns::(anonymous namespace)::Inner)",
    "_ZN2ns1wENS_1WINS_1VEiEENS1_INS1_IfEEEEPS3_": "ns::w(ns::W<ns::V, int>, "
    "ns::V<ns::V<float>>, ns::V<float>*)",
    "_ZN2ns2enILNS_1EE1EEEvv": "ns::en<(ns::E)1>()",
    "_ZN2ns3fooI6float4Lin1ELb0EEEvPT_PKPKS2_j": "ns::foo<float4, -1, false>("
    "float4*, float4 const* const*, unsigned int)",
    "_ZN2ns3varIJifNS_2OpEEEEvDpT_": "ns::var<int, float, ns::Op>(int, float, ns::Op)",
    "_ZN2ns5applyINS_2OpEEEvT_NS1_4NestIS2_EEPS2_": "ns::apply<ns::Op>("
    "ns::Op, ns::Op::Nest<ns::Op>, ns::Op*)",
    "_ZNK2ns2Op3runEi": "ns::Op::run(int) const",
    "_ZN2ns2OpclEf": "ns::Op::operator()(float)",
    "_Z3arrPA4_iRA3_A2_iPFviPKcEylsahbnz": "arr(int (*) [4], int (&) [3][2], "
    "void (*)(int, char const*), unsigned long long, long, short, signed char, unsigned char, "
    "bool, __int128, ...)",
    "_Z1fPPFviERPA3_iPA2_A4_c": "f(void (**)(int), int (*&) [3], char (*) [2][4])",
    "_Z12rms_norm_f32ILi1024ELb1ELb0EEvPKfPfilllfS1_lll": "rms_norm_f32<1024, true, false>("
    "float const*, float*, int, long, long, long, float, float const*, long, long, long)",
    "_ZN5faiss3gpu14l2NormRowMajorIf6float4Li8ELb1EEEvNS0_6TensorIT_Li2ELb1ElNS0_6traits16"
    "DefaultPtrTraitsEEES6_": "faiss::gpu::l2NormRowMajor<float, float4, 8, true>("
    "faiss::gpu::Tensor<float, 2, true, long, faiss::gpu::traits::DefaultPtrTraits>, "
    "faiss::gpu::traits::DefaultPtrTraits)",
    "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_15gpu_kernel_implINS0_13AUnaryFunctorIfff"
    "NS0_15binary_internal10MulFunctorIfEEEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_": (
        "at::native::elementwise_kernel<128, 2, {0}>(int, {0})".format(
            "at::native::gpu_kernel_impl<{0}>(at::TensorIteratorBase&, {0} const&)"
            "::'lambda'(int)".format(
                "at::native::AUnaryFunctor<float, float, float, "
                "at::native::binary_internal::MulFunctor<float>>"
            )
        )
    ),
    "_Z4kernIZN2at4implIPFfiEEEvRNS0_2ItERKT_E3LocJEEviS6_DpT0_": "kern<at::impl<float (*)(int)>("
    "at::It&, float (* const&)(int))::Loc>(int, float (*)(int))",
    "_Z4stepPi.constprop.0": "step(int*)",
    "_ZN7cutlass6KernelINS_4gemm6kernel4GemmEEEvNT_6ParamsE": "cutlass::Kernel<"
    "cutlass::gemm::kernel::Gemm>(cutlass::gemm::kernel::Gemm::Params)",
}


@pytest.mark.parametrize("mangled", DEMANGLED)
def test_demangled(mangled):
    assert demangle(mangled) == DEMANGLED[mangled]


@pytest.mark.parametrize(
    "name",
    [
        "vectorAdd", "_Z", "_ZN", "_Z99short", "_Z3fooS9_", "_Z3fooT_", "_ZZ4mainEs",
        "_Z3fooIXadL_Z3barEEEvv", "_Z3foo" + "P" * 500 + "i", "_ZN2nsE" + "S_" * 9, "_Z0v",
        "_Z1fu8__vendor", "_Z1f" + "A2_" * 40 + "PFvvE", "_Z3foo\u00b2",
    ],
)  # fmt: skip
def test_unknown_names_stay(name):
    assert demangle(name) == name


def test_every_prefix_of_a_name_is_answered():
    for mangled in DEMANGLED:
        for size in range(len(mangled)):
            assert isinstance(demangle(mangled[:size]), str)


def test_name_forms():
    full = "ns::foo<a::b<int>, 4>(int (*)(float), x::y)"
    assert name_forms(full) == (
        full, "ns::foo<a::b<int>, 4>", "ns::foo", "foo", "foo<a::b<int>, 4>"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "mangled", "expected"),
    [
        ("vectorAdd", "_Z9vectorAddPKfS0_Pf", True),
        ("vectorAdd", "vectorAdd", True),
        ("_Z9vectorAddPKfS0_Pf", "_Z9vectorAddPKfS0_Pf", True),
        ("vectorAdd(float const*, *)", "_Z9vectorAddPKfS0_Pf", True),
        ("vector*", "_Z9vectorAddPKfS0_Pf", True),
        ("_Z9vector*", "_Z9vectorAddPKfS0_Pf", True),
        ("vector", "_Z9vectorAddPKfS0_Pf", False),
        ("Add", "_Z9vectorAddPKfS0_Pf", False),
        ("VectorAdd", "_Z9vectorAddPKfS0_Pf", False),
        ("ns::foo", "_ZN2ns3fooI6float4Lin1ELb0EEEvPT_PKPKS2_j", True),
        (
            "elementwise_kernel",
            "_ZN2at6native18elementwise_kernelILi128EZNS0_3fooEvEUliE_EEviT0_",
            True,
        ),
        ("foo", "_ZN2ns3fooI6float4Lin1ELb0EEEvPT_PKPKS2_j", True),
        ("foo<float4, -1, false>", "_ZN2ns3fooI6float4Lin1ELb0EEEvPT_PKPKS2_j", True),
        ("ns::foo<float4,*", "_ZN2ns3fooI6float4Lin1ELb0EEEvPT_PKPKS2_j", True),
        ("ns::*", "_ZN2ns2OpclEf", True),
        ("cuda__Z9vectorAddPKfS0_Pf", "_Z9vectorAddPKfS0_Pf", True),
        ("cuda_step", "cuda_step", True),
        ("cuda_step", "step", True),
        ("step", "cuda_step", False),
        ("*", "anything", True),
    ],
)
def test_matches(pattern, mangled, expected):
    point = AttachPoint(K.ENTRY, pattern)
    assert matches(point, mangled, demangle(mangled)) is expected
