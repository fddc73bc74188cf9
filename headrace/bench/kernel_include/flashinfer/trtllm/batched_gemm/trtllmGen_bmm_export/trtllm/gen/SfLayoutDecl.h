// Stands in for a header of the flashinfer-cubin release, see DtypeDecl.h.
#pragma once

namespace batchedGemm::trtllm::gen {

enum class SfLayout { Linear, R8c4, R128c4 };

}  // namespace batchedGemm::trtllm::gen
