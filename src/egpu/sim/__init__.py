"""The simulated device: kernels from PTX on numpy, and the server behind the stand-in driver.

Exact for what it implements, and it refuses the rest by name.
"""

from egpu.sim.executor import run_executor
from egpu.sim.faults import FaultKind, SimulatedFault
from egpu.sim.folder import private_folder
from egpu.sim.machine import LaunchReport, Machine
from egpu.sim.memory import DeviceMemory
from egpu.sim.server import Server, SimulatedDevice, driver_directory

__all__ = [
    "DeviceMemory",
    "FaultKind",
    "LaunchReport",
    "Machine",
    "Server",
    "SimulatedDevice",
    "SimulatedFault",
    "driver_directory",
    "private_folder",
    "run_executor",
]
