"""Opening images, listing kernels, choosing PTX, finding an image's length."""

import hashlib
from pathlib import Path

import pytest

from egpu.errors import InputError, UnsupportedError
from egpu.image import (
    ImageKind,
    MemberKind,
    choose_ptx,
    fitting_cubins,
    image_length,
    list_kernels,
    open_for,
    open_image,
    ptx_text,
)
from egpu.image.ptx import parse

IMAGES = Path(__file__).parents[1] / "images"
EVERY = sorted(path.name for path in IMAGES.iterdir() if path.suffix in (".fatbin", ".cubin"))
PTX = "// comment\n.version 8.0\n.target sm_{}\n.address_size 64\n.visible .entry {}() {{ ret; }}\n"


def load(name):
    return open_image((IMAGES / name).read_bytes())


def text_image(target="90", kernel="k"):
    return PTX.format(target, kernel).encode()


def test_ptx_text_with_and_without_nul():
    text = text_image()
    for data in (text, text + b"\0", text + b"\0left over"):
        image = open_image(data)
        assert image.kind is ImageKind.PTX
        assert ptx_text(image.members[0]).encode() == text
        assert image.digest == hashlib.sha256(data).hexdigest()
    assert (image.members[0].arch, image.members[0].suffix) == (90, "")
    assert open_image(text_image("100a")).members[0].suffix == "a"


def chosen(image, arch):
    """The PTX for a device, or what is said where there is none."""
    try:
        return choose_ptx(image, arch)
    except UnsupportedError as error:
        return str(error)


class Recording(bytes):
    """An image that notes which of its bytes are read."""

    def __getitem__(self, part):
        found = super().__getitem__(part)
        self.__dict__.setdefault("read", []).append(found)
        return found


def changed(data, member):
    """An image with another byte in the middle of a member."""
    at = member.offset + len(member.data) // 2
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


def test_a_device_reads_and_digests_what_it_can_use():
    data = Recording((IMAGES / "several.fatbin").read_bytes())
    whole = open_image(bytes(data))
    image = open_for(data, 90)
    used = [("ptx", 80), ("cubin", 90), ("ptx", 90)]
    assert [(each.kind.value, each.arch) for each in image.members if each.data] == used
    assert sum(map(len, data.read)) < len(data)
    for member, one in zip(image.members, whole.members, strict=True):
        assert (member.kind, member.arch, member.offset) == (one.kind, one.arch, one.offset)
        assert member.data == (one.data if (member.kind.value, member.arch) in used else b"")
        other = open_for(changed(bytes(data), one), 90)
        assert (other.digest == image.digest) == (not member.data)
    assert image.digest != whole.digest != open_for(bytes(data), 86).digest != image.digest
    assert choose_ptx(image, 90).data == choose_ptx(whole, 90).data
    assert [each.data for each in fitting_cubins(image, 90)] == [
        each.data for each in fitting_cubins(whole, 90)
    ]


def test_what_a_device_cannot_use_is_not_unpacked():
    image = open_for((IMAGES / "several.fatbin").read_bytes(), 90)
    left_out = [each for each in image.members if not each.data]
    assert left_out
    for member in left_out:
        with pytest.raises(InputError):
            list_kernels(member)


@pytest.mark.parametrize("name", EVERY)
def test_every_device_can_use_the_same_of_an_image_as_when_all_is_read(name):
    data = (IMAGES / name).read_bytes()
    whole = open_image(data)
    for arch in (75, 80, 86, 89, 90, 100, 120):
        image = open_for(data, arch)
        assert fitting_cubins(image, arch) == fitting_cubins(whole, arch)
        assert chosen(image, arch) == chosen(whole, arch)


def test_a_target_in_a_comment_does_not_count():
    text = (
        b"/* .version 1.0\n.target sm_20 */ // .target sm_30\n .version 8.0 .target\tsm_86, debug\n"
    )
    assert open_image(text).members[0].arch == 86


def test_text_that_is_not_utf8_survives():
    data = b"// \xff\xfe path\n" + text_image()
    text = ptx_text(open_image(data).members[0])
    assert parse(text).text.encode("utf-8", "surrogateescape") == data


@pytest.mark.parametrize("data", [b"", b"\0", b"hello", b"\x7fELF", b".version 8.0\n", bytes(100)])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(InputError):
        open_image(data)


@pytest.mark.parametrize("name", ["sm_80.cubin", "sm_90.cubin", "sm_120.cubin"])
def test_cubin_kernels(name):
    """Registers and shared memory are those that ``ptxas -v`` reports."""
    image = load(name)
    member = image.members[0]
    assert (member.kind, member.arch) == (MemberKind.CUBIN, int(name[3:-6]))
    kernels = {each.name: each for each in list_kernels(member)}
    assert set(kernels) == {"add", "none"}
    assert kernels["add"].parameters == ((0, 8), (8, 8), (16, 8), (24, 4))
    assert kernels["none"].parameters == ()
    assert kernels["add"].registers == {"sm_90.cubin": 14}.get(name, 12)
    assert (kernels["add"].shared, kernels["none"].shared) == (128, 0)
    assert not kernels["add"].has_ptx


