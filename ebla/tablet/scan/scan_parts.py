"""What scans need of a store: at which txn they read, what they hold, and who reads ahead for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ebla.settings import Settings
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.life.loader import Loader
from ebla.tablet.scan.read_txns import ReadTxns
from ebla.tablet.scan.scanners import Scanners
from ebla.tablet.tables.events import Events
from ebla.tablet.write.open_state import OpenState

__all__ = ["ScanParts"]


@dataclass(frozen=True, slots=True)
class ScanParts:
    """The parts of a store that all of its scans share."""

    settings: Settings
    events: Events
    loader: Loader  # lets tablets be read
    state: OpenState  # whether the store is closed
    flusher: Flusher  # combines blocks in memory where readers find too many
    pins: Pins
    moments: ReadTxns
    scanners: Scanners
    pool: ThreadPoolExecutor  # reads long windows ahead
