#!/usr/bin/env python3
"""Runs kernels that Numba compiles from Python, and compares with NumPy."""

import sys
import time

import numba
import numpy
from numba import cuda

SIZE = 1 << 20
failed = False


@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def block_sums(x, sums):
    part = cuda.shared.array(256, numba.int64)
    lane = cuda.threadIdx.x
    i = cuda.grid(1)
    part[lane] = x[i] if i < x.size else 0
    cuda.syncthreads()
    step = 128
    while step > 0:
        if lane < step:
            part[lane] += part[lane + step]
        cuda.syncthreads()
        step //= 2
    if lane == 0:
        sums[cuda.blockIdx.x] = part[0]


def compare(name, passed, why):
    global failed
    failed = failed or not passed
    print(f"OK {name}" if passed else f"FAIL {name}: {why}")


def main():
    major, minor = cuda.get_current_device().compute_capability
    name = cuda.get_current_device().name
    name = name.decode() if isinstance(name, bytes) else name
    print(f"GPU: {name}, compute capability {major}.{minor}, Numba {numba.__version__}")
    random = numpy.random.default_rng(1)
    x = random.standard_normal(SIZE).astype(numpy.float32)
    y = random.standard_normal(SIZE).astype(numpy.float32)
    threads, blocks = 256, (SIZE + 255) // 256
    on_gpu = cuda.to_device(x), cuda.to_device(y), cuda.device_array_like(x)

    def call():
        began = time.perf_counter()
        saxpy[blocks, threads](numpy.float32(3), *on_gpu)
        cuda.synchronize()
        return (time.perf_counter() - began) * 1e3

    print(f"first={call():.1f} ms")
    print(f"second={sorted(call() for _ in range(50))[25]:.3f} ms")
    got, want = on_gpu[2].copy_to_host(), numpy.float32(3) * x + y
    compare("saxpy", numpy.allclose(got, want, rtol=1e-5, atol=1e-5), f"differs from NumPy by {numpy.abs(got - want).max():g}")

    numbers = random.integers(-1000, 1000, SIZE, dtype=numpy.int64)
    sums = cuda.device_array(blocks, dtype=numpy.int64)
    block_sums[blocks, threads](cuda.to_device(numbers), sums)
    total = int(sums.copy_to_host().sum())
    compare("reduction", total == int(numbers.sum()), f"got {total}, want {int(numbers.sum())}")
    print("Result = " + ("FAIL" if failed else "PASS"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
