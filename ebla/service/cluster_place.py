"""Which directories are those of a cluster, so that nobody takes them for a store: whether it runs, or is down.

DIR/root, with DIR/cluster.json or DIR/master-1 ...     made by `ebla up`; cluster.json is there while it runs
ROOT/CLUSTER                                            the id of the cluster, written by its masters
"""

from __future__ import annotations

from pathlib import Path

from ebla.errors import RequestError, StoreError, Unavailable

__all__ = ["CLUSTER_FILE", "ROOT_MARK", "cluster_refusal", "is_cluster_directory", "is_down", "mark_root"]

CLUSTER_FILE = "cluster.json"
ROOT_MARK = "CLUSTER"


def is_cluster_directory(path: Path) -> bool:
    """Tell whether a cluster of this host is in a directory, up or down, or failed to start there."""
    if not (path / "root").is_dir():
        return False
    return (path / CLUSTER_FILE).is_file() or any(one.is_dir() for one in path.glob("master-[0-9]*"))


def cluster_refusal(path: Path) -> RequestError | None:
    """Return what to raise if a directory that is to be a store is that of a cluster, or its root; None if not."""
    if is_cluster_directory(path):
        return RequestError(f"{path} is the directory of a cluster, not of a store: {_way(path)}")
    above = path.absolute().parent
    if path.name == "root" and is_cluster_directory(above):
        return RequestError(f"{path} is the root of the cluster in {above}, not a store: {_way(above)}")
    if (path / ROOT_MARK).is_file():
        return RequestError(
            f"{path} is the root of a cluster, not a store: its processes alone write there; connect to one of its "
            'masters, as with ebla.connect("host:7070")'
        )
    return None


def mark_root(root: Path, cluster: str) -> None:
    """Leave the id of the cluster in its root, once."""
    mark = root / ROOT_MARK
    try:
        if not mark.exists():
            root.mkdir(parents=True, exist_ok=True)
            mark.write_text(cluster + "\n")
    except OSError as error:
        raise StoreError(f"the root {root} cannot be used: {error}: mend that, then start again") from error


def is_down(path: Path) -> Unavailable:
    """Return what to raise for the directory of a cluster that is not up."""
    return Unavailable(
        f"the cluster in {path} is down: start it with `ebla up --data {path}`; what its processes said is in "
        f"{path}/*.log"
    )


def _way(directory: Path) -> str:
    if (directory / CLUSTER_FILE).is_file():
        return f'it is up, and ebla.connect("{directory}") connects to it (`--store {directory}` in a shell)'
    return f'it is down: `ebla up --data {directory}` starts it, then ebla.connect("{directory}") connects to it'
