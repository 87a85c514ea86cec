"""What agents are answered: each answer is worked out by the broker, on a worker thread."""

from __future__ import annotations

from collections.abc import Callable

from egpu.agent import channel
from egpu.agent.commands import ArenaLink
from egpu.agent.peer import Peer, device_of
from egpu.agent.protocol import Kind, Packet, encode
from egpu.agent.twin import Broker, KernelSeen, Refused, Twin, Unmatched
from egpu.errors import EgpuError


class Answers:
    """Asks the broker and sends what it says.  Whatever fails, an answer is sent: the workload
    waits for it.  An exception that is no EgpuError is passed on when that was done.

    ``problems`` gets a line for each failure; ``next_request`` gives the number of a new request.
    """

    def __init__(
        self, broker: Broker, problems: list[str], next_request: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._problems = problems
        self._next_request = next_request

    def open_arena(self, peer: Peer, packet: Packet) -> None:
        """To OPEN_ARENA: the arenas of a device, or why there are none."""
        number = packet.fields["arena"]
        try:
            link = ArenaLink(peer, number, self._next_request)
            setup = self._broker.open_device(peer.pid, device_of(packet), link)
            rows = channel.ring_rows(setup.rings)
            init = channel.init_image(setup.chunks)
            message = encode(
                Kind.ARENA,
                request=packet.request,
                texts=(rows,),
                device_size=setup.device_size,
                host_size=setup.host_size,
                init_size=len(init),
                arena=number,
                sm_slots=setup.sm_slots,
                allocations=setup.allocations,
                device_rings=setup.device_rings,
            )
            with channel.file_of("egpu-maps", init) as file:
                peer.send(message, (setup.host_fd, file))
        except EgpuError as error:
            self._problems.append(f"process {peer.pid}: no map memory: {error}")
            self._no_arena(peer, packet, str(error))
        except BaseException:
            self._no_arena(peer, packet, "internal error of the session")
            raise

    def _no_arena(self, peer: Peer, packet: Packet, reason: str) -> None:
        peer.send(
            encode(
                Kind.ARENA_REFUSED,
                request=packet.request,
                texts=(channel.reason(reason),),
                arena=packet.fields["arena"],
            )
        )

    def host_call(self, peer: Peer, packet: Packet) -> None:
        """To HOST_CALL: programs at the call have run, or could not."""
        try:
            self._broker.host_call(peer.host_call(packet))
        except (EgpuError, ValueError) as error:
            self._problems.append(f"process {peer.pid}: a program at a launch: {error}")
        finally:  # the workload goes on
            peer.send(encode(Kind.HOST_DONE, request=packet.request))

    def resolve(self, peer: Peer, packet: Packet, seen: KernelSeen) -> None:
        """To RESOLVE: a twin, why there is none, or that nothing asks for the kernel."""
        try:
            self._send_answer(peer, packet, self._broker.resolve(seen))
        except EgpuError as error:
            self._send_answer(peer, packet, Refused(str(error)))
        except BaseException:
            self._send_answer(peer, packet, Refused("internal error of the session"))
            raise
        self._broker.answered()

    def _send_answer(self, peer: Peer, packet: Packet, answer: Twin | Refused | Unmatched) -> None:
        request, epoch = packet.request, packet.fields["epoch"]
        match answer:
            case Unmatched():
                peer.send(encode(Kind.UNMATCHED, request=request, epoch=epoch))
            case Refused(reason=reason):
                peer.note_refusal(packet.fields["slot"], reason)
                peer.send(
                    encode(
                        Kind.REFUSED, request=request, texts=(channel.reason(reason),), epoch=epoch
                    )
                )
            case Twin():
                _send_twin(peer, request, epoch, answer)


def _send_twin(peer: Peer, request: int, epoch: int, twin: Twin) -> None:
    names = b"".join(name.encode() + b"\0" for name in twin.globals)
    # PTX is a C string to the driver; a cubin does not mind the byte.
    image = twin.image if twin.image.endswith(b"\0") else twin.image + b"\0"
    message = encode(
        Kind.TWIN,
        request=request,
        texts=(names, twin.globals_table.encode(), channel.patch_rows(twin.patches)),
        size=len(image),
        kernel_id=twin.kernel_id,
        hidden_offset=twin.hidden_offset,
        parameters=twin.parameters,
        globals_count=len(twin.globals),
        allow_occupancy=int(twin.allow_occupancy_loss),
        epoch=epoch,
    )
    with channel.file_of("egpu-twin", image) as file:
        peer.send(message, (file,))
