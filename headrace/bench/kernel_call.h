// What kernel_driver.cu asks of each build's library, see kernel_side.cu.
#pragma once

#include <cstdint>

struct KernelCall {
  void const* in;
  void* out;
  float* inScales;
  float* outScales;
  int32_t innerDim, numTokens, topK, tileTokensDim;
  int32_t* permuted;
  int32_t const* paddedRows;
  int32_t const* limits;
  int32_t const* experts;
  int32_t const* numTiles;
  // The SwiGLU controls of each local expert, or null.
  float const *alpha, *beta, *limit;
  bool usePdl;
};

// Returns null, or what went wrong.
using RunActivation = char const* (*)(KernelCall const*, void* stream);
