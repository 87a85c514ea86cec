"""What is off unless somebody asks for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from egpu.agent.twin import DeviceInfo, KernelSeen, Refused, Twin
from egpu.bpf.object import read_object
from egpu.bpf.own_maps import with_own_maps
from egpu.errors import UnsupportedError
from egpu.image import list_kernels, open_image
from egpu.maps import plan
from egpu.session import attached, splicing
from egpu.session.arrivals import verify_all
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.broker import SessionBroker
from egpu.session.cache import TwinCache, Way
from egpu.session.twins import TwinBuilder
from egpu.verifier import verify

ROOT = Path(__file__).resolve().parents[3]
PROBES = ROOT / "tests" / "gpu" / "probes"
TOOLS = ROOT / "src" / "egpu" / "tools"
CUBIN = next(iter(sorted((ROOT / "tests" / "unit" / "images").glob("*sm_90*.cubin"))))


KERNELCOUNT = TOOLS / "kernelcount" / "kernelcount.bpf.o"


def builder(machine_code, path=KERNELCOUNT, *, allow_occupancy_loss=False, cache=None):
    obj = read_object(path.read_bytes(), path.name)
    return TwinBuilder(
        ProbeSet([verify(program) for program in obj.programs]),
        Assembler(find_ptxas()),
        cache,
        lambda device: plan(obj.maps, device.sm_count),
        allow_occupancy_loss=allow_occupancy_loss,
        machine_code=machine_code,
    )


def test_machine_code():
    data = CUBIN.read_bytes()
    kernel = list_kernels(open_image(data).members[0])[0].name
    seen = KernelSeen(1, DeviceInfo(0, 9, 0, 132, "test"), kernel, 1, 1, image=lambda: data)
    refused = builder(machine_code=False).resolve(seen)
    assert isinstance(refused, Refused)
    assert "only machine code" in refused.reason
    assert refused.reason.endswith("or --machine-code")
    if find_ptxas() is None:
        pytest.skip("no ptxas: the probes cannot be assembled")
    twin = builder(machine_code=True).resolve(seen)
    assert isinstance(twin, Twin)
    assert twin.image.startswith(b"\x7fELF")


IMAGES = ROOT / "tests" / "unit" / "images"
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="the probes cannot be assembled")


def way_of(name, *, machine_code, arch=90, allow_occupancy_loss=False):
    """How a kernel of the image ``name`` gets its probes on a device of ``arch``."""
    data = (IMAGES / name).read_bytes()
    device = DeviceInfo(0, arch // 10, arch % 10, 132, "test")
    made = builder(machine_code, allow_occupancy_loss=allow_occupancy_loss)
    twin = made.resolve(KernelSeen(1, device, "add", 1, 1, image=lambda: data))
    assert isinstance(twin, Twin), twin
    (report,) = made.reports()
    return report.way


@needs_ptxas
@pytest.mark.parametrize("name", ["zstd.fatbin", "plain.fatbin", "machine_code.fatbin"])
def test_machine_code_comes_before_ptx(name):
    assert way_of(name, machine_code=True) is Way.MACHINE_CODE


@needs_ptxas
def test_ptx_where_no_machine_code_is_asked_for_or_fits():
    assert way_of("zstd.fatbin", machine_code=False) is Way.PTX
    assert way_of("kernels.ptx", machine_code=True) is Way.PTX
    # A device of sm_103 runs no cubin of sm_90, and the PTX for it.
    assert way_of("zstd.fatbin", machine_code=True, arch=103) is Way.PTX


@needs_ptxas
def test_ptx_where_the_machine_code_is_refused(monkeypatch):
    def refuse(*_):
        raise UnsupportedError("this kernel")

    monkeypatch.setattr(splicing, "splice_sass", refuse)
    assert way_of("zstd.fatbin", machine_code=True) is Way.PTX
    data = (IMAGES / "machine_code.fatbin").read_bytes()
    seen = KernelSeen(1, DeviceInfo(0, 9, 0, 132, "test"), "add", 1, 1, image=lambda: data)
    refused = builder(machine_code=True).resolve(seen)
    assert isinstance(refused, Refused)
    assert refused.reason == "not supported: this kernel"


@needs_ptxas
@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.parametrize("name", ["zstd.fatbin", "machine_code.fatbin"])
def test_ptx_where_the_machine_code_costs_blocks(monkeypatch, name, loss):
    """Unless that is allowed, or there is no PTX: whether the launch fits is the agent's to say."""
    splice = splicing.splice_sass
    monkeypatch.setattr(splicing, "splice_sass", lambda *rest: replace(splice(*rest), registers=33))
    by_ptx = name == "zstd.fatbin" and not loss
    expected = Way.PTX if by_ptx else Way.MACHINE_CODE
    assert way_of(name, machine_code=True, allow_occupancy_loss=loss) is expected


