"""Reaching the workload: wire, server, launch. Importing starts nothing."""

from egpu.agent.commands import OPERATE_KERNEL, ArenaLink
from egpu.agent.launch import agent_environment, agent_library, launch
from egpu.agent.protocol import Reason
from egpu.agent.server import Server
from egpu.agent.twin import (
    ArenaSetup,
    Broker,
    DeviceInfo,
    HostCall,
    ImageSeen,
    KernelSeen,
    KernelStats,
    ProcessStats,
    Refused,
    SlotStats,
    Twin,
    TwinState,
    Unmatched,
)

__all__ = [
    "OPERATE_KERNEL",
    "ArenaLink",
    "ArenaSetup",
    "Broker",
    "DeviceInfo",
    "HostCall",
    "ImageSeen",
    "KernelSeen",
    "KernelStats",
    "ProcessStats",
    "Reason",
    "Refused",
    "Server",
    "SlotStats",
    "Twin",
    "TwinState",
    "Unmatched",
    "agent_environment",
    "agent_library",
    "launch",
]
