"""A master as a process: who it is, what it listens on, and how its parts are wired.

RpcServer --Tell, KeepTransaction, AskMetadata--> KeptMetadata      every master, always
          --SendHeartbeat, clients' messages----> Term              the one that leads; the others say who does
Leadership --lease--> Term begins, ends

DIR/master.json    {"master": "7c9e...", "cluster": "51bb..."}
DIR/metadata/      METADATA files of this master
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from uuid import uuid4

import msgspec

from ebla.access.process_access import ProcessAccess
from ebla.access.tls import Tls, TlsFiles, server_tls
from ebla.clock import Clock, SystemClock
from ebla.coordination.address import open_coordination
from ebla.coordination.service import CoordinationService, Lease
from ebla.errors import Corruption, RequestError, StaleRoute, StoreError
from ebla.master.calls import HEARTBEAT_METHODS, SendHeartbeat
from ebla.master.durable import MetadataDurable
from ebla.master.master import Master
from ebla.master.messages import HeartbeatReply
from ebla.master.settings import MasterSettings
from ebla.master_server.catalog_service import CatalogService
from ebla.master_server.cluster_care import ClusterCare, GoneLogs, verify_cluster
from ebla.master_server.cluster_garbage import ClusterGarbage
from ebla.master_server.cluster_gates import ClusterGates
from ebla.master_server.cluster_jobs import ClusterJobs
from ebla.master_server.cluster_report import cluster_metrics
from ebla.master_server.cluster_snapshots import ClusterSnapshots
from ebla.master_server.cluster_tables import ClusterTables
from ebla.master_server.leadership import Leadership
from ebla.master_server.messenger import Messenger
from ebla.master_server.system_views import SystemViews
from ebla.master_server.term import Term
from ebla.metadata.server.naming import TableNaming
from ebla.metadata_rpc.calls import METADATA_METHODS, AskMetadata, KeepTransaction, Tell
from ebla.metadata_rpc.kept_metadata import KeptMetadata
from ebla.metadata_rpc.master_list import MasterList
from ebla.rpc.caller import Caller
from ebla.rpc.metrics_port import told_to_prometheus
from ebla.rpc.server import RpcServer
from ebla.rpc.serving.service_handlers import ServiceHandlers
from ebla.rpc.wire.messages import SERVICE_METHODS
from ebla.service.cluster_place import mark_root
from ebla.service.prometheus import family
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.recovery.identity import own_identity
from ebla.tablet.recovery.server_record import read_bound

__all__ = ["MasterProcess", "open_process"]

_FILE = "master.json"
_LOCK = "LOCK"

_log = logging.getLogger(__name__)


@contextmanager
def open_process(
    coordination: str,
    root: Path,
    data: Path,
    *,
    host: str,
    port: int,
    auth: bool = False,
    tls: TlsFiles | None = None,
    peer_port: int = 0,
    metrics: tuple[str, int] | None = None,
) -> Iterator[MasterProcess]:
    """Make a master of what a command is told; it is closed in the end. `metrics` is where it tells its metrics."""
    clock = SystemClock()
    checked = None if tls is None else server_tls(tls)
    with open_coordination(coordination, clock) as service:
        process = MasterProcess(
            service, data, root, host=host, port=port, clock=clock, auth=auth, tls=checked, peer_port=peer_port
        )
        try:
            with told_to_prometheus(metrics, process.metrics, data) as address:
                process.metrics_address = address
                yield process
        finally:
            process.close()


class _Who(msgspec.Struct, frozen=True):
    master: str
    cluster: str


def _new_id() -> str:
    return str(uuid4())


class MasterProcess:
    """A master, from the construction, after which it serves, to `close`."""

    def __init__(
        self,
        coordination: CoordinationService,
        data: Path,
        root: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        master_settings: MasterSettings | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        auth: bool = False,
        tls: Tls | None = None,
        peer_port: int = 0,
    ) -> None:
        """`data` is its own directory; `root` that of the cluster's fragments and logs, which clients are told.

        With `auth`, everybody who asks for something shows a token. `tls` has the certificate that it shows itself;
        `peer_port` is then where other processes of the cluster ask.
        """
        # Set once.
        self._coordination = coordination
        self._clock = clock or SystemClock()
        self._settings = master_settings or MasterSettings(is_log_shared=True)
        self.cluster = own_identity(coordination, _new_id, read_only=False).cluster
        self._files = LocalFiles(data)
        try:
            data.mkdir(parents=True, exist_ok=True)
            self._lock = self._files.lock(_LOCK)
        except OSError as error:
            raise StoreError(f"the data directory {data} cannot be used: {error}: mend that") from error
        try:
            self._access = ProcessAccess(coordination, data, auth=auth, tls=tls)
            credentials = self._access.credentials(lambda: self.uuid)
            self.uuid = self._who(data, tls.uuid if tls is not None else None)
            if tls is not None:
                tls.check_is_of(self.uuid, data)
            self._masters = MasterList(coordination, self._clock)
            self._metadata = KeptMetadata(
                coordination,
                self._files,
                self._clock,
                own=self.uuid,
                masters=self._masters.uuids,
                address_of=self._masters.address_of,
                new_id=_new_id,
                credentials=credentials,
            )
            self._messenger = Messenger(self.uuid, credentials)
            self._term_lock = threading.Lock()
            self._term: Term | None = None  # guarded by _term_lock
            settings = settings or Settings()
            root_files = LocalFiles(root)
            mark_root(root, self.cluster)
            garbage = ClusterGarbage(
                coordination, self._metadata, self._files, root_files, self._clock, settings.garbage_age_seconds
            )
            self._gates = ClusterGates(self._metadata, self.uuid, credentials)
            self._service = CatalogService(
                self._leading,
                settings,
                SystemViews(self._files, self._clock),
                garbage,
                partial(verify_cluster, coordination, self._metadata, self._files, root_files),
                ClusterSnapshots(coordination, self._clock),
                ClusterJobs(coordination, self._metadata, root_files, self._clock, self._gates),
                ClusterTables(self._metadata, root_files, self._clock, self._gates, garbage, _new_id),
            )
            self._care = ClusterCare(
                garbage, GoneLogs(root_files, coordination, self._metadata, self._clock), settings.garbage_round_seconds
            )
            self._leadership = Leadership(coordination, self.uuid, self._gained, self._lost)
            self._handlers = ServiceHandlers(
                self._service, self._service.locate, str(root), lambda: self._masters.addresses(), self.cluster
            )
            self._server = RpcServer(
                SERVICE_METHODS | HEARTBEAT_METHODS | METADATA_METHODS,
                {
                    **self._handlers.by_type(),
                    SendHeartbeat: self._heartbeat,
                    Tell: lambda request, caller: self._metadata.told(request),
                    KeepTransaction: lambda request, caller: self._metadata.keep(request),
                    AskMetadata: lambda request, caller: self._metadata.asked(request),
                },
                host=host,
                port=port,
                name=self.uuid,
                guard=self._access.guard(self._handlers.name_of),
                tls=tls,
                peer_port=peer_port,
            )
            self.metrics_address = ""
            self.address = self._server.address
            self._masters.register(self.uuid, self.address)
            self._metadata.start()
            self._care.start(self._leading)
            self._leadership.start()
        except BaseException:
            self._lock.release()
            raise

    def _who(self, data: Path, new: str | None) -> str:
        """Return who this master is: whoever it was before, or somebody new."""
        try:
            who = msgspec.json.decode(self._files.read(_FILE), type=_Who)
        except FileNotFoundError:
            who = _Who(new or _new_id(), self.cluster)
            with self._files.create(_FILE) as file:
                file.write(msgspec.json.encode(who))
                file.sync()
            self._files.sync_directory("")
        except msgspec.MsgspecError as error:
            raise Corruption(str(data / _FILE), f"it does not say who the master is: {error}") from error
        if who.cluster != self.cluster:
            raise RequestError(
                f"{data} belongs to the cluster {who.cluster}, and this is {self.cluster}: start the master with the "
                "right one, or with an empty directory"
            )
        return who.master

    def close(self) -> None:
        """Give the lease up, answer what is under way, and leave."""
        self._care.stop()
        self._leadership.close()
        self._server.close()
        self._service.close()
        self._handlers.close()
        self._messenger.close()
        self._gates.stop()
        self._metadata.close()
        self._access.close()
        self._lock.release()

    def metrics(self) -> str:
        """Return what Prometheus is told: what the cluster has, of the master that leads, and the calls to this one."""
        from ebla import __version__

        term = self._term if self.is_leading else None
        labels = {"role": "master", "uuid": self.uuid, "version": __version__}
        lines = [
            *family("info", "What this process is; always 1.", [(labels, 1)]),
            *cluster_metrics(term),
            *family(
                "metadata_transactions_total",
                "Transactions of METADATA that this master has made durable.",
                [({}, self._metadata.transactions_written)],
            ),
            *self._server.metric_lines(),
            *self._access.metric_lines(),
        ]
        return "\n".join(lines) + "\n"

    # --- leading ---

    @property
    def is_leading(self) -> bool:
        """Whether this master leads."""
        term = self._term
        return term is not None and not term.is_over

    def _leading(self) -> Term:
        term = self._term
        if term is None or term.is_over:
            leader = self._leadership.leader
            address = self._masters.address_of(leader) if leader and leader != self.uuid else None
            where = f"ask the one that does, at {address}" if address else "none does at this moment, ask again"
            raise StaleRoute(f"the master at {self.address} does not lead: {where}")
        return term

    def _gained(self, lease: Lease) -> None:
        naming = TableNaming(self._coordination, self._clock)
        durable = MetadataDurable(self._metadata, self._metadata.store, naming, partial(read_bound, self._coordination))
        master = Master(
            self.cluster,
            lease.epoch,
            durable.load(),
            self._clock,
            new_id=_new_id,
            random=Random(),
            settings=self._settings,
        )
        term = Term(
            master, durable, lease, self._coordination, self._clock, self._messenger.send, self._leadership.resign
        )
        with self._term_lock:
            self._term = term
        term.start()

    def _lost(self, reason: str) -> None:
        with self._term_lock:
            term, self._term = self._term, None
        if term is not None:
            term.stop(reason)

    def _heartbeat(self, request: SendHeartbeat, caller: Caller) -> HeartbeatReply:
        term = self._leading()
        return term.run(term.master.heartbeat(request.heartbeat))
