"""Normal equations solved for coefficients of which none may be negative. Knows nothing of steps or seconds."""

from __future__ import annotations

from collections.abc import Iterable


def solve_non_negative(
    matrix: list[list[float]], vector: list[float], known: list[float], free: Iterable[int]
) -> list[float]:
    """x >= 0 that nearly solves `matrix` x = `vector` (symmetric, positive definite), `known` but for entries `free`.

    While some free entry is negative, the most negative one is set to zero and the rest solved again.
    """
    solution, left = list(known), list(free)
    for i in left:
        solution[i] = 0.0
    rest = [
        value - sum(a * x for a, x in zip(line, solution, strict=True))
        for line, value in zip(matrix, vector, strict=True)
    ]
    while left:
        found = _solve([[matrix[i][j] for j in left] for i in left], [rest[i] for i in left])
        least = min(range(len(left)), key=found.__getitem__)
        if found[least] >= 0.0:
            for i, value in zip(left, found, strict=True):
                solution[i] = value
            break
        del left[least]
    return solution


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
