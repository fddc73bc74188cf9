// Included by cudaUtils.h; nothing of cuBLAS is used by the activation.
