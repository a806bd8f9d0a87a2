"""The text format of Prometheus: families of samples, written and read.

# HELP ebla_flushes_total Flushes of memory to fragments.
# TYPE ebla_flushes_total counter
ebla_flushes_total 12
ebla_table_fragment_bytes{table="users",group="default"} 1048576
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Labels", "Sample", "family", "parsed"]

Sample = tuple[Mapping[str, str], float]
Labels = tuple[tuple[str, str], ...]

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def family(name: str, meaning: str, samples: Iterable[Sample], *, kind: str | None = None) -> Iterator[str]:
    """Yield the lines of a metric. Its kind is told by its name, unless it is given.

    Of a histogram, the label ``_suffix`` of a sample tells which of its series it is of.
    """
    full = f"ebla_{name}"
    yield f"# HELP {full} {meaning}"
    yield f"# TYPE {full} {kind or ('counter' if name.endswith('_total') else 'gauge')}"
    for labels, value in samples:
        suffix = labels.get("_suffix", "")
        named = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items() if label != "_suffix")
        yield f"{full}{suffix}{{{named}}} {value}" if named else f"{full}{suffix} {value}"


def parsed(text: str) -> dict[str, dict[Labels, float]]:
    """Return the samples of a text by metric and labels; lines that are none are passed over."""
    found: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        matched = None if line.startswith("#") else _LINE.fullmatch(line)
        if matched is None:
            continue
        labels = tuple((name, _plain(value)) for name, value in _LABEL.findall(matched[2] or ""))
        try:
            found.setdefault(matched[1], {})[labels] = float(matched[3])
        except ValueError:
            continue
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)
