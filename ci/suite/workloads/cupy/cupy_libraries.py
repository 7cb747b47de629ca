#!/usr/bin/env python3
"""Calls CUDA's libraries through CuPy, and compares with NumPy."""

import sys
import time

import cupy
import cupyx.scipy.sparse
import numpy

failed = False


def compare(name, difference, allowed):
    """Reports a part. difference is relative to the largest value."""
    global failed
    passed = bool(difference <= allowed)  # no number is not a pass
    failed = failed or not passed
    print(f"OK {name}" if passed else f"FAIL {name}: differs from NumPy by {difference:g}, allowed are {allowed:g}")


def relative(got, want):
    return float(numpy.abs(cupy.asnumpy(got) - want).max() / numpy.abs(want).max())


def median(call):
    """Returns the milliseconds of a call, the median of 20."""
    times = []
    for _ in range(21):
        began = time.perf_counter()
        call()
        cupy.cuda.Stream.null.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return sorted(times[1:])[10]


def main():
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    name = properties["name"].decode()
    print(f"GPU: {name}, compute capability {properties['major']}.{properties['minor']}, CuPy {cupy.__version__}")
    random = numpy.random.default_rng(1)

    a, b = random.standard_normal((2, 1024, 1024))
    on_gpu = cupy.asarray(a), cupy.asarray(b)
    compare("cuBLAS", relative(on_gpu[0] @ on_gpu[1], a @ b), 1e-12)
    print(f"matmul={median(lambda: on_gpu[0] @ on_gpu[1]):.3f} ms")

    signal = random.standard_normal(1 << 16)
    on_gpu_signal = cupy.asarray(signal)
    compare("cuFFT", relative(cupy.fft.fft(on_gpu_signal), numpy.fft.fft(signal)), 1e-12)
    compare("cuFFT and back", relative(cupy.fft.ifft(cupy.fft.fft(on_gpu_signal)).real, signal), 1e-12)
    print(f"fft={median(lambda: cupy.fft.fft(on_gpu_signal)):.3f} ms")

    dense = numpy.where(random.random((1000, 1000)) < 0.01, random.standard_normal((1000, 1000)), 0)
    vector = random.standard_normal(1000)
    sparse = cupyx.scipy.sparse.csr_matrix(cupy.asarray(dense))
    compare("cuSPARSE", relative(sparse @ cupy.asarray(vector), dense @ vector), 1e-12)

    # Other generators than NumPy's: the moments are compared.
    draws = cupy.random.default_rng(1).standard_normal(1 << 22)
    compare("cuRAND mean", abs(float(draws.mean())), 5 / 2**11)
    compare("cuRAND deviation", abs(float(draws.std()) - 1), 5 / 2**11)
    again = cupy.random.default_rng(1).standard_normal(1 << 22)
    compare("cuRAND seed", float(cupy.abs(draws - again).max()), 0)

    numbers = random.integers(0, 1 << 31, 1 << 22, dtype=numpy.int64)
    on_gpu_numbers = cupy.asarray(numbers)
    compare("sort", float(numpy.abs(cupy.asnumpy(cupy.sort(on_gpu_numbers)) - numpy.sort(numbers)).max()), 0)
    print(f"sort={median(lambda: cupy.sort(on_gpu_numbers)):.3f} ms")
    print("Result = " + ("FAIL" if failed else "PASS"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
