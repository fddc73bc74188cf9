// Runs two builds' activation on one GPU: the same bits? how long does each take?
//
//   kernel_driver STOCK.so PATCHED.so CASE...
//
// Prints one line of JSON for the device, then one for each case. CASE holds the numbers of `Header`
// and the routing's arrays, see kernel_plan.py. Payload and scales are made here, on the device.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "kernel_call.h"

#define CHECK(call)                                                                       \
  do {                                                                                    \
    cudaError_t const error = (call);                                                     \
    if (error != cudaSuccess) stop(#call, cudaGetErrorString(error));                     \
  } while (0)

[[noreturn]] void stop(char const* what, char const* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}

struct Header {
  int32_t numTokens, topK, innerDim, tileTokensDim, numTiles, rounds, launches, sets;
};

constexpr uint8_t kUntouched = 0xA5;

__device__ uint32_t mix(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x7fb5d329728ea185ull;
  value = (value ^ (value >> 27)) * 0x81dadef4bc2dd44dull;
  return uint32_t(value >> 32);
}

// Any code of e4m3 but its NaNs.
__global__ void fillCodes(uint8_t* codes, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    uint8_t const code = mix(seed + i);
    codes[i] = (code & 0x7f) == 0x7f ? 0 : code;
  }
}

__global__ void fillScales(float* scales, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    scales[i] = 0.001f + 0.05f * (mix(seed + i) >> 8) / float(1 << 24);
  }
}

__global__ void countDifferences(uint32_t const* left, uint32_t const* right, size_t count,
                                 unsigned long long* differences) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    if (left[i] != right[i]) atomicAdd(differences, 1ull);
  }
}

template <class T>
T* allocate(size_t count) {
  void* pointer = nullptr;
  CHECK(cudaMalloc(&pointer, std::max<size_t>(count, 1) * sizeof(T)));
  return static_cast<T*>(pointer);
}

template <class T>
T* upload(std::vector<T> const& values) {
  T* const pointer = allocate<T>(values.size());
  CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  // The copy may return before the device has it, and our stream does not wait for the default one.
  CHECK(cudaStreamSynchronize(cudaStreamLegacy));
  return pointer;
}

RunActivation load(char const* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) stop(path, dlerror());
  void* const function = dlsym(library, "run_activation");
  if (!function) stop(path, dlerror());
  return reinterpret_cast<RunActivation>(function);
}

// SwiGLU controls that differ from expert to expert; the limits cut many of the values off.
struct Controls {
  float *alpha, *beta, *limit;
  explicit Controls(std::vector<int32_t> const& experts) {
    int const count = experts.empty() ? 1 : *std::max_element(experts.begin(), experts.end()) + 1;
    std::vector<float> alphas(count), betas(count), limits(count);
    for (int expert = 0; expert < count; expert++) {
      alphas[expert] = 0.5f + 0.1f * (expert % 13);
      betas[expert] = 0.3f * (expert % 7) - 1.0f;
      limits[expert] = 0.5f + 0.7f * (expert % 11);
    }
    alpha = upload(alphas);
    beta = upload(betas);
    limit = upload(limits);
  }
  void set(KernelCall& call) const {
    call.alpha = alpha;
    call.beta = beta;
    call.limit = limit;
  }
};

void run(RunActivation build, KernelCall const& call, cudaStream_t stream) {
  if (char const* const complaint = build(&call, stream)) stop("activation", complaint);
}

// Microseconds of a launch, in a graph of launches that go through all sets of buffers in turn.
class Timed {
 public:
  Timed(RunActivation build, std::vector<KernelCall> const& sets, int launches, cudaStream_t stream)
      : stream_(stream), launches_(launches) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++) run(build, sets[i % sets.size()], stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&graph_, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventCreate(&start_));
    CHECK(cudaEventCreate(&end_));
  }
  ~Timed() {
    cudaGraphExecDestroy(graph_);
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }
  float microseconds() {
    CHECK(cudaEventRecord(start_, stream_));
    CHECK(cudaGraphLaunch(graph_, stream_));
    CHECK(cudaEventRecord(end_, stream_));
    CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, start_, end_));
    return milliseconds * 1e3f / launches_;
  }

 private:
  cudaStream_t stream_;
  int launches_;
  cudaGraphExec_t graph_;
  cudaEvent_t start_, end_;
};

float copyTerabytesPerSecond(cudaStream_t stream) {
  size_t const bytes = size_t(1) << 30;
  auto* const from = allocate<uint8_t>(bytes);
  auto* const to = allocate<uint8_t>(bytes);
  cudaEvent_t start, end;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&end));
  float best = 1e9f;
  for (int round = 0; round < 8; round++) {
    CHECK(cudaEventRecord(start, stream));
    CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, start, end));
    if (round > 0) best = std::min(best, milliseconds);
  }
  CHECK(cudaFree(from));
  CHECK(cudaFree(to));
  return 2 * bytes / (best * 1e-3f) / 1e12f;
}

void printList(char const* name, std::vector<float> const& values) {
  std::printf(", \"%s\": [", name);
  for (size_t i = 0; i < values.size(); i++) std::printf("%s%.4f", i ? ", " : "", values[i]);
  std::printf("]");
}

