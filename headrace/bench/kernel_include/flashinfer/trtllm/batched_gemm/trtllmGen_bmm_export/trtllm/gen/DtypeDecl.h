// Stands in for a header of the flashinfer-cubin release, which is not on the Python index: the
// element types that DevKernel.h names, no more. For the bench and for tests on the CPU; what is
// compiled with it never ships.
#pragma once

namespace batchedGemm::trtllm::gen {

enum class Dtype { Bfloat16, E2m1, E4m3, Fp16, Fp32 };

}  // namespace batchedGemm::trtllm::gen
