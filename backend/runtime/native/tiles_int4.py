"""The innermost loop for weights of four bits: a tile of T rows times one panel of 32 output columns.

A weight is a code of 0 to 15 times its group's scale, plus its group's minimum, as in GGUF's Q4_1. A step is four input
columns in 64 bytes, half of int8's: the low halves are the codes of outputs 0 to 15, the high halves those of 16 to 31.
Both are unpacked in registers, once for all rows of a tile, and multiplied with the same int8 rows by the same
instruction; the minima are multiplied with the row's sum in a group, which int8 needs, too. The high halves stay where
they are, as numbers 16 times as large: their scales make up for it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from backend.runtime.native.tiles import VECTORS, Int8Tile, make_panel
from backend.runtime.native.vectors import BYTES, F16S, F32, F32S, I32, I32S, I64, LANES, address, compiled, load, splat

_ZEROS = ir.Constant(I32S, [0] * LANES)
_TABLE_BYTES = 2 * 2 * LANES * VECTORS
"""Of a panel and a group: 32 scales, then 32 minima, float16."""
_PER_SUM = F32(-1 / 128)
"""A row's offsets are its sums times -128, as int8 wants them."""


class Int4Tile(Int8Tile):
    """A tile whose weights are codes of four bits."""

    name = "int4"

    def begin_group(self, group: Any) -> None:
        """Codes are unsigned as they are."""
        for cell in self.cells:
            self.b.store(_ZEROS, self.counts[cell])

    def load_columns(self, weights: Any) -> list[Any]:
        """Codes of the first 16 outputs, and 16 times those of the others."""
        b = self.b
        pairs = b.bitcast(load(b, weights, I32S), BYTES)
        return [b.and_(pairs, ir.Constant(BYTES, [half] * 64)) for half in (0x0F, 0xF0)]

    def end_group(self, group: Any) -> None:
        """Counts times scales, and each output's minimum times the row's sum."""
        b = self.b
        scales, minima = (
            [self._of_panel(group, table * VECTORS + vector) for vector in range(VECTORS)] for table in range(2)
        )
        scales[1] = b.fmul(scales[1], ir.Constant(F32S, [1 / 16] * LANES))
        for row in self.rows:
            scale = self.of_group("row_scales", row, group, F32)
            total = b.fmul(b.sitofp(self.of_group("row_offsets", row, group, I32), F32), _PER_SUM)
            lift, scale = splat(b, b.fmul(total, scale), F32S), splat(b, scale, F32S)
            for vector in range(VECTORS):
                self.scale_count((row, vector), b.fmul(scales[vector], scale))
                place = self.sums[row, vector]
                b.store(b.call(self.fma, [minima[vector], lift, b.load(place)]), place)

    def _of_panel(self, group: Any, vector: int) -> Any:
        place = address(self.b, self.arg["weight_scales"], (group, _TABLE_BYTES), (I64(1), 2 * LANES * vector))
        return self.b.fpext(load(self.b, place, F16S), F32S)


_int4 = make_panel(Int4Tile)


@compiled
def panel_int4(num_rows, tallest, weights, rows, num_groups, num_steps, out, bias, accumulate):  # noqa: ANN001, ANN201
    """See `tiles.panel_f32`; the scales' address is that of scales and minima."""
    _int4((num_rows, tallest) + weights + rows + (num_groups, num_steps) + out + (bias, accumulate))  # noqa: RUF005
