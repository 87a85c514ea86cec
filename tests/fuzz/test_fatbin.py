"""Image bytes of any kind: an image or one of egpu's own errors, and never a read outside."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egpu.errors import InputError, UnsupportedError
from egpu.image import choose_ptx, image_length, list_kernels, open_image, ptx_text, unpack
from egpu.image.model import MemberKind

IMAGES = Path(__file__).parents[1] / "unit" / "images"
SEEDS = {
    path.name: path.read_bytes()
    for path in sorted(IMAGES.iterdir())
    if path.suffix in (".fatbin", ".cubin", ".ptx")
}
BUDGET = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def exercise(data):
    """Everything that reads image bytes; only egpu's errors may come out."""
    try:
        length = image_length(lambda at, size: data[at : at + size])
        assert length >= 1
    except InputError:
        pass
    try:
        image = open_image(data)
    except InputError:
        return
    for member in image.members:
        assert 0 <= member.offset <= len(data)
        assert data[member.offset : member.offset + len(member.data)] == member.data
        try:
            assert len(unpack(member)) == member.size
            list_kernels(member)
            if member.kind is MemberKind.PTX:
                ptx_text(member)
        except InputError:
            continue
    try:
        list_kernels(choose_ptx(image, 90))
    except (InputError, UnsupportedError):
        return


@st.composite
def mutated(draw):
    """A real image with bytes overwritten (boundary values most of all), cut or extended."""
    data = bytearray(SEEDS[draw(st.sampled_from(sorted(SEEDS)))])
    words = st.sampled_from(
        [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63, 2**64 - 1]
    )
    # Headers and tables lie at the ends of these files: half of the changes go there.
    edges = st.one_of(st.integers(0, 255), st.integers(max(len(data) - 2600, 0), len(data) - 1))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.one_of(edges, st.integers(0, len(data) - 1)))
        width = draw(st.sampled_from([1, 2, 4, 8]))
        value = draw(st.one_of(words, st.integers(0, 2**64 - 1))) % (1 << 8 * width)
        data[at : at + width] = value.to_bytes(width, "little")
    cut = draw(st.one_of(st.none(), st.integers(0, len(data))))
    return bytes(data[:cut]) + draw(st.binary(max_size=16))


@BUDGET
@given(mutated())
def test_changed_images(data):
    exercise(data)


@BUDGET
@given(
    st.sampled_from(
        [b"", b"\x50\xed\x55\xba", b"\x7fELF\x02\x01", b"\xb1\x43\x62\x46", b".version "]
    ),
    st.binary(max_size=300),
)
def test_arbitrary_bytes(magic, data):
    exercise(magic + data)


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_every_prefix_of_a_header(name):
    data = SEEDS[name]
    for cut in (*range(200), *range(len(data) - 100, len(data))):
        exercise(data[:cut])
