// Runs FlashInfer's own `activation::run` on the CPU: kernels, launch code and choice between them
// are the text of the tree that was named when this was compiled.
//
//   activation_runner CASE RESULT [MUTANT]
//
// CASE holds the numbers of `Header`, then the arrays in the order in which they are read below.
// RESULT gets the payload and the scales, stdout one line for each launch. See activation.py.
#include <prelude.h>

#define cudaLaunchKernelEx simt::launch
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, ...) \
  (*(blocks) = simt::device.ctasPerSm, cudaSuccess)

// So that the kernels' own waiting for the primary grid is compiled in.
#define __CUDA_ARCH__ 900
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void cudaGridDependencySynchronize() { simt::grid_dependency(); }
#if __has_include("flashinfer/trtllm/fused_moe/ActivationWorkset.cuh")
#include "flashinfer/trtllm/fused_moe/ActivationWorkset.cuh"
#endif
#include "activation.inc"
#undef __CUDA_ARCH__

extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = simt::device.numSms;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
char const* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "an error";
}
cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int) { return cudaSuccess; }
}

struct Header {
  int32_t numTokens, topK, innerDim, tileTokensDim, numTiles, numExperts, numSfBlocks;
  int32_t hasWorkset, hasAlpha, hasBeta, hasLimit;
  int32_t pdl, order, seed, numSms, ctasPerSm, dtype, misalign;
};

using Data = moe::dev::activation::Data;
constexpr int kGuard = 4096;
constexpr uint8_t kUntouched = 0xA5;

// The release without the patch has no such members.
template <class D>
auto set_workset(D& data, int32_t const* limits, int32_t const* tiles, int)
    -> decltype(data.ctaIdxXyToMnLimit = limits, void()) {
  data.ctaIdxXyToMnLimit = limits;
  data.numNonExitingCtas = tiles;
}
template <class D>
void set_workset(D&, int32_t const*, int32_t const*, long) {}

template <class T>
std::vector<T> read(std::ifstream& file, size_t count) {
  std::vector<T> values(count);
  file.read(reinterpret_cast<char*>(values.data()), std::streamsize(count * sizeof(T)));
  if (!file) {
    std::fprintf(stderr, "activation_runner: the case ends early\n");
    std::_Exit(2);
  }
  return values;
}

// An output with guards on both sides, in which no byte has been touched yet.
struct Output {
  std::vector<uint8_t> bytes;
  explicit Output(size_t size) : bytes(size + 2 * kGuard, kUntouched) {}
  uint8_t* data() { return bytes.data() + kGuard; }
  size_t size() const { return bytes.size() - 2 * kGuard; }
  bool guarded() const {
    auto const same = [](uint8_t byte) { return byte == kUntouched; };
    return std::all_of(bytes.begin(), bytes.begin() + kGuard, same) &&
           std::all_of(bytes.end() - kGuard, bytes.end(), same);
  }
};

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  simt::mutant = argc == 4 ? std::atoi(argv[3]) : 0;
  std::ifstream file(argv[1], std::ios::binary);
  Header const h = read<Header>(file, 1)[0];
  int const rows = h.numTiles * h.tileTokensDim;
  int const outputDim = h.innerDim / 2;
  int const eltBytes = h.dtype == 0 ? 1 : 2;
  auto map = read<int32_t>(file, size_t(h.numTokens) * h.topK);
  auto const limits = read<int32_t>(file, h.numTiles);
  auto const experts = read<int32_t>(file, h.numTiles);
  auto const payload = read<uint8_t>(file, size_t(rows) * h.innerDim * eltBytes);
  auto const scales = read<float>(file, size_t(rows) * h.numSfBlocks);
  auto const alpha = read<float>(file, h.numExperts);
  auto const beta = read<float>(file, h.numExperts);
  auto const limit = read<float>(file, h.numExperts);

  // The payload of a padding row must not even be read: where a row is whole pages, it cannot be.
  size_t const bytes = std::max<size_t>(payload.size(), 1) + 16;
  auto* const in = static_cast<uint8_t*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  uint8_t* const inRows = in + h.misalign;
  int const page = 4096;
  // What the primary grid writes; before it has ended, there is none of it.
  std::vector<float> inScales(scales.size(), std::numeric_limits<float>::quiet_NaN());
  std::vector<int32_t> mapped(map.size(), -1), ends(limits.size() + 1), tileExperts(experts.size() + 1);
  int32_t paddedRows = 1, numTiles = 0;
  simt::on_grid_dependency = [&] {
    std::copy(payload.begin(), payload.end(), inRows);
    std::copy(scales.begin(), scales.end(), inScales.begin());
    std::copy(map.begin(), map.end(), mapped.begin());
    std::copy(limits.begin(), limits.end(), ends.begin());
    std::copy(experts.begin(), experts.end(), tileExperts.begin());
    paddedRows = rows;
    numTiles = h.numTiles;
    if (h.innerDim % page == 0 && h.misalign == 0) {
      for (int row = 0; row < rows; row++) {
        if (row >= limits[row / h.tileTokensDim]) {
          mprotect(in + size_t(row) * h.innerDim, h.innerDim, PROT_NONE);
        }
      }
    }
  };

  Output out(size_t(rows) * outputDim * eltBytes), outScales(size_t(rows) * ((outputDim + 127) / 128) * 4);
  Data data;
  using Dtype = batchedGemm::trtllm::gen::Dtype;
  data.mDtypeElt = h.dtype == 0 ? Dtype::E4m3 : h.dtype == 1 ? Dtype::Fp16 : Dtype::Bfloat16;
  data.mUsePdl = h.pdl;
  data.mUseDeepSeekFp8 = true;
  data.inPtr = inRows;
  data.outPtr = out.data();
  data.inDqSfsPtr = inScales.data();
  data.outDqSfsPtr = reinterpret_cast<float*>(outScales.data());
  data.innerDim = h.innerDim;
  data.numTokens = h.numTokens;
  data.topK = h.topK;
  data.expandedIdxToPermutedIdx = mapped.data();
  data.totalNumPaddedTokens = &paddedRows;
  data.gatedActAlphaPtr = h.hasAlpha ? alpha.data() : nullptr;
  data.gatedActBetaPtr = h.hasBeta ? beta.data() : nullptr;
  data.gatedActClampLimitPtr = h.hasLimit ? limit.data() : nullptr;
  data.ctaIdxXyToBatchIdx = tileExperts.data();
  data.tileTokensDim = h.tileTokensDim;
  if (h.hasWorkset) set_workset(data, ends.data(), &numTiles, 0);

  simt::device = {h.numSms, h.ctasPerSm};
  simt::order = simt::Order(h.order);
  simt::random_order.seed(h.seed);
  try {
    moe::dev::activation::run(data, nullptr);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "activation_runner: %s\n", error.what());
    return 4;
  }
  for (simt::Launch const& each : simt::launches) {
    std::printf("%s %u %u %u %u %d %d %ld %ld %ld %ld\n", each.kernel.c_str(), each.grid.x,
                each.grid.y, each.grid.z, each.block.x, each.pdl, each.synchronized, each.barriers,
                each.waits, each.left_behind, each.busiest);
  }
  if (!out.guarded() || !outScales.guarded()) {
    std::fprintf(stderr, "activation_runner: wrote before or behind an output\n");
    return 5;
  }
  std::ofstream result(argv[2], std::ios::binary);
  result.write(reinterpret_cast<char*>(out.data()), std::streamsize(out.size()));
  result.write(reinterpret_cast<char*>(outScales.data()), std::streamsize(outScales.size()));
  return result ? 0 : 2;
}
