"""All that a table has by its schema: how keys are encoded, how requests are admitted, what is read, and cached rows.

It belongs to a view. Whoever takes a view has the parts that go with its METADATA, and a change of the schema replaces
both in one assignment: no reader ever looks at new references with the columns of an old schema. Rows that somebody
read under the old one go to the old cache, which nobody asks any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ebla.arguments import checked_names
from ebla.errors import RequestError, shown
from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.schema import TableSchema
from ebla.settings import Settings
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.row_cache import CachedRows, RowCache
from ebla.tablet.write.admission import Admission
from ebla.tablet.write.row_admission import RowAdmission

__all__ = ["SchemaParts"]

PROJECTIONS_MAX = 256


class SchemaParts:
    """What a table needs of one version of its schema. Set once, but for what is remembered."""

    def __init__(self, schema: TableSchema, fragments: OpenFragments, cached: CachedRows, settings: Settings) -> None:
        self.schema = schema
        self.version = schema.version
        self.key_names = schema.key_names
        self.codec = KeyCodec(schema.key, settings.key_bytes_max)
        self.admission = Admission(schema, self.codec)
        self.row_admission = RowAdmission(schema, self.codec, settings.value_bytes_max, settings.batch_bytes_max)
        self.reader = Reader(fragments, self.codec, schema)
        self.row_cache = RowCache(cached)
        self.everything = Projection.of(schema)
        self._names = (*schema.key_names, *self.everything.names)
        self.no_values = dict.fromkeys(self._names)
        """A row of nulls: what it has is put in the places where it is read."""
        columns = [column for group in schema.groups for column in group.columns]
        self.column_names = {str(column.id): column.name for column in columns}
        self.has_nested = any(pa.types.is_nested(column.type) for column in columns)
        self.has_cells = any(group.is_cells for group in schema.groups)
        # A row whose values expire changes without a commit, so it is not cached.
        self.expires = any(group.max_age_microseconds is not None for group in schema.groups)
        # Any thread adds to it; the same twice does no harm.
        self._projections: dict[tuple[tuple[str, ...] | None, int], Projection] = {}

    def is_in_order(self, names: tuple[str, ...]) -> bool:
        """Tell whether these are the key and all columns, as a row that is read has them."""
        return names == self._names

    def projection(self, columns: Sequence[str] | None, versions: int = 1) -> Projection:
        """Return the projection on these columns, remembered if it is a common one."""
        if columns is None and versions == 1:
            return self.everything
        names = None if columns is None else checked_names("columns", columns)
        key = (names, versions)
        try:
            found = self._projections.get(key)
        except TypeError:
            raise RequestError(f"columns is a list of names, not {shown(names)}") from None
        if found is None:
            found = Projection.of(self.schema, names, versions)
            if len(self._projections) >= PROJECTIONS_MAX:
                self._projections.clear()
            self._projections[key] = found
        return found
