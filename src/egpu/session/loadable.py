"""``egpu.Object``: an object file as its user handles it, before, while and after it runs."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from egpu.bpf import program as bpf
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.object import read_object
from egpu.errors import InputError
from egpu.maps import MapCopy, MapView, OuterView, UpdateFlag
from egpu.session.arenas import Arenas
from egpu.session.host_maps import HostMap
from egpu.session.kernel_types import kernel_types
from egpu.session.object_maps import FollowingHost, ObjectMaps
from egpu.session.pushed_maps import PushedMap
from egpu.session.variables import Globals
from egpu.session.views import View, view_of

if TYPE_CHECKING:
    from egpu.session.links import Link
    from egpu.session.session import Session


class ObjectProgram:
    """One program of an object.  Programs are attached when the object starts to run, unless
    ``detach`` was called before."""

    def __init__(self, owner: Object, spec: bpf.Program) -> None:
        self._owner = owner
        self._spec = spec
        self.wanted = True

    @property
    def name(self) -> str:
        """The name of its function."""
        return self._spec.name

    @property
    def section(self) -> str:
        """Where it is attached, as ``SEC()`` says it."""
        return self._spec.section

    @property
    def attached(self) -> bool:
        """Whether launches run it, or will once the object runs."""
        link = self._owner.link(self.name)
        return self.wanted if link is None else link.attached

    def attach(self) -> None:
        """Have it run from the next launch on; see ``Link.attach``."""
        link = self._owner.link(self.name)
        if link is None:
            self.wanted = True
        else:
            link.attach()

    def detach(self) -> None:
        """Take it out from the next launch on; see ``Link.detach``."""
        link = self._owner.link(self.name)
        if link is None:
            self.wanted = False
        else:
            link.detach()

    def __repr__(self) -> str:
        return f"<ObjectProgram {self.name} {self.section!r}>"


class Object:
    """The programs, maps and global variables of an object file.

    ``source`` is its path, or what ``read_object`` gave; ``btf`` a file with the kernel types that
    it is fitted to (default: those of the running kernel).  What is set in ``maps``, ``data``,
    ``bss`` and ``rodata`` before ``egpu.run(argv, programs=object)`` is there before the first
    probed launch (``.rodata`` when programs are verified and compiled).  While the session is open
    they are the session's own; once it is closed they show again what the next run begins with.

    Modules that ``egpu gen`` writes have a subclass for one object file: ``FILE`` beside the
    module, which is ``source`` if none is given, and must have the digest ``SHA256``; ``RECORDS``
    are classes for its structs.

    Raises InputError or UnsupportedError as ``read_object`` does.
    """

    FILE: ClassVar[str] = ""
    SHA256: ClassVar[str] = ""
    RECORDS: ClassVar[Mapping[tuple[str, tuple[str, ...]], Callable[..., object]]] = {}

    def __init__(
        self,
        source: str | Path | bpf.Object | None = None,
        *,
        btf: str | Path | None = None,
    ) -> None:
        if source is None:
            source = self._beside_module()
        if isinstance(source, bpf.Object):
            self._spec = source
        else:
            self._spec = load(source, self.SHA256, btf=btf)
        for spec in self._spec.maps if self.RECORDS else ():
            if spec.btf is not None:
                spec.btf.records = self.RECORDS
        names = tuple(spec.name for spec in self._spec.maps)
        self._arenas = Arenas(self._spec.maps, names, frozenset(), 0, compiled=False)
        self._session: Session | None = None
        self._base = 0
        self._links: dict[str, str] = {}
        self._programs = {
            program.name: ObjectProgram(self, program) for program in self._spec.programs
        }
        self._views: dict[str, View] = {}

    @property
    def name(self) -> str:
        """The file's name."""
        return self._spec.name

    def _beside_module(self) -> Path:
        module = getattr(sys.modules.get(type(self).__module__), "__file__", None)
        if not self.FILE or module is None:
            raise InputError("no object file was named", hint="give its path")
        return Path(module).with_name(self.FILE)

    @property
    def programs(self) -> Mapping[str, ObjectProgram]:
        """The programs by name."""
        return dict(self._programs)

    @property
    def maps(self) -> Mapping[str, Any]:
        """The maps by name: ``MapView``, ``HashView``, ``ThreadView``, or ``Ring`` once it runs."""
        return ObjectMaps(self.name, [spec.name for spec in self._spec.maps], self.view)

    @property
    def rodata(self) -> Globals:
        """The variables of ``.rodata``: ``const volatile`` ones."""
        return self._globals(".rodata")

    @property
    def data(self) -> Globals:
        """The variables of ``.data``: those with a value."""
        return self._globals(".data")

    @property
    def bss(self) -> Globals:
        """The variables of ``.bss``: those that begin as zero."""
        return self._globals(".bss")

    @property
    def session(self) -> Session | None:
        """The session in which it runs, None before and after."""
        session = self._session
        return None if session is None or session.closed else session

    def attach(self) -> None:
        """Attach every program; while it runs, from the next launch on."""
        self._all(attached=True)

    def detach(self) -> None:
        """Take every program out; while it runs, from the next launch on."""
        self._all(attached=False)

    def _all(self, *, attached: bool) -> None:
        session = self.session
        if session is not None:
            session.change_links(tuple(self._links.values()), attached=attached)
        for program in self._programs.values() if session is None else ():
            program.wanted = attached

    def __repr__(self) -> str:
        return f"<Object {self.name}>"

    # ------------------------------------------------------------------ for the session

    def bound(self) -> bpf.Object:
        """What runs: the file with the global variables as they are set now.

        InputError while it runs.
        """
        if self.session is not None:
            raise InputError("runs already", where=self.name, hint="close its session first")
        maps = tuple(self._with_contents(i, spec) for i, spec in enumerate(self._spec.maps))
        programs = tuple(replace(program, maps=maps) for program in self._spec.programs)
        return replace(self._spec, maps=maps, programs=programs)

    def prepare(self, arenas: Arenas, base: int) -> None:
        """Hand what was set in maps to a session's arenas, where they begin at index ``base``."""
        for index, spec in enumerate(self._spec.maps):
            rows = list(self._arenas.initial.of(index).items())
            if rows and not spec.read_only:
                HostMap(arenas, base + index).update(rows, UpdateFlag.ANY)
            self._arenas.initial.give(index, arenas.initial, base + index)
        arenas.frozen |= {base + index for index in self._arenas.frozen}

    def bind(self, session: Session, base: int, links: Sequence[str]) -> None:
        """It runs in ``session`` from now on, ``links`` being its programs' links."""
        self._session, self._base = session, base
        self._links = dict(zip(self._programs, links, strict=True))

    def link(self, name: str) -> Link | None:
        """The link of program ``name`` while it runs."""
        session = self.session
        return None if session is None else session.links[self._links[name]]

    def _with_contents(self, index: int, spec: bpf.MapSpec) -> bpf.MapSpec:
        found = self._arenas.initial.of(index).get(bytes(4))
        if found is None or not spec.name.startswith("."):
            return spec
        return replace(spec, initial=found[0])

    def _globals(self, section: str) -> Globals:
        def find() -> MapView:
            view = self.maps.get(section)
            if not isinstance(view, MapView):
                raise AttributeError(f"{self.name} has no {section}")
            return view

        find()
        return Globals(find)

    def view(self, index: int) -> View:
        """The view of a map, which follows the object into and out of sessions."""
        spec = self._spec.maps[index]
        storage = traits(spec.type).storage
        if storage in (Storage.RING, Storage.STACKS):
            session = self.session
            if session is None:
                held = "a ring has records" if storage is Storage.RING else "there are stacks"
                raise InputError(f"{held} while its object runs", where=f"map {spec.name}")
            return session.maps[tuple(session.maps)[self._base + index]]
        if traits(spec.type).storage is Storage.MAPS:
            return OuterView(spec, tuple(each.name for each in self._spec.maps), self.maps)
        if spec.name not in self._views:
            host = FollowingHost(lambda: self._host(index))
            copies = lambda: self._copies(index)  # noqa: E731 - asked for each time
            self._views[spec.name] = view_of(spec, copies, host, host)
        return self._views[spec.name]

    def _copies(self, index: int) -> tuple[MapCopy, ...]:
        arenas, base = self._now()
        return arenas.copies(base + index)

    def _host(self, index: int) -> PushedMap:
        arenas, base = self._now()
        return PushedMap(arenas, base + index)

    def _now(self) -> tuple[Arenas, int]:
        """The arenas that its maps are in now, and the index of the first."""
        session = self.session
        return (self._arenas, 0) if session is None else (session.arenas, self._base)


def load(source: str | Path, sha256: str = "", *, btf: str | Path | None = None) -> bpf.Object:
    """Read an object file, its CO-RE relocations solved by the types of ``btf`` or else of the
    running kernel; InputError that names it if it cannot be read, or has another digest than
    ``sha256``."""
    path = Path(source)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(
            "is not the object whose types were written",
            where=str(path),
            hint="run `egpu gen` again",
        )
    kernel = kernel_types(None if btf is None else Path(btf))
    return read_object(data, path.name, kernel=kernel)
