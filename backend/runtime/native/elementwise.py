"""What happens to a row between two matrix products: norm, rotary position, activation."""

from __future__ import annotations

import numpy as np

from backend.runtime.native.products import FAST
from backend.runtime.native.vectors import compiled


@compiled
def exponential(x: np.float32) -> np.float32:
    """e^x for x <= 88, to 2 units in the last place; without branches, so that loops over it fill vectors."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375)
    r = r + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691e-4)
    p = p * r + np.float32(1.3981999e-3)
    p = p * r + np.float32(8.3334519e-3)
    p = p * r + np.float32(4.1665796e-2)
    p = p * r + np.float32(1.6666665e-1)
    p = p * r + np.float32(5.0000001e-1)
    p = p * r * r + r + np.float32(1.0)
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@compiled(fastmath=FAST)
def normalise(x: np.ndarray, weight: np.ndarray, eps: np.float32, out: np.ndarray) -> None:
    """RMSNorm of one row."""
    square = np.float32(0.0)
    for i in range(len(x)):
        square += x[i] * x[i]
    factor = np.float32(1.0) / np.sqrt(square / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = x[i] * factor * weight[i]


@compiled
def rotate(head: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> None:
    """Turn one head in place, pairing element i with i + half as transformers does."""
    half = len(head) // 2
    for i in range(half):
        low, high = head[i], head[i + half]
        head[i] = low * cos[i] - high * sin[i]
        head[i + half] = high * cos[i + half] + low * sin[i + half]


@compiled(fastmath=FAST)
def gate(gate_up: np.ndarray, out: np.ndarray) -> None:
    """SiLU(first half) * second half of one row."""
    size = len(out)
    for i in range(size):
        value = gate_up[i]
        out[i] = value * gate_up[i + size] / (np.float32(1.0) + exponential(-value))
