// What activation_runner.cpp includes of others, in a header that is compiled once.
#pragma once

#include "simt.h"

#include <cutlass/array.h>
#include <cutlass/cutlass.h>
#include <cutlass/numeric_conversion.h>
#include <cutlass/numeric_types.h>
#include <sys/mman.h>

#include <algorithm>
#include <cub/cub.cuh>
#include <cuda/functional>
#include <cuda/std/functional>
#include <fstream>
#include <iterator>
#include <limits>

#include "flashinfer/trtllm/fused_moe/DevKernel.h"
