/* The C interface of the native CPU kernels: thread pool, activation rows, packed linear layers.
 *
 * Everything here is plain C on pointers, so Python reaches it through ctypes and other kernels link to it.
 *
 * Conventions
 *   - matrices are row-major; y[m][n] = sum_k x[m][k] * w[n][k] (+ bias[n]); strides ("ld") count elements.
 *   - "part" functions do one thread's share and may be called inside a region (cg_region); they contain no
 *     barrier. The caller puts cg_barrier between a producer and its consumers. The plain functions are a
 *     whole fork-join and must not be called inside a region.
 *     Within one region every thread must make the same part calls in the same order with the region's tid and
 *     nthreads: threads that are done help the others. (nthreads 1 outside a region is fine too.)
 *   - a row's bits never depend on m, on the row's position, on the thread count or on which part computed it:
 *     integer dot products over groups of 32 are exact, and the float accumulation over groups runs in
 *     ascending k everywhere. They may differ between ISA levels.
 *   - functions that return int return 0, or a CG_E* code; those that return a pointer return NULL on error.
 */
#ifndef CALLGATE_CPU_H
#define CALLGATE_CPU_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CG_API __attribute__((visibility("default")))
#else
#define CG_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CG_ABI_VERSION 4
#define CG_GROUP 32 /* activations: one scale per 32 values */

enum { CG_OK = 0, CG_EINVAL = 1, CG_ENOMEM = 2, CG_EUNSUPPORTED = 3 };

enum { CG_ISA_AUTO = -1, CG_ISA_PORTABLE = 0, CG_ISA_AVX2 = 1, CG_ISA_AVX512 = 2 };

/* ggml's type numbers, so a GGUF tensor's type is passed on unchanged. */
enum {
  CG_F32 = 0,
  CG_F16 = 1,
  CG_Q4_0 = 2,
  CG_Q4_1 = 3,
  CG_Q5_0 = 6,
  CG_Q5_1 = 7,
  CG_Q8_0 = 8,
  CG_Q4_K = 12,
  CG_Q5_K = 13,
  CG_Q6_K = 14,
  CG_BF16 = 30,
};

CG_API int cg_abi_version(void);
/* Best level of this machine among those compiled in. */
CG_API int cg_isa_best(void);

/* ---- context: thread pool, ISA level, per-thread scratch ------------------------------------------------ */

typedef struct cg_ctx cg_ctx;

/* threads: 0 means one per core that this process may use. isa: CG_ISA_AUTO or a level <= cg_isa_best().
 * The thread that creates it takes part as tid 0 in every region and is not pinned; workers are. */
CG_API cg_ctx *cg_ctx_create(int threads, int isa);
CG_API void cg_ctx_destroy(cg_ctx *ctx);
CG_API int cg_ctx_threads(const cg_ctx *ctx);
CG_API int cg_ctx_isa(const cg_ctx *ctx);

typedef void (*cg_region_fn)(void *arg, int tid, int nthreads);
typedef void (*cg_task_fn)(void *arg, int task, int tid);

/* Runs fn once on every thread, tid 0..nthreads-1, and returns when all have. */
CG_API void cg_region(cg_ctx *ctx, cg_region_fn fn, void *arg);
/* Inside a region: all threads wait for all. Every thread must call it equally often. */
CG_API void cg_barrier(cg_ctx *ctx);
/* Runs fn for task 0..n_tasks-1, handed out dynamically, one fork-join. */
CG_API void cg_parallel_for(cg_ctx *ctx, cg_task_fn fn, void *arg, int n_tasks);
/* Inside a region: dynamic task numbers. Counter `slot` (0..CG_COUNTERS-1) counts 0,1,2,... over all threads;
 * cg_counter_reset from ONE thread, with a barrier before the counter's next use. All are 0 when a region
 * starts. Slots below CG_COUNTERS_FREE are the caller's, the rest belong to the part functions here. */
