/* The composed decoder forward: one C call computes one step of the scheduler.
 *
 * Covers Llama-shaped decoders (Llama, Qwen2, Qwen3, SmolLM): RMSNorm, fused qkv with optional bias, optional q/k norm,
 * rotary in halves, grouped-query attention over paged KV, SiLU-gated MLP, residual adds in float32.
 * Same conventions as callgate_cpu.h. Batch arrays are those of engine/executor/forward_batch.py. */
#ifndef CALLGATE_MODEL_H
#define CALLGATE_MODEL_H

#include "callgate_cpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cg_model_config {
  int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, rotary_dim, intermediate_size, vocab_size;
  float rms_eps;
  float score_scale;      /* of attention scores, usually head_dim ** -0.5 */
  float rope_attention;   /* factor on cos and sin (yarn), else 1 */
  float embedding_scale;  /* factor on embeddings, else 1 */
} cg_model_config;

typedef struct cg_model cg_model;

/* inv_freq: float[rotary_dim / 2], copied. */
CG_API cg_model *cg_model_create(cg_ctx *ctx, const cg_model_config *config, const float *inv_freq);
CG_API void cg_model_destroy(cg_model *model);

/* Linears are borrowed and must outlive the model; norm weights are copied (float[hidden_size]; q/k: float[head_dim] or NULL). */
CG_API int cg_model_set_layer(cg_model *model, int layer, const float *attn_norm, const float *ffn_norm, const float *q_norm,
                              const float *k_norm, const cg_linear *const *linears /* qkv, o, gate_up, down */);
/* offset: float[num_kv_heads * head_dim], subtracted from every rotated key before it is stored, copied; NULL for none. A
 * constant added to all keys adds the same to all scores of a query, so softmax does not see it, but keys without their
 * constant part lose less when they are rounded to 8 or 16 bits. */
CG_API int cg_model_set_key_offset(cg_model *model, int layer, const float *offset);
/* raw: [vocab][hidden] in GGUF type fmt, borrowed. */
CG_API int cg_model_set_embedding(cg_model *model, int fmt, const void *raw, const float *final_norm, const cg_linear *head);

/* A screen of the head (cg_linear_create_screen), borrowed: for steps of which nothing but the argmax is wanted. */
CG_API int cg_model_set_screen(cg_model *model, const cg_linear *screen);

/* KV memory, zeroed and touched only as it is used. type: 0 float32, 1 bfloat16, 2 int8. Replaces what was there. */
CG_API int cg_model_set_kv(cg_model *model, int num_pages, int page_size, int type);
CG_API size_t cg_kv_page_bytes(const cg_model_config *config, int page_size, int type);
CG_API int cg_model_copy_page(cg_model *model, int source, int target);

typedef struct cg_batch {
  int32_t rows, tokens, pages_per_row, num_logits;
  const int32_t *input_ids, *positions, *cu_seqlens, *seq_lens, *page_table, *slot_mapping, *logits_index;
} cg_batch;

typedef struct cg_output {
  float *logits;        /* [num_logits][vocab], owned by the model, valid until the next forward */
  const int32_t *mask;  /* in: [num_logits][ceil(vocab / 32)] allowed tokens, or NULL */
  const uint8_t *masked; /* in: [num_logits] 1 where the mask row holds, or NULL for all */
  int32_t *argmax;      /* out: [num_logits] best allowed token, or NULL; -1 where none is above -inf; a NaN wins */
  float *hidden;        /* out: [tokens][hidden] after the final norm, or NULL */
  float *states;        /* out: [num_logits][hidden] after the final norm, of the tokens of logits_index, or NULL */
  int32_t argmax_only;  /* in: of the logits only those at argmax will be read; the others may be near, not right */
} cg_output;

/* CG_EINVAL: an id, slot, page or index is out of range; nothing was written. */
CG_API int cg_model_forward(cg_model *model, const cg_batch *batch, cg_output *output);
/* The head alone, for n rows of hidden states after the final norm: logits[n][vocab] in the caller's memory. */
CG_API int cg_model_head(cg_model *model, const float *hidden, int n, float *logits);

enum { CG_OP_EMBED, CG_OP_NORM, CG_OP_QKV, CG_OP_ATTENTION, CG_OP_OUT, CG_OP_GATE_UP, CG_OP_DOWN, CG_OP_HEAD, CG_OP_ARGMAX, CG_OP_COUNT };
/* What thread 0 saw since the last call while profiling was on, per kind of operation: seconds in all, calls, and the
 * seconds of the fastest call (times calls: an estimate for an idle machine). Returns the number of steps. */
typedef struct cg_profile {
  double seconds[CG_OP_COUNT], fastest[CG_OP_COUNT];
  int64_t calls[CG_OP_COUNT];
} cg_profile;
enum { CG_PROFILE_OFF = 0, CG_PROFILE_WALL = 1, CG_PROFILE_CPU = 2 }; /* CPU: thread 0's processor time */
CG_API void cg_model_set_profile(cg_model *model, int mode);
CG_API int64_t cg_model_profile(cg_model *model, cg_profile *profile);

/* Single operations for tests and benchmarks. */
/* Rotary, KV write and attention of one layer: qkv[tokens][(heads + 2 kv_heads) * head_dim] (rotated in place) to
 * out[tokens][heads * head_dim]. Needs cg_model_set_kv; batch->num_logits is not looked at. */
CG_API int cg_model_attention(cg_model *model, int layer, const cg_batch *batch, const float *qkv, float *out);
CG_API void cg_rms_norm(const cg_ctx *ctx, float *out, const float *x, const float *weight, int rows, int n, float eps);
CG_API void cg_rotate(const cg_ctx *ctx, float *heads, const float *norm_weight, float eps, const float *cos, const float *sin,
                      int rows, int head_dim, int rotary_dim);
CG_API int cg_argmax(const cg_ctx *ctx, const float *x, const int32_t *mask, int n);

#ifdef __cplusplus
}
#endif
#endif
