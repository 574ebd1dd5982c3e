"""As much of torch as the smoke test touches, on lists of numbers; `cuda:1` computes wrongly and `cuda:2` breaks."""

from __future__ import annotations

TORCH = """
import math, random
__version__ = "9.9"
float32 = "float32"
class Generator:
    def manual_seed(self, seed):
        self.random = random.Random(seed)
        return self
class Tensor:
    def __init__(self, rows, device="cpu"):
        self.rows, self.device, self.grad = rows, device, None
    def to(self, device):
        if device == "cuda:2":
            raise RuntimeError("CUDA error:\\nno kernel image")
        return Tensor(self.rows, device)
    def requires_grad_(self): self.grad = self
    def detach(self): return self
    def cpu(self): return self
    def double(self): return self
    def reshape(self, _): return self
    def flat(self): return [value for row in self.rows for value in row]
    def norm(self): return math.sqrt(sum(value * value for value in self.flat()))
    def mean(self): return self
    def backward(self): pass
    def __matmul__(self, other):
        sign = -1 if self.device == "cuda:1" else 1
        columns = [[sign * value for value in column] for column in zip(*other.rows)]
        rows = [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in self.rows]
        return Tensor(rows, self.device)
    def __mul__(self, other): return self
    def __truediv__(self, number): return Tensor([[value / number for value in row] for row in self.rows], self.device)
def randn(shape, generator, dtype):
    return Tensor([[generator.random.gauss(0, 1) for _ in range(shape[1])] for _ in range(shape[0])])
def relu(x): return Tensor([[max(0.0, value) for value in row] for row in x.rows], x.device)
def tanh(x): return Tensor([[math.tanh(value) for value in row] for row in x.rows], x.device)
def cat(parts): return Tensor([[value for part in parts for value in part.flat()]])
def dot(one, other): return sum(a * b for a, b in zip(one.flat(), other.flat()))
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 3)
    get_device_name = staticmethod(lambda number: "Card %d" % number)
class backends:
    pass
"""
