/* Matrix products: libcublas and libcublasLt. They take their time, and compute nothing but small products of cuBLASLt. */
#include <math.h>
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

/* --- cuBLASLt: descriptions are filled attribute by attribute; epilogues are checked, and computed where values are ---

   Refused is what NVIDIA's documentation of cublasLtMatmul, cublasLtEpilogue_t and cublasLtMatmulDescAttributes_t
   refuses; its bias gradients of B, which it restricts nowhere, are taken in the layout alone that training has (N, T). */

enum { INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { DEFAULT = 1, BIAS = 4, GELU = 32, DGELU = 64, AUX = 128, BGRADB = 512 }; /* cublasLtEpilogue_t, as bits */
enum { COMPUTE_TYPE_SCHEME = 2 };

typedef struct {
    int type;
    long rows, columns, stride, count;
} layout;

typedef struct {
    int transposed[2];
    unsigned epilogue;
    char *bias, *aux;
    long aux_stride;
} description;

typedef struct {
    uint64_t workspace;
    unsigned schemes, alignments[4];
} preference;

typedef struct { /* cublasLtMatmulAlgo_t: 64 bytes, which are the library's own */
    uint64_t number, parts, workspace;
    unsigned alignments[4];
    uint64_t unused[3];
} algorithm;

typedef struct { /* cublasLtMatmulHeuristicResult_t */
    algorithm found;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic;

API unsigned long cublasLtGetVersion(void) { return VERSION; }
API int cublasLtCreate(handle **created) { return cublasCreate_v2(created); }
API int cublasLtDestroy(handle *own) { return cublasDestroy_v2(own); }
API int cublasLtMatmulDescCreate(description **created, int compute, int scale) {
    (void)compute, (void)scale;
    *created = calloc(1, sizeof **created);
    (*created)->epilogue = DEFAULT;
    return 0;
}
API int cublasLtMatmulDescDestroy(description *own) {
    free(own);
    return 0;
}

static int take(void *field, size_t wanted, const void *value, size_t bytes) {
    if (bytes != wanted) return INVALID_VALUE;
    memcpy(field, value, bytes);
    return 0;
}

API int cublasLtMatmulDescSetAttribute(description *own, int attribute, const void *value, size_t bytes) {
    switch (attribute) { /* cublasLtMatmulDescAttributes_t */
    case 3: case 4: return take(&own->transposed[attribute - 3], sizeof(int), value, bytes); /* TRANSA, TRANSB */
    case 7: return take(&own->epilogue, sizeof own->epilogue, value, bytes);
    case 8: return take(&own->bias, sizeof own->bias, value, bytes);
    case 11: return take(&own->aux, sizeof own->aux, value, bytes);
    case 12: return take(&own->aux_stride, sizeof own->aux_stride, value, bytes);
    default: return 0;
    }
}
API int cublasLtMatrixLayoutCreate(layout **created, int type, unsigned long rows, unsigned long columns, long stride) {
    *created = calloc(1, sizeof **created);
    **created = (layout){type, (long)rows, (long)columns, stride, 1};
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
API int cublasLtMatmulPreferenceCreate(preference **created) {
    *created = calloc(1, sizeof **created);
    (*created)->schemes = 7;
    for (int i = 0; i < 4; i++) (*created)->alignments[i] = 256;
    return 0;
}
API int cublasLtMatmulPreferenceDestroy(preference *own) {
    free(own);
    return 0;
}
API int cublasLtMatmulPreferenceSetAttribute(preference *own, int attribute, const void *value, size_t bytes) {
    switch (attribute) { /* cublasLtMatmulPreferenceAttributes_t */
    case 1: return take(&own->workspace, sizeof own->workspace, value, bytes);
    case 3: return take(&own->schemes, sizeof own->schemes, value, bytes);
    case 5: case 6: case 7: case 8: return take(&own->alignments[attribute - 5], sizeof(unsigned), value, bytes);
    default: return 0;
    }
}

static long inner_of(const description *operation, const layout *a) { return operation->transposed[0] ? a->rows : a->columns; }

/* The status of a product that the library cannot compute; 0: it can. */
static int refused(const description *operation, const layout *a, const layout *b, const layout *d) {
    unsigned epilogue = operation->epilogue;
    bool at = operation->transposed[0], bt = operation->transposed[1];
    if ((at ? a->columns : a->rows) != d->rows || (bt ? b->rows : b->columns) != d->columns) return INVALID_VALUE;
    if (inner_of(operation, a) != (bt ? b->columns : b->rows)) return INVALID_VALUE;
    if (a->stride < a->rows || b->stride < b->rows || d->stride < d->rows) return INVALID_VALUE;
    bool has_vector = epilogue & (BIAS | 16 | 256 | BGRADB); /* bias, and its gradients */
    if (has_vector && !operation->bias) return INVALID_VALUE;
    if ((epilogue & AUX) && (!operation->aux || operation->aux_stride < d->rows)) return INVALID_VALUE;
    bool of_bits = (epilogue & AUX) && !(epilogue & (GELU | DGELU)); /* ReLU's mask */
    if ((epilogue & AUX) && operation->aux_stride % (of_bits ? 128 : 8)) return INVALID_VALUE;
    if ((epilogue & AUX) && (uintptr_t)operation->aux % 16) return NOT_SUPPORTED;
    if ((epilogue & BGRADB) && (at || !bt)) return NOT_SUPPORTED;
    return 0;
}

API int cublasLtMatmulAlgoGetHeuristic(void *own, description *operation, layout *a, layout *b, layout *c, layout *d,
                                       preference *preferred, int wanted, heuristic *results, int *found) {
    (void)own, (void)c;
    static const unsigned parts[] = {1, 1, 4, 8}; /* of the depth: the last two split it */
    *found = 0;
    int error = refused(operation, a, b, d);
    if (error) return error;
    for (unsigned i = 0; i < sizeof parts / sizeof *parts && *found < wanted; i++) {
        uint64_t workspace = parts[i] > 1 ? 4ull * parts[i] * d->rows * d->columns : 0; /* partial sums in fp32 */
        if (workspace > preferred->workspace || (parts[i] > 1 && !(preferred->schemes & COMPUTE_TYPE_SCHEME))) continue;
        heuristic *next = &results[(*found)++];
        *next = (heuristic){{.number = i, .parts = parts[i], .workspace = workspace}, .workspace = workspace, .waves = 1};
        memcpy(next->found.alignments, preferred->alignments, sizeof preferred->alignments);
    }
    return *found ? 0 : NOT_SUPPORTED;
}

/* --- values --- */

typedef struct {
    const char *a, *b;
    char *d, *bias, *aux;
    int rows, columns, inner, a_stride, b_stride, d_stride, aux_stride;
    short type, epilogue;
    bool at, bt;
} small_product;
_Static_assert(sizeof(small_product) <= PAYLOAD, "a product fits into an operation");

static float read_at(const char *memory, long place, int type) {
    uint32_t bits;
    float wide;
    switch (type) { /* cudaDataType_t */
    case 2: return (float)((const _Float16 *)memory)[place];
    case 14:
        bits = (uint32_t)((const uint16_t *)memory)[place] << 16;
        memcpy(&wide, &bits, sizeof wide);
        return wide;
    default: return ((const float *)memory)[place];
    }
}

static void write_at(char *memory, long place, int type, float value) {
    uint32_t bits;
    switch (type) {
    case 2: ((_Float16 *)memory)[place] = (_Float16)value; break;
    case 14: /* to the nearest, ties to even */
        memcpy(&bits, &value, sizeof bits);
        ((uint16_t *)memory)[place] = isnan(value) ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
        break;
    default: ((float *)memory)[place] = value;
    }
}

static float *widened(const char *memory, long rows, long columns, long stride, int type, bool transposed) {
    float *out = malloc(sizeof(float) * (size_t)(rows * columns)); /* column after column of the stored matrix, or row after row */
    for (long j = 0; j < columns; j++)
        for (long i = 0; i < rows; i++)
            out[transposed ? j * rows + i : i * columns + j] = read_at(memory, j * stride + i, type);
    return out;
}

static float gelu(float x) { return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

static float gelu_slope(float x) {
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

static double compute(void *payload, double start, double end) {
    (void)start;
    const small_product *p = payload;
    long m = p->rows, n = p->columns, k = p->inner;
    float *a = widened(p->a, p->at ? k : m, p->at ? m : k, p->a_stride, p->type, p->at);   /* [m, k] */
    float *b = widened(p->b, p->bt ? n : k, p->bt ? k : n, p->b_stride, p->type, !p->bt);  /* [n, k] */
    for (long j = 0; j < n; j++) {
        for (long i = 0; i < m; i++) {
            float sum = 0;
            for (long l = 0; l < k; l++) sum += a[i * k + l] * b[j * k + l];
            if (p->epilogue & BIAS) sum += read_at(p->bias, i, p->type);
            long beside = j * p->aux_stride + i;
            if (p->epilogue & GELU) {
                if (p->epilogue & AUX) write_at(p->aux, beside, p->type, sum);
                sum = gelu(sum);
            }
            if (p->epilogue & DGELU) sum *= gelu_slope(read_at(p->aux, beside, p->type));
            write_at(p->d, j * p->d_stride + i, p->type, sum);
        }
        if (p->epilogue & BGRADB) {
            float sum = 0;
            for (long l = 0; l < k; l++) sum += b[j * k + l];
            write_at(p->bias, j, p->type, sum);
        }
    }
    free(a), free(b);
    return end;
}

/* Whether it is computed: as large as SIMULATED_CUDA_VALUES at most, of one type of 16 or 32 bits, by epilogues above. */
static bool has_values(const description *operation, const layout *a, const layout *b, const layout *d) {
    const char *limit = getenv("SIMULATED_CUDA_VALUES");
    double most = limit ? atof(limit) : 0;
    const layout *each[] = {a, b, d};
    for (int i = 0; i < 3; i++)
        if ((double)width_of(d->type) * (double)each[i]->stride * (double)each[i]->columns > most) return false;
    bool known = d->type == 0 || d->type == 2 || d->type == 14;
    unsigned others = operation->epilogue & ~(unsigned)(DEFAULT | BIAS | GELU | DGELU | AUX | BGRADB);
    bool of_mask = (operation->epilogue & AUX) && !(operation->epilogue & (GELU | DGELU));
    return known && a->type == d->type && b->type == d->type && d->count == 1 && !others && !of_mask;
}

static const char *name_of(unsigned epilogue) {
    switch (epilogue) {
    case GELU | AUX | BIAS: return "cublasLtMatmul+GELU_AUX_BIAS";
    case GELU | AUX: return "cublasLtMatmul+GELU_AUX";
    case DGELU | AUX: return "cublasLtMatmul+DGELU";
    case BGRADB: return "cublasLtMatmul+BGRADB";
    default: return "cublasLtMatmul";
    }
}

API int cublasLtMatmul(void *own, description *operation, const void *alpha, const void *a, layout *a_layout, const void *b,
                       layout *b_layout, const void *beta, const void *c, layout *c_layout, void *d, layout *d_layout,
                       const algorithm *chosen, void *workspace, size_t workspace_bytes, void *stream) {
    (void)own, (void)alpha, (void)beta, (void)c_layout, (void)workspace;
    int error = refused(operation, a_layout, b_layout, d_layout);
    if (error) return error;
    const void *addresses[] = {a, b, c, d};
    for (int i = 0; chosen && i < 4; i++) { /* an algorithm takes what it was found for */
        unsigned alignment = chosen->alignments[i];
        if (alignment && addresses[i] && (uintptr_t)addresses[i] % alignment) return NOT_SUPPORTED;
    }
    if (chosen && chosen->workspace > workspace_bytes) return INVALID_VALUE;
    long inner = inner_of(operation, a_layout), rows = d_layout->rows, columns = d_layout->columns;
    /* Invented, so that algorithms differ: split depths are faster where the depth is long, and slower elsewhere. */
    bool is_deep = inner > 4 * (rows > columns ? rows : columns);
    double slower = !chosen || !chosen->number ? 1 : chosen->parts > 1 ? (is_deep ? 0.8 : 1.5) : 1.2;
    small_product product = {a, b, d, operation->bias, operation->aux, (int)rows, (int)columns, (int)inner,
                             (int)a_layout->stride, (int)b_layout->stride, (int)d_layout->stride, (int)operation->aux_stride,
                             (short)d_layout->type, (short)operation->epilogue, operation->transposed[0], operation->transposed[1]};
    char payload[PAYLOAD] = {0};
    memcpy(payload, &product, sizeof product);
    sim_effect effect = has_values(operation, a_layout, b_layout, d_layout) ? compute : NULL;
    return status(sim_product(name_of(operation->epilogue), rows, columns, inner, d_layout->count, width_of(a_layout->type),
                              width_of(d_layout->type), slower, effect, payload, stream));
}
