"""The composer: object files, verifier, code generation, splicing, agent and maps in one run."""

from egpu.session.arenas import Arena
from egpu.session.cache import Way
from egpu.session.cost import SessionCost
from egpu.session.explain import Explanation
from egpu.session.launch_stacks import LaunchStack
from egpu.session.links import Link
from egpu.session.loadable import Object, ObjectProgram
from egpu.session.map_list import ListedMap, list_maps
from egpu.session.objects import Collection, combine
from egpu.session.options import Options, RingMemory
from egpu.session.pinned import PinnedMap, open_map
from egpu.session.ring import Ring, RingTotals
from egpu.session.session import Session
from egpu.session.starting import attach, run, start_idle
from egpu.session.twins import TwinReport
from egpu.session.variables import Globals
from egpu.session.views import Maps
from egpu.session.workload import IdleWorkload

__all__ = [
    "Arena",
    "Collection",
    "Explanation",
    "Globals",
    "IdleWorkload",
    "LaunchStack",
    "Link",
    "ListedMap",
    "Maps",
    "Object",
    "ObjectProgram",
    "Options",
    "PinnedMap",
    "Ring",
    "RingMemory",
    "RingTotals",
    "Session",
    "SessionCost",
    "TwinReport",
    "Way",
    "attach",
    "combine",
    "list_maps",
    "open_map",
    "run",
    "start_idle",
]
