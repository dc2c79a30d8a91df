/* Matrix products: libcublas and libcublasLt. They take their time and compute nothing. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define VERSION 130002 /* 13.0.2, which PyTorch 2.11 to 2.13 come with */

typedef struct {
    void *stream;
    int pointer_mode, math_mode;
} handle;

static int width_of(int type) { /* cudaDataType_t */
    switch (type) {
    case 0: case 10: return 4;  /* CUDA_R_32F, CUDA_R_32I */
    case 1: return 8;           /* CUDA_R_64F */
    case 2: case 14: return 2;  /* CUDA_R_16F, CUDA_R_16BF */
    default: return 1;          /* 8 bits */
    }
}

/* A status of cuBLAS: an error of the device is "execution failed". */
static int status(int error) { return error ? 13 : 0; }

API int cublasCreate_v2(handle **created) {
    *created = calloc(1, sizeof **created);
    return 0;
}
API int cublasDestroy_v2(handle *own) {
    free(own);
    return 0;
}
API int cublasSetStream_v2(handle *own, void *stream) {
    own->stream = stream;
    return 0;
}
API int cublasGetStream_v2(handle *own, void **stream) {
    *stream = own->stream;
    return 0;
}
API int cublasSetPointerMode_v2(handle *own, int mode) {
    own->pointer_mode = mode;
    return 0;
}
API int cublasGetPointerMode_v2(handle *own, int *mode) {
    *mode = own->pointer_mode;
    return 0;
}
API int cublasSetMathMode(handle *own, int mode) {
    own->math_mode = mode;
    return 0;
}
API int cublasGetMathMode(handle *own, int *mode) {
    *mode = own->math_mode;
    return 0;
}
API int cublasGetVersion_v2(handle *own, int *version) {
    (void)own;
    *version = VERSION;
    return 0;
}
API const char *cublasGetStatusString(int value) {
    return value == 13 ? "the GPU program failed to execute" : value ? "cuBLAS failed" : "success";
}

#define OPERANDS const void *alpha, const void *a, int lda, const void *b, int ldb, const void *beta, void *c, int ldc
#define UNUSED (void)ta, (void)tb, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc

#define PRODUCT(name, width)                                                                     \
    API int name(handle *own, int ta, int tb, int m, int n, int k, OPERANDS) {                   \
        UNUSED;                                                                                  \
        return status(sim_matmul(#name, m, n, k, 1, width, width, own->stream));                       \
    }
PRODUCT(cublasSgemm_v2, 4)
PRODUCT(cublasDgemm_v2, 8)

#define BATCHED(name, width)                                                                                        \
    API int name(handle *own, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda,       \
                 long long sa, const void *b, int ldb, long long sb, const void *beta, void *c, int ldc,            \
                 long long sc, int count) {                                                                         \
        UNUSED, (void)sa, (void)sb, (void)sc;                                                                       \
        return status(sim_matmul(#name, m, n, k, count, width, width, own->stream));                                \
    }
BATCHED(cublasSgemmStridedBatched, 4)
BATCHED(cublasDgemmStridedBatched, 8)

API int cublasGemmEx(handle *own, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int a_type, int lda,
                     const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc, int compute, int algorithm) {
    UNUSED, (void)b_type, (void)compute, (void)algorithm;
    return status(sim_matmul("cublasGemmEx", m, n, k, 1, width_of(a_type), width_of(c_type), own->stream));
}
API int cublasGemmStridedBatchedEx(handle *own, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int a_type,
                                   int lda, long long sa, const void *b, int b_type, int ldb, long long sb, const void *beta,
                                   void *c, int c_type, int ldc, long long sc, int count, int compute, int algorithm) {
    UNUSED, (void)b_type, (void)sa, (void)sb, (void)sc, (void)compute, (void)algorithm;
    return status(sim_matmul("cublasGemmStridedBatchedEx", m, n, k, count, width_of(a_type), width_of(c_type), own->stream));
}

/* --- cuBLASLt: descriptions are filled attribute by attribute --- */

typedef struct {
    int type;
    long rows, columns, count;
} layout;

typedef struct {
    int transposed; /* the first operand */
} description;

API unsigned long cublasLtGetVersion(void) { return VERSION; }
API int cublasLtMatmulDescCreate(description **created, int compute, int scale) {
    (void)compute, (void)scale;
    *created = calloc(1, sizeof **created);
    return 0;
}
API int cublasLtMatmulDescDestroy(description *own) {
    free(own);
    return 0;
}
API int cublasLtMatmulDescSetAttribute(description *own, int attribute, const void *value, size_t bytes) {
    if (attribute == 3 && bytes == sizeof(int)) own->transposed = *(const int *)value; /* CUBLASLT_MATMUL_DESC_TRANSA */
    return 0;
}
API int cublasLtMatrixLayoutCreate(layout **created, int type, unsigned long rows, unsigned long columns, long stride) {
    (void)stride;
    *created = calloc(1, sizeof **created);
    **created = (layout){type, (long)rows, (long)columns, 1};
    return 0;
}
API int cublasLtMatrixLayoutDestroy(layout *own) {
    free(own);
    return 0;
}
API int cublasLtMatrixLayoutSetAttribute(layout *own, int attribute, const void *value, size_t bytes) {
    if (attribute == 5 && bytes == sizeof(int)) own->count = *(const int *)value; /* CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT */
    return 0;
}
API int cublasLtMatmulPreferenceCreate(void **created) {
    *created = calloc(1, 8);
    return 0;
}
API int cublasLtMatmulPreferenceDestroy(void *own) {
    free(own);
    return 0;
}
API int cublasLtMatmulAlgoGetHeuristic(void *own, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                       int wanted, void *results, int *found) {
    (void)own, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    memset(results, 0, 96); /* cublasLtMatmulHeuristicResult_t: an algorithm that needs no workspace, status success */
    *found = wanted > 0;
    return 0;
}
API int cublasLtMatmul(void *own, description *operation, const void *alpha, const void *a, layout *a_layout, const void *b,
                       layout *b_layout, const void *beta, const void *c, layout *c_layout, void *d, layout *d_layout,
                       const void *algorithm, void *workspace, size_t workspace_bytes, void *stream) {
    (void)own, (void)alpha, (void)a, (void)b, (void)b_layout, (void)beta, (void)c, (void)c_layout, (void)d, (void)algorithm,
        (void)workspace, (void)workspace_bytes;
    long inner = operation->transposed ? a_layout->rows : a_layout->columns;
    return status(sim_matmul("cublasLtMatmul", d_layout->rows, d_layout->columns, inner, d_layout->count,
                             width_of(a_layout->type), width_of(d_layout->type), stream));
}
