// Stands in for a header of the flashinfer-cubin release, which is not on the Python index: the
// element types that DevKernel.h names, no more. For tests on the CPU alone.
#pragma once

namespace batchedGemm::trtllm::gen {

enum class Dtype { Bfloat16, E2m1, E4m3, Fp16, Fp32 };

}  // namespace batchedGemm::trtllm::gen