def test_ptx_kernels():
    kernels = {each.name: each for each in list_kernels(load("zstd.fatbin").members[1])}
    assert kernels["add"].parameters == ((0, 8), (8, 8), (16, 8), (24, 4))
    assert kernels["none"].has_ptx


@pytest.mark.parametrize(
    ("arch", "suffix", "chosen"),
    [
        (90, "a", (90, "a")),
        (90, "f", (80, "")),
        (90, "", (80, "")),
        (89, "a", (80, "")),
        (100, "a", (100, "f")),
        (103, "a", (100, "f")),
        (100, "", (80, "")),
        (110, "a", (80, "")),
        (120, "a", (120, "")),
        (121, "a", (120, "")),
    ],
)
def test_the_best_ptx_for_a_device(arch, suffix, chosen):
    member = choose_ptx(load("several.fatbin"), arch, suffix)
    assert (member.kind, member.arch, member.suffix) == (MemberKind.PTX, *chosen)


def test_no_ptx_for_the_device_says_what_there_is():
    with pytest.raises(UnsupportedError, match=r"sm_75: .*PTX compute_80, cubin sm_90a"):
        choose_ptx(load("several.fatbin"), 75)


@pytest.mark.parametrize("name", ["machine_code.fatbin", "sm_90.cubin"])
def test_machine_code_alone_is_named(name):
    with pytest.raises(UnsupportedError, match=r"only machine code \(it holds cubin sm_90\)") as e:
        choose_ptx(load(name), 90)
    assert "--machine-code" not in str(e.value)  # which may be on: who knows it says so


def test_ptx_inside_a_cubin_with_line_information():
    image = load("lineinfo_sm_90a.cubin")
    assert image.members[0].suffix == "a"
    assert all(kernel.has_ptx for kernel in list_kernels(image.members[0]))
    member = choose_ptx(image, 90)
    assert (member.kind, member.arch, member.suffix) == (MemberKind.PTX, 90, "a")
    names = [each.name for each in parse(ptx_text(member)).functions]
    assert names == [each.name for each in list_kernels(member)] == ["add", "none"]
    with pytest.raises(UnsupportedError):
        choose_ptx(image, 100)


def test_the_text_inside_the_cubin_that_the_driver_runs_beats_older_ptx():
    from test_image_fatbin import fatbin  # noqa: PLC0415

    cubin = (IMAGES / "lineinfo_sm_90a.cubin").read_bytes()
    data = fatbin((1, 80, 0x11, 0, 0, text_image("80")), (2, 90, 0x100011, 0, 0, cubin))
    assert choose_ptx(open_image(data), 90).arch == 90
    assert choose_ptx(open_image(data), 80).arch == 80
    same = fatbin((1, 90, 0x11, 0, 0, text_image("90")), (2, 90, 0x11, 0, 0, cubin))
    assert choose_ptx(open_image(same), 90).suffix == ""


def test_the_member_with_the_kernel_is_chosen():
    from test_image_fatbin import fatbin  # noqa: PLC0415

    data = fatbin(
        (1, 90, 0x11, 0, 0, text_image(kernel="first")),
        (1, 90, 0x11, 0, 0, text_image(kernel="first_2")),
    )
    for kernel in ("first", "first_2"):
        member = choose_ptx(open_image(data), 90, kernel=kernel)
        assert [each.name for each in list_kernels(member)] == [kernel]


@pytest.mark.parametrize("name", EVERY)
def test_length_of_an_image_in_memory(name):
    data = (IMAGES / name).read_bytes()
    asked = []

    def read(offset, size):
        asked.append(offset + size)
        return (data + b"whatever follows")[offset : offset + size]

    assert image_length(read) == len(data)
    assert max(asked) <= len(data)


def test_length_of_text_counts_its_nul():
    data = text_image() * 100 + b"\0" + b"x" * 9999
    assert image_length(lambda at, size: data[at : at + size]) == data.index(b"\0") + 1
    endless = text_image()
    with pytest.raises(InputError, match="NUL"):
        image_length(lambda at, size: endless[at : at + size])


def test_a_length_that_cannot_be_is_refused():
    data = bytearray((IMAGES / "zstd.fatbin").read_bytes())
    data[8:16] = b"\xff" * 8
    with pytest.raises(InputError, match="claims"):
        image_length(lambda at, size: bytes(data[at : at + size]))
    cubin = bytearray((IMAGES / "sm_90.cubin").read_bytes())
    cubin[40:48] = b"\xff" * 7 + b"\0"
    with pytest.raises(InputError, match="claims"):
        image_length(lambda at, size: bytes(cubin[at : at + size]))


@pytest.mark.parametrize("cut", [0, 63, 64, 1000, 4000, -1])
def test_cut_cubins_are_refused(cut):
    data = (IMAGES / "sm_90.cubin").read_bytes()
    with pytest.raises(InputError):
        open_image(data[:cut])


def test_an_elf_file_for_another_machine_is_refused():
    data = bytearray((IMAGES / "sm_90.cubin").read_bytes())
    data[18:20] = b"\x3e\x00"
    with pytest.raises(InputError, match="machine 62"):
        open_image(bytes(data))
