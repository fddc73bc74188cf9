// Stands in for CUB: the one block reduction that the activation kernels use.
#pragma once

#include "simt.h"

namespace cub {

template <class T, int NumThreads>
struct BlockReduce {
  struct TempStorage {
    T values[NumThreads];
  };

  TempStorage& storage;

  explicit BlockReduce(TempStorage& shared) : storage(shared) {}

  // As CUB leaves it undefined for other threads than the first, they get NaNs.
  template <class Op>
  T Reduce(T value, Op op) {
    storage.values[threadIdx.x] = value;
    __syncthreads();
    T result;
    std::memset(&result, 0xff, sizeof result);
    if (threadIdx.x == 0) {
      result = storage.values[0];
      for (int i = 1; i < NumThreads; i++) result = op(result, storage.values[i]);
    }
    return result;
  }
};

}  // namespace cub
