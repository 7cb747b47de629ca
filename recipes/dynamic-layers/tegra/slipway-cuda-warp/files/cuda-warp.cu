// cuda-warp proves the instructions by which the threads of a warp talk to each other:
// votes, shuffles, and the scheduling of each thread on its own. It compares each result
// with what the processor computes.
//
// It prints a line for each part ("OK ballot", "FAIL scan: …", "SKIP …"), numbers as
// name=value unit, and at the end "Result = PASS" or "Result = FAIL".

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kFull = 0xffffffffu;
constexpr unsigned kThreads = 256;
constexpr unsigned kBlocks = 64;
constexpr unsigned kLanes = kThreads * kBlocks;
constexpr unsigned kElements = 1u << 24;
constexpr int kRounds = 20;
// A thread that waits for another gives up after this many clocks, about a second. A board
// that schedules warps as a whole fails, then, and does not hang.
constexpr long long kPatience = 1500LL * 1000 * 1000;

bool failed = false;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAIL %s: %s\nResult = FAIL\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void report(const char* part, bool ok, const char* format, ...) {
  if (ok) {
    std::printf("OK %s\n", part);
    return;
  }
  failed = true;
  std::printf("FAIL %s: ", part);
  va_list args;
  va_start(args, format);
  std::vprintf(format, args);
  va_end(args);
  std::printf("\n");
}

// mix returns a number that looks random, the same on both sides.
__host__ __device__ uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// predicate is true for all lanes of one warp in eight, for none of another one, and for
// about half of the rest.
__host__ __device__ bool predicate(uint32_t lane) {
  const uint32_t warp = lane / kWarp;
  if (warp % 8 == 0) return true;
  if (warp % 8 == 1) return false;
  return mix(lane) & 1;
}

enum Part { kAll, kAny, kBallot, kHalves, kMatch, kReduce, kScan, kButterfly, kGroups, kParts };
const char* const kNames[kParts] = {"all", "any", "ballot", "ballot in two branches", "match", "reduction", "scan", "butterfly", "groups of 8"};

__device__ uint32_t reduce(uint32_t value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_down_sync(kFull, value, offset);
  return __shfl_sync(kFull, value, 0);
}

