"""What goes wrong in a schedule, and what people and masters do to the tablets meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.replication.simulation import SimulatedServer, Simulation


class Faults:
    """Strikes at random moments until it is stopped."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._kinds = (
            (self._crash, 10),
            (self._crash_leader, 8),
            (self._pause, 6),
            (self._pause_leader, 6),
            (self._cut, 8),
            (self._cut_one_way, 8),
            (self._cut_off_metadata, 4),
            (self._metadata_away, 3),
            (self._heal, 8),
            (self._clock_jump, 4),
            (self._restart_master, 2),
            (self._crash_all, 1),
            (self._wipe, 4),
        )

    def strike(self) -> None:
        """Do harm, and come again."""
        simulation = self._simulation
        if not simulation.has_faults:
            return
        kinds, weights = zip(*self._kinds, strict=True)
        simulation.random.choices(kinds, weights)[0]()
        simulation.at(simulation.random.expovariate(2.5), self.strike)

    def stop(self) -> None:
        """Mend everything."""
        simulation = self._simulation
        simulation.tell(lambda: "--- everything is mended")
        simulation.has_faults = False
        simulation.cut.clear()
        for server in simulation.servers.values():
            server.paused_until = 0.0
            if server.machine is None:
                simulation.start(server)

    # --- servers ---------------------------------------------------------------------------------

    def _some(self) -> SimulatedServer:
        return self._simulation.random.choice(list(self._simulation.servers.values()))

    def _leading(self) -> SimulatedServer:
        simulation = self._simulation
        tablet = simulation.random.choice(list(simulation.table.tablets.values()))
        return simulation.servers[tablet.leader]

    def _crash(self) -> None:
        self._stop(self._some())

    def _crash_leader(self) -> None:
        self._stop(self._leading())

    def _stop(self, server: SimulatedServer) -> None:
        simulation = self._simulation
        if server.machine is not None:
            simulation.stop(server)
            back = 0.02 if simulation.random.random() < 0.3 else simulation.random.uniform(0.1, 3.0)
            simulation.at(back, self._start, server, server.run)

    def _start(self, server: SimulatedServer, run: int) -> None:
        if server.run == run and server.machine is None:
            self._simulation.start(server)

    def _crash_all(self) -> None:
        for server in self._simulation.servers.values():
            self._stop(server)

    def _wipe(self) -> None:
        """A server loses its disk; of every tablet, fewer logs are lost at a time than have to be in sync."""
        simulation = self._simulation
        server = self._some()
        if simulation.replicas == 1:
            return
        for tablet in simulation.table.tablets.values():
            lost = [
                member
                for member in tablet.in_sync
                if member.server == server.name or simulation.servers[member.server].log_id != member.log_id
            ]
            if len(lost) > tablet.counted - tablet.needed or len(lost) == len(tablet.in_sync):
                return
        self._stop(server)
        if server.machine is None:
            simulation.wiped += 1
            server.wipe(simulation.wiped + 1)
            server.wiped_at = simulation.now
            simulation.tell(lambda: f"{server.name} loses its disk")

    def _pause(self) -> None:
        self._stand_still(self._some())

    def _pause_leader(self) -> None:
        self._stand_still(self._leading())

    def _stand_still(self, server: SimulatedServer) -> None:
        simulation = self._simulation
        seconds = simulation.random.choice((0.1, 0.7, 1.6, 2.5)) * simulation.random.uniform(0.8, 1.2)
        server.paused_until = simulation.now + seconds
        simulation.tell(lambda: f"{server.name} stands still for {seconds:.2f} s")

    def _clock_jump(self) -> None:
        server = self._some()
        server.wall_offset += self._simulation.random.randrange(-2_000_000, 1_000_000)
        self._simulation.tell(lambda: f"the clock of {server.name} jumps")

    # --- network ---------------------------------------------------------------------------------

    def _cut(self) -> None:
        """A server and all others, or some of them, do not reach each other; leases and METADATA they may."""
        simulation = self._simulation
        one = self._some().name
        for other in (*simulation.servers, "clients", "master"):
            if simulation.random.random() < 0.7 and other != one:
                simulation.cut |= {(one, other), (other, one)}
        simulation.tell(lambda: f"{one} is cut off")
        self._heal_later()

    def _cut_one_way(self) -> None:
        simulation = self._simulation
        one = self._some().name
        others = [*simulation.servers, "clients", "metadata", "leases", "master"]
        for other in simulation.random.sample(others, simulation.random.randint(1, len(others))):
            if other != one:
                simulation.cut.add((one, other) if simulation.random.random() < 0.5 else (other, one))
        simulation.tell(lambda: f"{one} is cut off one way: {sorted(simulation.cut)}")
        self._heal_later()

    def _cut_off_metadata(self) -> None:
        simulation = self._simulation
        one = self._some().name
        for other in simulation.random.choice((("metadata",), ("leases",), ("metadata", "leases"))):
            simulation.cut |= {(one, other), (other, one)}
        simulation.tell(lambda: f"{one} does not reach METADATA or leases")
        self._heal_later()

    def _metadata_away(self) -> None:
        self._simulation.cut.add(("metadata", "metadata"))
        self._simulation.tell(lambda: "METADATA is away")
        self._heal_later()

    def _heal_later(self) -> None:
        self._simulation.at(self._simulation.random.uniform(0.2, 3.0), self._heal)

    def _heal(self) -> None:
        if self._simulation.cut:
            self._simulation.tell(lambda: "the network is whole")
            self._simulation.cut.clear()

    def _restart_master(self) -> None:
        self._simulation.restart_master()
