"""Why a measure falls short of its goal, by (workload, measure). Shown only while it does."""

from __future__ import annotations

REASONS: dict[tuple[str, str], str] = {}
