"""The composer: object files, verifier, code generation, splicing, agent and maps in one run."""

from egpu.session.arenas import Arena, Maps, Ring, RingTotals
from egpu.session.cache import Way
from egpu.session.explain import Explanation
from egpu.session.links import Link
from egpu.session.loadable import Globals, Object, ObjectProgram
from egpu.session.map_list import ListedMap, list_maps
from egpu.session.objects import Collection, combine
from egpu.session.pinned import PinnedMap, open_map
from egpu.session.session import Options, Session, SessionCost, run
from egpu.session.twins import TwinReport

__all__ = [
    "Arena",
    "Collection",
    "Explanation",
    "Globals",
    "Link",
    "ListedMap",
    "Maps",
    "Object",
    "ObjectProgram",
    "Options",
    "PinnedMap",
    "Ring",
    "RingTotals",
    "Session",
    "SessionCost",
    "TwinReport",
    "Way",
    "combine",
    "list_maps",
    "open_map",
    "run",
]
