"""Least squares with four unknowns, none of them negative, that follow what comes: old rows weigh less and less.

It is told of every step, so its sums are written out: that takes a third of the time of loops over lists. Knows nothing
of what the unknowns mean.
"""

from __future__ import annotations

Four = tuple[float, float, float, float]


class LeastSquares:
    """Rows and what they should come to, kept as sums: moment, and the upper half of the information matrix."""

    def __init__(self) -> None:
        self._moment: Four = (0.0, 0.0, 0.0, 0.0)
        self._information = (0.0,) * 10

    def learn(self, row: Four, value: float, memory: float) -> None:
        """`row` times the unknowns should come to `value`; all that came before weighs `memory` times as much."""
        a, b, c, d = row
        e, f, g, h = self._moment
        self._moment = (memory * e + a * value, memory * f + b * value, memory * g + c * value, memory * h + d * value)
        aa, ab, ac, ad, bb, bc, bd, cc, cd, dd = self._information
        self._information = (
            memory * aa + a * a,
            memory * ab + a * b,
            memory * ac + a * c,
            memory * ad + a * d,
            memory * bb + b * b,
            memory * bc + b * c,
            memory * bd + b * d,
            memory * cc + c * c,
            memory * cd + c * d,
            memory * dd + d * d,
        )

    def solve(self, near: Four, inertia: float) -> Four:
        """The unknowns that fit best, held to `near` by `inertia`, above 0."""
        matrix, vector = self._system(near, inertia)
        found = solve_four(matrix, vector)
        if min(found) >= 0.0:
            return found
        aa, ab, ac, ad, bb, bc, bd, cc, cd, dd = matrix
        square = [[aa, ab, ac, ad], [ab, bb, bc, bd], [ac, bc, cc, cd], [ad, bd, cd, dd]]
        first, second, third, fourth = solve_non_negative(square, list(vector))
        return first, second, third, fourth

    def _system(self, near: Four, inertia: float) -> tuple[tuple[float, ...], Four]:
        aa, ab, ac, ad, bb, bc, bd, cc, cd, dd = self._information
        e, f, g, h = self._moment
        i, j, k, m = near
        matrix = (aa + inertia, ab, ac, ad, bb + inertia, bc, bd, cc + inertia, cd, dd + inertia)
        return matrix, (e + inertia * i, f + inertia * j, g + inertia * k, h + inertia * m)


def solve_four(matrix: tuple[float, ...], vector: Four) -> Four:
    """x of `matrix` x = `vector`, symmetric and positive definite, given by its upper half row by row.

    `_solve` written out.
    """
    aa, ab, ac, ad, bb, bc, bd, cc, cd, dd = matrix
    e, f, g, h = vector
    factor = ab / aa
    bb, bc, bd, f = bb - factor * ab, bc - factor * ac, bd - factor * ad, f - factor * e
    factor = ac / aa
    cc, cd, g = cc - factor * ac, cd - factor * ad, g - factor * e
    factor = ad / aa
    dd, h = dd - factor * ad, h - factor * e
    factor = bc / bb
    cc, cd, g = cc - factor * bc, cd - factor * bd, g - factor * f
    factor = bd / bb
    dd, h = dd - factor * bd, h - factor * f
    factor = cd / cc
    dd, h = dd - factor * cd, h - factor * g
    fourth = h / dd
    third = (g - cd * fourth) / cc
    second = (f - bc * third - bd * fourth) / bb
    return (e - ab * second - ac * third - ad * fourth) / aa, second, third, fourth


def solve_non_negative(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """x >= 0 that nearly solves `matrix` x = `vector` (symmetric, positive definite).

    While some entry is negative, the most negative one is set to zero and the rest solved again.
    """
    free = list(range(len(vector)))
    while free:
        found = _solve([[matrix[i][j] for j in free] for i in free], [vector[i] for i in free])
        least = min(range(len(free)), key=found.__getitem__)
        if found[least] >= 0.0:
            solution = dict(zip(free, found, strict=True))
            return [solution.get(i, 0.0) for i in range(len(vector))]
        del free[least]
    return [0.0] * len(vector)


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Gaussian elimination; a positive definite matrix needs no pivoting."""
    size = len(vector)
    rows = [[*line, value] for line, value in zip(matrix, vector, strict=True)]
    for k in range(size):
        for i in range(k + 1, size):
            factor = rows[i][k] / rows[k][k]
            for j in range(k, size + 1):
                rows[i][j] -= factor * rows[k][j]
    found = [0.0] * size
    for k in reversed(range(size)):
        found[k] = (rows[k][size] - sum(rows[k][j] * found[j] for j in range(k + 1, size))) / rows[k][k]
    return found
