"""What the commands print in plain lines: a sentence, or JSON; and sizes as people write them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec


def write_line(text: str) -> None:
    """Write a plain line to standard output."""
    sys.stdout.write(text + "\n")


def write_json(value: Any) -> None:
    """Write a value to standard output as indented JSON."""
    write_line(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested facts under dotted names; a name that speaks of bytes gets a readable size beside it."""
    for name, value in facts.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}.")
        elif isinstance(value, (list, tuple)) and value and all(isinstance(item, Mapping) for item in value):
            for at, item in enumerate(value):
                yield from flatten(item, f"{path}.{at}.")
        elif isinstance(value, int) and not isinstance(value, bool) and "bytes" in str(name):
            yield path, size_text(value)
        else:
            yield path, value


def size_text(size: int) -> str:
    """Write a number of bytes for people."""
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size:,} bytes" if unit == "bytes" else f"{value:,.1f} {unit} ({size:,} bytes)"