__device__ uint32_t scan(uint32_t value) {
  const unsigned lane = threadIdx.x % kWarp;
  for (unsigned offset = 1; offset < kWarp; offset *= 2) {
    const uint32_t below = __shfl_up_sync(kFull, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

__global__ void votesAndShuffles(uint32_t* out) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  const bool p = predicate(i);
  out[kAll * kLanes + i] = __all_sync(kFull, p);
  out[kAny * kLanes + i] = __any_sync(kFull, p);
  out[kBallot * kLanes + i] = __ballot_sync(kFull, p);
  // The lanes of each branch vote among themselves.
  const unsigned low = __ballot_sync(kFull, i % kWarp < 10);
  if (i % kWarp < 10) {
    out[kHalves * kLanes + i] = __ballot_sync(low, p);
  } else {
    out[kHalves * kLanes + i] = __ballot_sync(~low, p);
  }
#if __CUDA_ARCH__ >= 700
  out[kMatch * kLanes + i] = __match_any_sync(kFull, mix(i) % 5);
#endif
  const uint32_t value = mix(i);
  out[kReduce * kLanes + i] = reduce(value);
  out[kScan * kLanes + i] = scan(value);
  uint32_t largest = value;
  for (int mask = kWarp / 2; mask > 0; mask /= 2) largest = max(largest, __shfl_xor_sync(kFull, largest, mask));
  out[kButterfly * kLanes + i] = largest;
  out[kGroups * kLanes + i] = __shfl_sync(kFull, value, 3, 8);
}

uint32_t expected(Part part, uint32_t i) {
  const uint32_t first = i / kWarp * kWarp;
  uint32_t votes = 0, same = 0, sum = 0, upTo = 0, largest = 0;
  for (uint32_t l = first; l < first + kWarp; l++) {
    if (predicate(l)) votes |= 1u << (l - first);
    if (mix(l) % 5 == mix(i) % 5) same |= 1u << (l - first);
    sum += mix(l);
    if (l <= i) upTo += mix(l);
    if (mix(l) > largest) largest = mix(l);
  }
  const uint32_t low = (1u << 10) - 1;
  switch (part) {
    case kAll: return votes == kFull;
    case kAny: return votes != 0;
    case kBallot: return votes;
    case kHalves: return votes & (i - first < 10 ? low : ~low);
    case kMatch: return same;
    case kReduce: return sum;
    case kScan: return upTo;
    case kButterfly: return largest;
    case kGroups: return mix(i / 8 * 8 + 3);
    default: return 0;
  }
}

void proveVotesAndShuffles(bool independent) {
  uint32_t* device = nullptr;
  std::vector<uint32_t> got(kParts * kLanes);
  check(cudaMalloc(&device, got.size() * sizeof(uint32_t)), "memory");
  check(cudaMemset(device, 0xa5, got.size() * sizeof(uint32_t)), "memory");
  votesAndShuffles<<<kBlocks, kThreads>>>(device);
  check(cudaGetLastError(), "votes and shuffles");
  check(cudaMemcpy(got.data(), device, got.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost), "votes and shuffles");
  check(cudaFree(device), "memory");
  for (int part = 0; part < kParts; part++) {
    if (part == kMatch && !independent) {
      std::printf("SKIP %s: it needs compute capability 7.0\n", kNames[part]);
      continue;
    }
    uint32_t wrong = kLanes;
    for (uint32_t i = 0; i < kLanes && wrong == kLanes; i++) {
      if (got[part * kLanes + i] != expected(static_cast<Part>(part), i)) wrong = i;
    }
    const uint32_t i = wrong % kLanes;
    report(kNames[part], wrong == kLanes, "thread %u: got %08x, want %08x", i, got[part * kLanes + i], expected(static_cast<Part>(part), i));
  }
}

// waitFor waits until *word is value. It returns false if that takes too long.
__device__ bool waitFor(volatile int* word, int value) {
  const long long start = clock64();
  while (*word != value) {
    if (clock64() - start > kPatience) return false;
  }
  return true;
}

// takeTurns: the lanes of a warp pass a token from the last lane to the first. Each waits
// in the same loop, so a warp that runs as one never gets to the lane that has the token.
__global__ void takeTurns(int* token, int* order, int* stuck) {
  const int lane = threadIdx.x;
  if (!waitFor(token, lane + 1)) {
    atomicAdd(stuck, 1);
    return;
  }
  order[kWarp - 1 - lane] = lane;
  __threadfence();
  *static_cast<volatile int*>(token) = lane;
}

// lockAndCount: each lane takes the same lock, and adds to a number that is not atomic.
__global__ void lockAndCount(int* lock, int* count, int* stuck, int rounds) {
  for (int i = 0; i < rounds; i++) {
    const long long start = clock64();
    while (atomicCAS(lock, 0, 1) != 0) {
      if (clock64() - start > kPatience) {
        atomicAdd(stuck, 1);
        return;
      }
    }
    __threadfence();
    *static_cast<volatile int*>(count) += 1;
    __threadfence();
    atomicExch(lock, 0);
  }
}

void proveIndependentThreads(bool independent) {
  if (!independent) {
    std::printf("SKIP turns: threads run on their own from compute capability 7.0 on\n");
    std::printf("SKIP lock: threads run on their own from compute capability 7.0 on\n");
    return;
  }
  const int rounds = 50, blocks = 4;
  int* words = nullptr;
  std::vector<int> got(3 + kWarp);
  const size_t bytes = got.size() * sizeof(int);
  check(cudaMalloc(&words, bytes), "memory");

  got[0] = kWarp;
  check(cudaMemcpy(words, got.data(), bytes, cudaMemcpyHostToDevice), "turns");
  takeTurns<<<1, kWarp>>>(words, words + 3, words + 2);
  check(cudaGetLastError(), "turns");
  check(cudaMemcpy(got.data(), words, bytes, cudaMemcpyDeviceToHost), "turns");
  bool ordered = got[0] == 0;
  for (unsigned i = 0; i < kWarp; i++) ordered = ordered && got[3 + i] == static_cast<int>(kWarp - 1 - i);
  report("turns", ordered && got[2] == 0, "%d of %u threads waited in vain", got[2], kWarp);

  check(cudaMemset(words, 0, bytes), "lock");
  lockAndCount<<<blocks, kWarp>>>(words, words + 1, words + 2, rounds);
  check(cudaGetLastError(), "lock");
  check(cudaMemcpy(got.data(), words, bytes, cudaMemcpyDeviceToHost), "lock");
  const int want = blocks * static_cast<int>(kWarp) * rounds;
  report("lock", got[1] == want && got[2] == 0, "counted %d, want %d; %d threads waited in vain", got[1], want, got[2]);
  check(cudaFree(words), "memory");
}

__global__ void scanWarps(const uint32_t* in, uint32_t* out) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = scan(in[i]);
}

__global__ void reduceWarps(const uint32_t* in, uint32_t* out) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t sum = reduce(in[i]);
  if (i % kWarp == 0) out[i / kWarp] = sum;
}

// measure prints how many elements a kernel takes in a second: the median of kRounds.
void measure(const char* name, void (*kernel)(const uint32_t*, uint32_t*)) {
  uint32_t *in = nullptr, *out = nullptr;
  check(cudaMalloc(&in, kElements * sizeof(uint32_t)), "memory");
  check(cudaMalloc(&out, kElements * sizeof(uint32_t)), "memory");
  check(cudaMemset(in, 1, kElements * sizeof(uint32_t)), "memory");
  cudaEvent_t start, end;
  check(cudaEventCreate(&start), name);
  check(cudaEventCreate(&end), name);
  std::vector<float> times;
  for (int round = 0; round <= kRounds; round++) {
    check(cudaEventRecord(start), name);
    kernel<<<kElements / kThreads, kThreads>>>(in, out);
    check(cudaEventRecord(end), name);
    check(cudaEventSynchronize(end), name);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, end), name);
    if (round == 0) continue;  // the first one also loads the program
    size_t at = times.size();
    times.push_back(ms);
    for (; at > 0 && times[at - 1] > ms; at--) times[at] = times[at - 1];
    times[at] = ms;
  }
  std::printf("%s=%.1f MegaElements/s\n", name, kElements / 1e6 / (times[kRounds / 2] / 1e3));
  check(cudaFree(in), "memory");
  check(cudaFree(out), "memory");
}

}  // namespace

int main() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "GPU");
  if (devices == 0) check(cudaErrorNoDevice, "GPU");
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 0), "GPU");
  std::printf("GPU: %s, compute capability %d.%d\n", p.name, p.major, p.minor);
  const bool independent = p.major >= 7;
  proveVotesAndShuffles(independent);
  proveIndependentThreads(independent);
  measure("scan", scanWarps);
  measure("reduction", reduceWarps);
  std::printf("Result = %s\n", failed ? "FAIL" : "PASS");
  return failed;
}
