"""What splicing gives: an image with one instrumented kernel, ready to be assembled and loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstrumentedImage:
    """PTX text of a twin.

    ``hidden_offset``: byte offset of the launch block in the parameter block.
    ``parameters``: number of the kernel's own parameters (the launch block is one more).
    ``globals``: names of module variables whose addresses, as ``cuModuleGetGlobal`` gives them for
    the ORIGINAL module, the agent writes as u64s into the twin's variable ``globals_table`` (a
    ``.const`` array; "" when there are none) before the first launch.
    ``entry_sites``/``exit_sites``/``instruction_sites``: probed sites; ``uncovered`` says what is
    not probed ("trap at line 120", ...).
    """

    kernel: str
    text: str
    target: str  # the .target of the original, e.g. "sm_90a"
    hidden_offset: int
    parameters: int
    globals: tuple[str, ...]
    globals_table: str
    entry_sites: int
    exit_sites: int
    instruction_sites: int
    uncovered: tuple[str, ...]
