// slipway-rest-cuda is the worker of slipway-rest on a GPU. Its last argument is the GPU's
// number. It reads requests from its standard input and writes answers to its output; the
// form of both is in slipway-rest's engine.go.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

namespace {

constexpr uint32_t kMost = 4u << 20;  // numbers of a request
constexpr int kThreads = 256;
constexpr int kBlocks = 128;

// squares leaves a sum of squares for each block.
__global__ void squares(const float* numbers, uint32_t count, double* sums) {
  __shared__ double part[kThreads];
  double sum = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    sum += static_cast<double>(numbers[i]) * numbers[i];
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "slipway-rest-cuda: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

bool readAll(void* to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }

}  // namespace

int main(int argc, char** argv) {
  check(cudaSetDevice(argc > 1 ? std::atoi(argv[argc - 1]) : 0), "GPU");
  float *host = nullptr, *numbers = nullptr;
  double* sums = nullptr;
  check(cudaMallocHost(&host, kMost * sizeof(float)), "memory");
  check(cudaMalloc(&numbers, kMost * sizeof(float)), "memory");
  check(cudaMalloc(&sums, kBlocks * sizeof(double)), "memory");
  std::vector<double> parts(kBlocks);
  uint32_t head[2];
  while (readAll(head, sizeof head)) {
    uint32_t status = 0;
    double sum = 0;
    if (head[1] > kMost || !readAll(host, head[1] * sizeof(float))) return 1;
    if (head[0] == 1) {
      check(cudaMemcpy(numbers, host, head[1] * sizeof(float), cudaMemcpyHostToDevice), "copy");
      squares<<<kBlocks, kThreads>>>(numbers, head[1], sums);
      check(cudaGetLastError(), "squares");
      check(cudaMemcpy(parts.data(), sums, kBlocks * sizeof(double), cudaMemcpyDeviceToHost), "copy");
      for (double part : parts) sum += part;
      if (!(sum - sum == 0)) status = 2;  // no number
    } else if (head[0] != 0) {
      status = 1;
    }
    unsigned char answer[12];
    __builtin_memcpy(answer, &status, 4);
    __builtin_memcpy(answer + 4, &sum, 8);
    if (std::fwrite(answer, 1, sizeof answer, stdout) != sizeof answer || std::fflush(stdout) != 0) return 1;
  }
  return 0;
}