@needs_ptxas
@pytest.mark.parametrize("name", ["block_exits", "leaving"])
def test_hash_maps_in_machine_code(name):
    """One lane of each group works on them at exits, or each for itself."""
    data = (IMAGES / "machine_code.fatbin").read_bytes()
    obj = read_object((PROBES / f"{name}.bpf.o").read_bytes(), name)
    programs = [with_own_maps(program) for program in obj.programs]
    maps = max((program.maps for program in programs), key=len)
    made = TwinBuilder(
        ProbeSet(verify_all([replace(program, maps=maps) for program in programs])),
        Assembler(find_ptxas()),
        None,
        lambda device: plan(maps, device.sm_count),
        allow_occupancy_loss=True,
        machine_code=True,
    )
    seen = KernelSeen(1, DeviceInfo(0, 9, 0, 132, "test"), "add", 1, 1, image=lambda: data)
    answer = made.resolve(seen)
    assert isinstance(answer, Twin), answer
    assert [report.way for report in made.reports()] == [Way.MACHINE_CODE]


def compilations(monkeypatch, result=None):
    """The programs that are compiled from now on, in turn; ``result``: what is raised instead."""
    done, compile_probe = [], attached.compile_probe

    def noted(verified, **options):
        done.append(verified.program.name)
        if result is not None:
            raise result
        return compile_probe(verified, **options)

    monkeypatch.setattr(attached, "compile_probe", noted)
    return done


def seen_of(name, kernel="add", *, captured=False):
    data, device = (IMAGES / name).read_bytes(), DeviceInfo(0, 9, 0, 132, "test")
    return KernelSeen(1, device, kernel, 1, 1, captured=captured, image=lambda: data)


@needs_ptxas
@pytest.mark.parametrize(
    ("name", "machine_code"),
    [("zstd.fatbin", True), ("plain.fatbin", True), ("plain.fatbin", False)],
)
def test_programs_are_compiled_before_a_kernel_is_asked_for(monkeypatch, name, machine_code):
    done, made = compilations(monkeypatch), builder(machine_code)
    made.prepare()
    assert len(done) == 2
    made.prepare()  # of another process
    assert isinstance(made.resolve(seen_of(name)), Twin)
    assert len(done) == 2
    assert made.reports()[0].image_ms > 0


@needs_ptxas
def test_once_kernels_are_asked_for_only_what_they_need_is_compiled(monkeypatch):
    done, made = compilations(monkeypatch), builder(machine_code=True)
    assert isinstance(made.resolve(seen_of("zstd.fatbin", captured=True)), Twin)
    assert len(done) == 2
    made.prepare()
    assert len(done) == 2


def test_what_cannot_be_compiled_is_said_of_the_kernels(monkeypatch):
    done = compilations(monkeypatch, UnsupportedError("this program"))
    made = builder(machine_code=False)
    made.prepare()
    assert len(done) == 2
    refused = made.resolve(seen_of("plain.fatbin"))
    assert isinstance(refused, Refused)
    assert "this program" in refused.reason


@needs_ptxas
def test_a_session_compiles_when_a_process_begins_and_keeps_twins_behind_its_answers(
    monkeypatch, tmp_path
):
    done = compilations(monkeypatch)
    cache = TwinCache(tmp_path)
    made = builder(machine_code=True, cache=cache)
    broker = SessionBroker(made, None, None)
    broker.process_started(1, "train")
    assert len(done) == 2
    answer = broker.resolve(seen_of("zstd.fatbin"))
    assert isinstance(answer, Twin)
    assert list(tmp_path.iterdir()) == []
    broker.answered()
    assert len(list(tmp_path.iterdir())) == 1
    again = builder(machine_code=True, cache=cache)
    assert again.resolve(seen_of("zstd.fatbin")) == answer
    assert again.reports()[0].cached
    assert len(done) == 2


@needs_ptxas
def test_layouts_are_made_and_programs_named_once(monkeypatch, tmp_path):
    """Twins are kept by both: a launch should wait for neither."""
    obj = read_object(KERNELCOUNT.read_bytes(), KERNELCOUNT.name)
    probes, devices, named = ProbeSet([verify(each) for each in obj.programs]), [], []

    def layout(device):
        devices.append(device.sm_count)
        return plan(obj.maps, device.sm_count)

    made = TwinBuilder(
        probes,
        Assembler(find_ptxas()),
        TwinCache(tmp_path),
        layout,
        allow_occupancy_loss=False,
        machine_code=True,
    )
    made.prepare()
    monkeypatch.setattr(attached.hashlib, "sha256", named.append)
    kept = [probes.fingerprint(item) for item in probes.attachments]
    monkeypatch.undo()
    assert named == []
    assert len(set(kept)) == 2
    first = seen_of("zstd.fatbin")
    for device in (first.device, first.device, replace(first.device, sm_count=78)):
        assert isinstance(made.resolve(replace(first, device=device)), Twin)
    assert devices == [132, 78]
