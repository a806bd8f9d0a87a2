"""Metrics of a store in the text format of Prometheus: what `db.metrics()` and ``ebla stats --prometheus`` give.

    # HELP ebla_flushes_total Flushes of memory to fragments.
    # TYPE ebla_flushes_total counter
    ebla_flushes_total 12
    ebla_table_fragment_bytes{table="users",group="default"} 1048576

Counters are those of the process that has the store open; sizes of tables are anybody's. Names are those of
`ebla.service.counters`, and of the table below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ebla.service.counters import Counters, described
from ebla.service.prometheus import family

__all__ = ["TABLE_METRICS", "metrics_text"]

# Of each table, and of each of its groups: by which name `Table.stats` has it, and what it means.
TABLE_METRICS = {"tablets": ("table_tablets", "Tablets of the table.")}
GROUP_METRICS = {
    "memory_bytes": ("table_memory_bytes", "Bytes of the group that are not in fragments yet."),
    "fragments": ("table_fragments", "Fragments of the group."),
    "fragment_bytes": ("table_fragment_bytes", "Bytes of the fragments of the group."),
    "fragment_records": ("table_fragment_records", "Records in the fragments of the group, old versions included."),
    "history_bytes": ("table_history_bytes", "Bytes of the fragments that only reads of the past need."),
    "fragments_deep": ("table_fragments_deep", "Fragments that a read of one row looks at in the worst place."),
}


def metrics_text(counters: Counters | None, tables: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """Return the metrics of a store, whose version and the like are `labels` of the metric ``ebla_info``.

    `tables` is what `Table.stats` says of each; without `counters`, only that is told.
    """
    lines = list(family("info", "What has the store open; always 1.", [(labels, 1)]))
    if counters is not None:
        meanings = described()
        for name, value in msgspec.structs.asdict(counters).items():
            lines += family(name, meanings[name], [({}, value)])
    for key, (name, meaning) in TABLE_METRICS.items():
        lines += family(name, meaning, (({"table": table}, facts[key]) for table, facts in tables.items()))
    for key, (name, meaning) in GROUP_METRICS.items():
        samples = (
            ({"table": table, "group": group}, own[key])
            for table, facts in tables.items()
            for group, own in facts["groups"].items()
        )
        lines += family(name, meaning, samples)
    return "\n".join(lines) + "\n"
