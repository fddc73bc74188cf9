// One build's activation as a library: the text of a FlashInfer tree, and a call of it.
#include <cutlass/array.h>
#include <cutlass/cutlass.h>
#include <cutlass/numeric_conversion.h>
#include <cutlass/numeric_types.h>

#include <algorithm>
#include <cub/cub.cuh>
#include <cuda/functional>
#include <cuda/std/functional>
#include <limits>
#include <string>

#include "flashinfer/exception.h"
#include "flashinfer/trtllm/fused_moe/DevKernel.h"
#if __has_include("flashinfer/trtllm/fused_moe/ActivationWorkset.cuh")
#include "flashinfer/trtllm/fused_moe/ActivationWorkset.cuh"
#endif
#include "activation.inc"
#include "kernel_call.h"

// The release has no such members.
template <class Data>
auto setWorkset(Data& data, KernelCall const& call, int)
    -> decltype(data.ctaIdxXyToMnLimit = call.limits, void()) {
  data.ctaIdxXyToMnLimit = call.limits;
  data.numNonExitingCtas = call.numTiles;
}
template <class Data>
void setWorkset(Data&, KernelCall const&, long) {}

extern "C" __attribute__((visibility("default"))) char const* run_activation(KernelCall const* call,
                                                                             void* stream) {
  moe::dev::activation::Data data;
  data.mDtypeElt = batchedGemm::trtllm::gen::Dtype::E4m3;
  data.mUsePdl = call->usePdl;
  data.mUseDeepSeekFp8 = true;
  data.inPtr = const_cast<void*>(call->in);
  data.outPtr = call->out;
  data.inDqSfsPtr = call->inScales;
  data.outDqSfsPtr = call->outScales;
  data.innerDim = call->innerDim;
  data.numTokens = call->numTokens;
  data.topK = call->topK;
  data.expandedIdxToPermutedIdx = call->permuted;
  data.totalNumPaddedTokens = call->paddedRows;
  data.ctaIdxXyToBatchIdx = call->experts;
  data.tileTokensDim = call->tileTokensDim;
  data.gatedActAlphaPtr = call->alpha;
  data.gatedActBetaPtr = call->beta;
  data.gatedActClampLimitPtr = call->limit;
  setWorkset(data, *call, 0);
  static thread_local std::string complaint;
  try {
    moe::dev::activation::run(data, stream);
  } catch (std::exception const& error) {
    complaint = error.what();
    return complaint.c_str();
  }
  return nullptr;
}