void compare(char const* path, RunActivation stock, RunActivation patched, cudaStream_t stream) {
  std::ifstream file(path, std::ios::binary);
  Header h{};
  file.read(reinterpret_cast<char*>(&h), sizeof h);
  auto const ints = [&](size_t count) {
    std::vector<int32_t> values(count);
    file.read(reinterpret_cast<char*>(values.data()), std::streamsize(count * 4));
    return values;
  };
  auto const permuted = ints(size_t(h.numTokens) * h.topK);
  auto const limits = ints(h.numTiles);
  auto const experts = ints(h.numTiles);
  if (!file) stop(path, "the case ends early");
  size_t const rows = size_t(h.numTiles) * h.tileTokensDim;
  size_t const outputDim = h.innerDim / 2;
  size_t const payloadBytes = rows * outputDim;
  size_t const scaleBytes = rows * (outputDim / 128) * 4;

  KernelCall call{};
  call.innerDim = h.innerDim;
  call.numTokens = h.numTokens;
  call.topK = h.topK;
  call.tileTokensDim = h.tileTokensDim;
  call.permuted = upload(permuted);
  call.paddedRows = upload(std::vector<int32_t>{int32_t(rows)});
  call.limits = upload(limits);
  call.experts = upload(experts);
  call.numTiles = upload(std::vector<int32_t>{h.numTiles});
  std::vector<void*> owned{call.permuted, const_cast<int32_t*>(call.paddedRows),
                           const_cast<int32_t*>(call.limits), const_cast<int32_t*>(call.experts),
                           const_cast<int32_t*>(call.numTiles)};
  // As FlashInfer starts it on all of these GPUs unless it is told not to.
  call.usePdl = true;

  std::vector<KernelCall> sets(h.sets, call);
  for (int set = 0; set < h.sets; set++) {
    auto* const in = allocate<uint8_t>(rows * h.innerDim);
    sets[set].in = in;
    sets[set].inScales = allocate<float>(rows * (h.innerDim / 128));
    sets[set].out = allocate<uint8_t>(payloadBytes);
    sets[set].outScales = reinterpret_cast<float*>(allocate<uint8_t>(scaleBytes));
    owned.insert(owned.end(), {in, sets[set].inScales, sets[set].out, sets[set].outScales});
    fillCodes<<<1024, 256, 0, stream>>>(in, rows * h.innerDim, set * 1000003ull);
    fillScales<<<1024, 256, 0, stream>>>(sets[set].inScales, rows * (h.innerDim / 128), set + 7ull);
  }

  // The whole outputs, padding included: what neither build touches is equal.
  KernelCall other = sets[0];
  other.out = allocate<uint8_t>(payloadBytes);
  other.outScales = reinterpret_cast<float*>(allocate<uint8_t>(scaleBytes));
  owned.insert(owned.end(), {other.out, other.outScales});
  auto* const counts = upload(std::vector<unsigned long long>{0, 0});
  owned.push_back(counts);
  Controls const controls(experts);
  owned.insert(owned.end(), {controls.alpha, controls.beta, controls.limit});
  // Each of these is a kernel of its own: with and without PDL, with and without the controls.
  for (int kind = 0; kind < 4; kind++) {
    KernelCall left = sets[0], right = other;
    for (KernelCall* each : {&left, &right}) {
      each->usePdl = kind & 1;
      if (kind & 2) controls.set(*each);
      CHECK(cudaMemsetAsync(each->out, kUntouched, payloadBytes, stream));
      CHECK(cudaMemsetAsync(each->outScales, kUntouched, scaleBytes, stream));
    }
    run(stock, left, stream);
    run(patched, right, stream);
    countDifferences<<<1024, 256, 0, stream>>>(static_cast<uint32_t*>(left.out),
                                               static_cast<uint32_t*>(right.out), payloadBytes / 4,
                                               counts);
    countDifferences<<<1024, 256, 0, stream>>>(
        reinterpret_cast<uint32_t*>(left.outScales), reinterpret_cast<uint32_t*>(right.outScales),
        scaleBytes / 4, counts + 1);
  }
  CHECK(cudaStreamSynchronize(stream));
  unsigned long long differences[2];
  CHECK(cudaMemcpy(differences, counts, sizeof differences, cudaMemcpyDeviceToHost));

  std::vector<float> stockTimes, patchedTimes;
  {
    Timed stockTimed(stock, sets, h.launches, stream), patchedTimed(patched, sets, h.launches, stream);
    stockTimed.microseconds();
    patchedTimed.microseconds();
    for (int round = 0; round < h.rounds; round++) {
      // In turns, so that a clock that drifts meets both.
      stockTimes.push_back(stockTimed.microseconds());
      patchedTimes.push_back(patchedTimed.microseconds());
    }
  }
  std::printf("{\"payload_differences\": %llu, \"scale_differences\": %llu", differences[0],
              differences[1]);
  printList("stock_us", stockTimes);
  printList("patched_us", patchedTimes);
  std::printf("}\n");
  std::fflush(stdout);
  for (void* pointer : owned) CHECK(cudaFree(pointer));
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  int device = 0;
  cudaDeviceProp properties{};
  CHECK(cudaGetDevice(&device));
  CHECK(cudaGetDeviceProperties(&properties, device));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::printf(
      "{\"name\": \"%s\", \"major\": %d, \"minor\": %d, \"multiprocessors\": %d, \"l2_bytes\": %d, "
      "\"memory_bytes\": %zu, \"copy_tbs\": %.4f}\n",
      properties.name, properties.major, properties.minor, properties.multiProcessorCount,
      properties.l2CacheSize, properties.totalGlobalMem,
      copyTerabytesPerSecond(stream));
  std::fflush(stdout);
  RunActivation const stock = load(argv[1]), patched = load(argv[2]);
  for (int i = 3; i < argc; i++) compare(argv[i], stock, patched, stream);
  return 0;
}
