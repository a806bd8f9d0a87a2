"""The bytes of the log: headers and names of segments."""

from __future__ import annotations

import pytest

from ebla.storage.log.log_format import (
    SEGMENT_HEADER_BYTES,
    decode_segment_header,
    encode_segment_header,
    segment_path,
    segment_sequence,
)
from tests.support.logs import (
    SERVER,
    flipped,
)


class TestSegments:
    @pytest.mark.parametrize("previous", [None, 0, 64, 1 << 40])
    def test_segment_headers_round_trip(self, previous: int | None) -> None:
        header, data = encode_segment_header(SERVER, 7, previous)
        assert len(data) == SEGMENT_HEADER_BYTES
        assert decode_segment_header(data + b"more") == header
        assert (header.server, header.sequence, header.previous_bytes) == (SERVER, 7, previous)
        for position in range(len(data)):
            assert decode_segment_header(flipped(data, position)) is None
            assert decode_segment_header(data[:position]) is None

    def test_segment_names(self) -> None:
        assert segment_path("log/x", 12) == "log/x/0000000000000012.log"
        assert segment_sequence("log/x/0000000000000012.log") == 12
        for name in ("12.log", "0000000000000012.log.bak", "x000000000000012.log", "0000000000000012"):
            assert segment_sequence(f"log/x/{name}") is None