#define CG_COUNTERS 16
#define CG_COUNTERS_FREE 16
CG_API int cg_counter_next(cg_ctx *ctx, int slot);
CG_API void cg_counter_reset(cg_ctx *ctx, int slot);

/* Per-thread scratch, 64-byte aligned, at least `bytes` long, kept until the next call with the same tid and
 * slot (slot 0: the linear layers, 1..3: other kernels). Contents are undefined. NULL when out of memory. */
CG_API void *cg_scratch(cg_ctx *ctx, int tid, int slot, size_t bytes);

/* ---- activation rows --------------------------------------------------------------------------------------- */

enum { CG_ROWS_F32 = 0, CG_ROWS_BF16 = 1, CG_ROWS_Q8 = 2 };

/* m rows of k values in the form a linear layer reads; k % 32 == 0. F32: float [m][k]. BF16: uint16 [m][k].
 * Q8: cg_q8_group [m][k/32], value = q * scale. Write them with cg_rows_set. */
typedef struct cg_q8_group {
  int8_t q[32];
  float scale;          /* a power of two, 0 where all values are, NaN where one is not finite */
  float base;           /* 1.5 * 2^23 * scale: adding an integer i to its bits adds i * scale to its value */
  float neg_sum;        /* -(sum of q) * scale */
  int32_t start_8;      /* bits of base, less 8 (16, 128) times the sum of q: where a sum over codes with that */
  int32_t start_16;     /* zero point starts */
  int32_t start_128;
  int32_t start_32[2];  /* the same for a zero point of 32, of q[0..15] and of q[16..31] */
} cg_q8_group;          /* 64 bytes: one cache line */

typedef struct cg_rows {
  int32_t kind;
  int32_t k;
  void *data;
} cg_rows;

/* Bytes for m rows, and a cg_rows laid out in such memory (64-byte aligned). */
CG_API size_t cg_rows_bytes(int kind, int m, int k);
CG_API void cg_rows_init(cg_rows *rows, int kind, int m, int k, void *memory);
/* Writes row `row` from float x[k]. Thread-safe for different rows. Q8: the scale is the smallest power of two that
 * keeps codes within 127, round to nearest even; a group whose values are all below 1e-30 is zero and has scale 0. A
 * value beyond 1e33, infinite or NaN gives a NaN scale, so it stays visible. */
CG_API void cg_rows_set(const cg_ctx *ctx, const cg_rows *rows, int row, const float *x);
/* Rows 0..m-1 from x[m][ldx], one fork-join (or inline when small). */
CG_API void cg_rows_quantize(cg_ctx *ctx, const cg_rows *rows, const float *x, int ldx, int m);

/* ---- packed linear layers -------------------------------------------------------------------------------- */

typedef struct cg_linear cg_linear;

/* raw: N rows of K values in the GGUF block form of type fmt (for CG_F32/F16/BF16 plain arrays).
 * bias: float[n] or NULL, copied. Packing is exact for every type: see quant.cpp. Runs on one thread. */
CG_API cg_linear *cg_linear_create(int fmt, int n, int k, const void *raw, const float *bias);
/* gate and up of one MLP (n outputs each), computed together so that silu(gate) * up is an epilogue. */
CG_API cg_linear *cg_linear_create_gate_up(int gate_fmt, int up_fmt, int n, int k, const void *gate,
                                           const void *up);
/* Several matrices with the same K stacked along N (q, k, v), each in its own type. fmts may differ. */
CG_API cg_linear *cg_linear_create_stack(int count, const int *fmts, const int *ns, int k, const void *const *raws,
                                         const float *const *biases);
/* A screen of a head in Q8_0 (raw: its n rows of k values): the same matrix in five bits, with one number a row in place
 * of a bias, which bounds what is left out: |x * w - x * screen row| <= bias * |x| for any x in CG_ROWS_Q8, with the
 * rounding of both sums in it. Read first, it tells which few of the head's rows can hold the largest product, in two
 * thirds of the memory. NULL for other types. */
