"""Why a measure falls short of its goal, by (workload, measure, peer). Shown only while it does.

A measure without a peer has ``""`` in its place. What is not listed here is shown as not examined yet.
"""

from __future__ import annotations

REASONS: dict[tuple[str, str, str], str] = {}
