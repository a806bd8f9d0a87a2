"""Laying runs end to end and finding their common order."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings

from ebla.storage.merge.arrange import arrange_cells, arrange_rows, changes, concat, erased_mask
from ebla.storage.record.records import Run
from tests.support.records import Cell, ColumnsRun, cell_runs, cells_batch, columns_runs


@given(columns_runs())
@settings(deadline=None)
def test_columns_records_are_arranged_by_row_newest_first(runs: list[ColumnsRun]) -> None:
    arranged = arrange_rows([run.run() for run in runs])
    records = [record for run in runs for record in run.records]
    assert arranged.rows.to_pylist() == [record.row for record in records]
    assert arranged.txns.tolist() == [record.txn for record in records]
    ordered = [records[place] for place in arranged.order]
    assert sorted(arranged.order.tolist()) == list(range(len(records)))
    assert [(r.row, -r.txn) for r in ordered] == sorted((r.row, -r.txn) for r in records)
    names = sorted({record.row for record in records})
    assert [names[number] for number in arranged.row_of] == [record.row for record in ordered]
    assert arranged.repeats.tolist() == [
        at > 0 and ordered[at].row == ordered[at - 1].row for at in range(len(ordered))
    ]


@given(cell_runs())
@settings(deadline=None)
def test_cells_are_arranged_by_identity_newest_first_with_nulls_first(runs: list[list[Cell]]) -> None:
    arranged = arrange_cells([Run(cells_batch(run)) for run in runs])
    cells = [cell for run in runs for cell in run]
    ordered = [cells[place] for place in arranged.order]
    assert [cell.order for cell in ordered] == sorted(cell.order for cell in cells)
    assert arranged.stamps.tolist() == [cell.timestamp for cell in ordered]
    assert [number == 0 for number in arranged.families] == [cell.family is None for cell in ordered]
    assert [number == 0 for number in arranged.qualifiers] == [cell.qualifier is None for cell in ordered]
    identities = list(dict.fromkeys(cell.identity for cell in ordered))
    assert [identities[number] for number in arranged.identity] == [cell.identity for cell in ordered]


@given(cell_runs())
@settings(deadline=None)
def test_erasures_are_marked_end_to_end(runs: list[list[Cell]]) -> None:
    mask = erased_mask([Run(cells_batch(run)) for run in runs])
    erased = [cell.erased for run in runs for cell in run]
    assert (mask is None and not any(erased)) or (mask is not None and mask.tolist() == erased)


def test_a_dictionary_column_is_arranged_like_a_plain_one() -> None:
    batch = cells_batch([Cell(b"a", "f", "q", 1, 1024, False, b"x"), Cell(b"b", "e", "q", 1, 1024, False, b"y")])
    at = batch.schema.get_field_index("family")
    encoded = batch.set_column(at, "family", batch.column(at).dictionary_encode())
    assert arrange_cells([Run(encoded)]).columns["family"].to_pylist() == ["f", "e"]


def test_changes_begin_with_the_first() -> None:
    import numpy as np

    assert changes(np.array([7, 7, 8, 7])).tolist() == [True, False, True, True]
    assert changes(np.array([], dtype=np.int64)).tolist() == []


def test_concat_does_not_copy_a_single_array() -> None:
    alone = pa.array([1, 2])
    assert concat([alone]) is alone
    assert concat([alone, alone]).to_pylist() == [1, 2, 1, 2]
