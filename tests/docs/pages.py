"""The pages that tell people what to type: their prose, code spans and code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


@dataclass(frozen=True)
class Page:
    """One page: what stands in `spans` in the middle of prose, and in `blocks` of Python or of shell."""

    name: str
    spans: tuple[str, ...]
    python: tuple[str, ...]
    shell: tuple[str, ...]

    @property
    def code(self) -> tuple[str, ...]:
        return (*self.spans, *self.python)


def read_page(path: Path) -> Page:
    text = path.read_text()
    fences = _FENCE.findall(text)
    prose = _FENCE.sub("\n", text)
    indented = [block for block in _INDENTED.findall(prose) if block.strip()]
    prose = _INDENTED.sub("\n", prose)
    return Page(
        str(path.relative_to(ROOT)),
        tuple(" ".join(span.split()) for span in _SPAN.findall(prose)),
        tuple(code for kind, code in fences if kind == "python"),
        (*(code for kind, code in fences if kind != "python"), *indented),
    )


def pages() -> list[Page]:
    """Return the pages for users: not the decisions, which tell of their time, nor the formats."""
    docs = ROOT / "docs"
    return [
        read_page(path) for path in [ROOT / "README.md", *sorted(docs.glob("*.md")), *sorted(docs.glob("howto/*.md"))]
    ]
