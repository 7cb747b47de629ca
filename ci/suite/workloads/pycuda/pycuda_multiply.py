#!/usr/bin/env python3
"""Multiplies two vectors by a kernel that PyCUDA compiles, and compares with NumPy."""

import sys
import time

import numpy
import pycuda
import pycuda.driver as cuda
from pycuda.compiler import SourceModule

SIZE = 400
KERNEL = """
__global__ void multiply(float *product, const float *a, const float *b)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    product[i] = a[i] * b[i];
}
"""


def main():
    cuda.init()
    device = cuda.Device(0)
    context = device.make_context()
    try:
        major, minor = device.compute_capability()
        print(f"GPU: {device.name()}, compute capability {major}.{minor}, PyCUDA {pycuda.VERSION_TEXT}")
        began = time.perf_counter()
        multiply = SourceModule(KERNEL).get_function("multiply")
        print(f"compile={(time.perf_counter() - began) * 1e3:.1f} ms")

        random = numpy.random.default_rng(1)
        a = random.standard_normal(SIZE).astype(numpy.float32)
        b = random.standard_normal(SIZE).astype(numpy.float32)
        product = numpy.zeros_like(a)

        def launch():
            multiply(cuda.Out(product), cuda.In(a), cuda.In(b), block=(SIZE, 1, 1), grid=(1, 1))

        launch()
        times = []
        for _ in range(50):
            began = time.perf_counter()
            launch()
            times.append(time.perf_counter() - began)
        print(f"launch={sorted(times)[len(times) // 2] * 1e3:.3f} ms")

        difference = float(numpy.abs(product - a * b).max())
        print(f"difference={difference:g}")
        passed = difference == 0
        print("OK multiply" if passed else f"FAIL multiply: differs from NumPy by {difference:g}")
        print("Result = " + ("PASS" if passed else "FAIL"))
        return 0 if passed else 1
    finally:
        context.pop()


if __name__ == "__main__":
    sys.exit(main())
