"""Kernel names as reports show them: short, and different where the kernels are."""

import pytest

from egpu.bpf.demangle import demangle
from egpu.bpf.name_forms import split_name
from egpu.export.text import table_lines
from egpu.report import KERNEL, Column, Table
from egpu.tools.names import display_names

ELEMENTWISE = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_{}EEviT0_T1_"
FILL4 = ELEMENTWISE.format("11FillFunctorIfEESt5arrayIPcLm1EE")
FILL2 = FILL4.replace("ILi4E", "ILi2E")
ADD4 = ELEMENTWISE.format("15CUDAFunctor_addIfEESt5arrayIPcLm3EE")
XMMA = (
    "sm90_xmma_gemm_f32f32_tf32f32_f32_{}_n_tilesize128x128x32_warpgroupsize1x1x1_kernel__5x_cublas"
)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("vecadd", "vecadd"),
        ("_Z6matmulILi16EEvPKfS1_Pfi", "matmul<16>"),
        ("_ZN4demo7collatzEPKjPji", "demo::collatz"),
        ("demo::collatz(unsigned int const*, unsigned int*, int)", "demo::collatz"),
        (ADD4, "vectorized_elementwise_kernel<…>"),
        (XMMA.format("tn"), "sm90_xmma_gemm_f32f32_tf…__5x_cublas"),
        # beyond the demangler: the beginning is still readable
        ("_ZN7cutlass13device_kernelIXadL_Z3fooEEEEvT_", "cutlass::device_kernel<…>"),
        ("_ZZ", "_ZZ"),
        ("_ZN9", "_ZN9"),
        ("", ""),
    ],
)
def test_one_name(name, shown):
    assert display_names([name]) == (shown,)


def test_names_that_would_be_the_same_are_told_apart():
    assert display_names([ADD4, FILL4]) == (
        "vectorized_elementwise_kernel<…CUDAFunctor_add…>",
        "vectorized_elementwise_kernel<…FillFunctor…>",
    )
    assert display_names([ADD4, FILL4, FILL2]) == (
        "vectorized_elementwise_kernel<…CUDAFunctor_add…>",
        "vectorized_elementwise_kernel<…4…FillFunctor…>",
        "vectorized_elementwise_kernel<…2…>",
    )
    assert display_names([XMMA.format("tn"), XMMA.format("nn")]) == (
        "sm90_xmma_gemm_f32f32_tf…__5x_cublas …tn",
        "sm90_xmma_gemm_f32f32_tf…__5x_cublas …nn",
    )


def test_what_no_word_tells_apart_is_numbered():
    unknown = [f"_ZN7cutlass13device_kernelIXadL_Z3{word}EEEEvT_" for word in ("foo", "bar")]
    assert display_names(unknown) == (
        "cutlass::device_kernel<…> #1",
        "cutlass::device_kernel<…> #2",
    )


def test_the_same_name_is_shown_the_same_way():
    first, second, third = display_names([ADD4, FILL4, ADD4])
    assert first == third != second


def test_many_of_one_template():
    names = [FILL4.replace("ILi4E", f"ILi{number}E") for number in range(300)]
    assert len(set(display_names(names))) == 300


@pytest.mark.parametrize(
    ("readable", "parts"),
    [
        (demangle(FILL2), ("at::native", "vectorized_elementwise_kernel",
                           "2, at::native::FillFunctor<float>, std::array<char*, 1ul>")),
        ("vecadd", ("", "vecadd", "")),
        ("a::b<int>::c(d::e)", ("a::b", "c", "")),
        ("(anonymous namespace)::k<1>(int)", ("(anonymous namespace)", "k", "1")),
    ],
)  # fmt: skip
def test_split(readable, parts):
    assert split_name(readable) == parts


@pytest.mark.parametrize("room", [16, 20, 26, 36])
def test_names_cut_to_a_columns_width_stay_different(room):
    names = (ADD4, FILL4, XMMA.format("tn"), XMMA.format("nn"))
    numbers = Column("N" * (80 - 2 - room))
    table = Table("", (KERNEL, numbers), tuple((name, "1") for name in display_names(names)))
    lines = table_lines(table, 80)
    assert all(len(line) <= 80 for line in lines)
    assert len({line[:room] for line in lines[1:]}) == 4
