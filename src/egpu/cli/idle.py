"""``egpu run --idle``: a workload with nothing attached, and the desk where `egpu attach` asks."""

from __future__ import annotations

import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from egpu.cli.attach import options_of
from egpu.cli.extras import Extras, Shown
from egpu.cli.live import follow
from egpu.cli.object_run import ObjectOutput
from egpu.cli.output import write_report
from egpu.cli.run import choose, write_object
from egpu.errors import EgpuError, InputError, VerifierError
from egpu.session import IdleWorkload, Options, Session, attach, start_idle, talk
from egpu.session.pins import runtime_directory
from egpu.tools.registry import new_tool

if TYPE_CHECKING:
    from egpu.session.talk import Answer

_LAST_S = 5.0  # how long one who has attached may take to fetch the report after the workload
_numbers = itertools.count()


def run_idle(argv: Sequence[str], options: Options, *, interval: float) -> int:
    """Run ``argv`` with nothing attached and answer `egpu attach` meanwhile; its exit code."""
    with start_idle(argv, options=options) as idle, _Desk(idle) as desk:
        click.echo(f"egpu: process {idle.pid} waits for `egpu attach {idle.pid}`", err=True)
        status = follow(idle, desk.tend, interval_s=interval)
        desk.see_off()
        return status


class _Shown:
    """A session and what of it was written but not yet fetched."""

    def __init__(self, session: Session, program: str, btf: Path | None, *, as_json: bool) -> None:
        entry, _ = choose(program, btf)
        self.session = session
        self._text = io.StringIO()
        self._as_json = as_json
        self._object = self._tool = None
        if entry is None:
            self._object = ObjectOutput(session, self._text, as_json=as_json)
        else:
            self._tool = Shown(new_tool(entry), Extras(), None)

    def collect(self) -> str:
        """What is new."""
        if self._object is not None:
            self._object.collect()
        elif self._tool is not None:
            self._tool.collect(self.session)
        return self._taken()

    def finish(self) -> str:
        """Take the programs out; what is new, and the report."""
        session = self.session
        if session.running():
            session.detach()
        else:
            session.wait()
        self._text.write(self.collect())
        if self._object is not None:
            write_object(self._object.report(), self._text, as_json=self._as_json)
        elif self._tool is not None:
            write_report(self._tool.report(session), self._text, as_json=self._as_json)
        return self._taken()

    def _taken(self) -> str:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text


class _Desk:
    """Answers `egpu attach` for one idle workload."""

    def __init__(self, idle: IdleWorkload) -> None:
        self._idle = idle
        self._lock = threading.Lock()
        self._shown: _Shown | None = None
        self._owner = 0  # the process that has attached
        folder = runtime_directory() / "idle"
        talk.remove_stale(folder)
        path = folder / f"{os.getpid()}-{next(_numbers)}"
        self._listener = talk.Listener(path, self._answer)

    def tend(self) -> None:
        """Take out what a process has attached that is gone."""
        with self._lock:
            if self._shown is not None and not Path(f"/proc/{self._owner}").exists():
                self._release()

    def see_off(self) -> None:
        """The workload has ended: let who has attached fetch the report."""
        end = time.monotonic() + _LAST_S
        while time.monotonic() < end:
            self.tend()
            if self._shown is None:
                return
            time.sleep(0.02)

    def close(self) -> None:
        """Stop answering, and take out what is attached."""
        self._listener.close()
        with self._lock:
            self._release()

    def __enter__(self) -> _Desk:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _release(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.session.close()

    def _answer(self, request: Mapping[str, Any], asking: int) -> Answer:
        acts: dict[str, Callable[[Mapping[str, Any], int], Answer]] = {
            "processes": self._processes,
            "attach": self._attach,
            "collect": self._collect,
            "detach": self._detach,
        }
        act = acts.get(str(request.get("do")))
        if act is None:
            raise InputError(f"no such request: {request.get('do')!r:.40}")
        with self._lock:
            try:
                return act(request, asking)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"malformed request: {error!r:.100}") from error

    def _processes(self, _request: Mapping[str, Any], _asking: int) -> Answer:
        pids = [*self._idle.pids(), os.getpid()]
        return {"pids": pids, "attached": self._shown is not None}, b""

    def _attach(self, request: Mapping[str, Any], asking: int) -> Answer:
        if self._shown is not None:
            raise InputError(f"process {self._owner} has attached programs already")
        btf = None if request["btf"] is None else Path(request["btf"])
        try:
            _, loaded = choose(request["program"], btf)
            session = attach(self._idle, programs=loaded, options=options_of(request["options"]))
        except VerifierError as error:  # with its log, which the wire has no field for
            raise InputError(str(error)) from error
        try:
            self._shown = _Shown(session, request["program"], btf, as_json=bool(request["json"]))
        except EgpuError:
            session.close()
            raise
        self._owner = asking
        return {}, b""

    def _collect(self, _request: Mapping[str, Any], _asking: int) -> Answer:
        text = self._of_owner().collect()
        return {"running": self._idle.running()}, text.encode("utf-8", "surrogateescape")

    def _detach(self, _request: Mapping[str, Any], _asking: int) -> Answer:
        text = self._of_owner().finish()
        self._release()
        return {}, text.encode("utf-8", "surrogateescape")

    def _of_owner(self) -> _Shown:
        if self._shown is None:
            raise InputError("nothing is attached")
        return self._shown