CG_API cg_linear *cg_linear_create_screen(int fmt, int n, int k, const void *raw);
CG_API void cg_linear_destroy(cg_linear *w);

/* The packed form is one position-independent blob; the same on every ISA level. from_blob does not copy: the
 * memory (64-byte aligned, e.g. an mmapped file) must outlive the layer. NULL where it is malformed. */
CG_API const void *cg_linear_blob(const cg_linear *w, size_t *bytes);
CG_API cg_linear *cg_linear_from_blob(const void *blob, size_t bytes);

CG_API int cg_linear_n(const cg_linear *w);
CG_API int cg_linear_k(const cg_linear *w);
CG_API int cg_linear_rows_kind(const cg_linear *w); /* the CG_ROWS_* that x must have */
CG_API int cg_linear_is_gate_up(const cg_linear *w);
CG_API size_t cg_linear_bytes(const cg_linear *w); /* bytes read per GEMV */
CG_API const float *cg_linear_bias(const cg_linear *w); /* of the first matrix, padded to a multiple of 32; NULL for none */

enum { CG_ADD = 1, CG_NO_BIAS = 2 }; /* y += instead of y = (residual add); leave the bias out */

/* y[m][ldy] (float) = x * w^T + bias; flags: CG_ADD, CG_NO_BIAS. Not for gate_up layers. */
CG_API void cg_linear_forward(cg_ctx *ctx, const cg_linear *w, const cg_rows *x, float *y, int ldy, int m, int flags);
CG_API void cg_linear_part(cg_ctx *ctx, const cg_linear *w, const cg_rows *x, float *y, int ldy, int m, int flags,
                           int tid, int nthreads);
/* Outputs 32 * block .. of activation row `row` alone, without bias, to out[32]: with the bits that cg_linear_part gives. */
CG_API void cg_linear_block_part(cg_ctx *ctx, const cg_linear *w, const cg_rows *x, int row, int block, float *out, int tid);
/* out row = silu(gate) * up, written as out->kind (what the down projection reads). out->k == n. */
CG_API void cg_gate_up_forward(cg_ctx *ctx, const cg_linear *w, const cg_rows *x, const cg_rows *out, int m);
CG_API void cg_gate_up_part(cg_ctx *ctx, const cg_linear *w, const cg_rows *x, const cg_rows *out, int m, int tid,
                            int nthreads);

/* One output's weights as floats, out[k] (gate_up: rows 0..n-1 are gate, n..2n-1 up): tied embeddings, tests. */
CG_API int cg_linear_row(const cg_linear *w, int row, float *out);

/* ---- raw GGUF rows --------------------------------------------------------------------------------------- */

/* Bytes of one row of k values in type fmt, 0 where fmt is unknown or k is no multiple of its block. */
CG_API size_t cg_row_bytes(int fmt, int k);
CG_API int cg_dequant_row(int fmt, const void *raw_row, int k, float *out);
/* out[i][ldo] = row ids[i] of raw[n][k]; an id outside 0..n-1 gives CG_EINVAL before anything is written. */
CG_API int cg_embed_rows(int fmt, const void *raw, int n, int k, const int32_t *ids, int m, float *out, int ldo);
/* Float weights (CG_F32/F16/BF16) to raw CG_Q8_0, CG_Q4_0 or CG_Q4_1 rows: round to nearest, groups of 32. */
CG_API int cg_quantize_weights(int dst_fmt, int src_fmt, const void *src, int n, int k, void *dst);

/* ---- the machine's limits, for benchmarks ------------------------------------------------------------------ */

/* All threads read their share of memory once, or run `rounds` dot-product instructions on registers. The latter
 * returns the number of int8 multiplications plus additions done by all threads. */
CG_API void cg_measure_read(cg_ctx *ctx, const void *memory, size_t bytes);
CG_API double cg_measure_dots(cg_ctx *ctx, int rounds);

#ifdef __cplusplus
}
#endif
#endif
