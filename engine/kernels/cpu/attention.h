// Norm, rotary, KV pages and attention: what a decoder layer does between its linears.
//
// KV page layout. A page holds `page_size` tokens of every layer: [layer][kv_head][K | V | scales]. Inside one head,
// tokens lie in tiles of `tile` = gcd(page_size, 16). With "words" of 32 bits (two bfloat16 or int8 pairs, or one float):
//   K of a tile: word w of token t at [w][t]          (w counts pairs of dimensions, or dimensions for float32)
//   V of a tile: word of dimension d at [t / 2][d]    (a pair of tokens; float32 and tile 1: [t][d])
// so that sixteen keys, or sixteen value dimensions, are one vector load and pages are used where they lie.
//
// Order of arithmetic. Attention over a sequence is cut into blocks of KV_BLOCK absolute positions. A block gives
// (max, sum, weighted values) of each query by itself; blocks are merged in ascending order. Prefill, decode and split
// decode use the same two functions, so a query's result has the same bits whatever ran beside it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace callgate {

constexpr int KV_BLOCK = 256;
constexpr int LANES = 16;
constexpr int MAX_HEAD_DIM = 512;

enum KvType : int32_t { KV_FLOAT32 = 0, KV_BFLOAT16 = 1, KV_INT8 = 2 };

struct KvLayout {
    int32_t num_layers, num_kv_heads, head_dim, page_size, type;
    int32_t tile;          // tokens of one tile
    int32_t padded_dim;    // head_dim rounded up to LANES
    int32_t k_words;       // 32-bit words of one key in the computing type: head_dim / 2, or head_dim for float32
    size_t k_tile_bytes, v_tile_bytes;
    size_t v_offset, scale_offset;  // inside one head
    size_t head_bytes, layer_bytes, page_bytes;
};

KvLayout make_kv_layout(int layers, int kv_heads, int head_dim, int page_size, int type);

struct HeadGeometry {
    int32_t num_heads, num_kv_heads, head_dim;
    float scale;  // of the scores, usually head_dim ** -0.5
};

// One sequence's view of one layer: where its pages are.
struct KvView {
    const KvLayout* layout;
    uint8_t* pool;         // first page
    const int32_t* pages;  // page ids in order
    int32_t layer;
};

// The tile of keys that holds a position of a sequence.
inline const uint8_t* key_tile(const KvView& view, int kv_head, int position) {
    const KvLayout& l = *view.layout;
    return view.pool + size_t(view.pages[position / l.page_size]) * l.page_bytes + view.layer * l.layer_bytes +
           kv_head * l.head_bytes + position % l.page_size / l.tile * l.k_tile_bytes;
}

struct AttentionScratch {
    uint32_t* query;    // [max_rows][k_words, or head_dim where bfloat16 is computed in float32]
    int32_t* last;      // [max_rows] last visible position of each row
    float* scores;      // [8][KV_BLOCK]
    uint32_t* weights;  // [8][KV_BLOCK] words of the computing type
    float* values;      // [8][padded_dim]
    float *k_scale, *v_scale;     // [KV_BLOCK], int8 only
    uint8_t *k_tiles, *v_tiles;  // converted or gathered tiles of one block
    float *k_wide, *v_wide;      // the same in float32, where the level has no dot product of bfloat16
};

struct BlockOps {
    // out = x / rms(x) * weight, per row.
    void (*rms_norm)(float* out, const float* x, const float* weight, int n, float eps);
    // Normalise (weight may be null) and rotate one head of head_dim in place; cos/sin have rotary_dim / 2 entries.
    void (*rotate)(float* head, const float* norm_weight, float eps, const float* cos, const float* sin, int head_dim,
                   int rotary_dim);
    // Write key and value of one token and head into `slot` (page * page_size + offset).
    void (*kv_write)(const KvLayout& layout, uint8_t* pool, int layer, int kv_head, int64_t slot, const float* key,
                     const float* value);
    // Queries of `num_tokens` tokens at positions first_position.. of one sequence and kv head. q row of token t, head h of
    // the group is q + t * q_stride + h * head_dim (already rotated). Computes blocks [block_begin, block_end) and merges
    // them into `state` ([rows][padded_dim + 16] floats: values, then max, sum).
    void (*attend)(const HeadGeometry& geometry, const KvView& view, AttentionScratch* scratch, int kv_head, const float* q,
                   size_t q_stride, int num_tokens, int first_position, int block_begin, int block_end, float* state);
    // Merge state b (later blocks) into state a, row by row.
    void (*merge)(float* a, const float* b, int rows, int padded_dim);
    // out row of token t, head h = values / sum.
    void (*finish)(const HeadGeometry& geometry, const float* state, int num_tokens, float* out, size_t out_stride, int kv_head);
    // Index of the largest allowed value above -inf, lowest index of equals; -1 where none. A NaN wins wherever it stands,
    // so that it cannot hide. mask: null, or one bit per entry (1 = allowed).
    int (*argmax)(const float* x, const uint32_t* mask, int n);
    // x[n] are known up to error[i] * length. screen_floor: what the largest allowed value cannot be below. screen_next:
    // the first block of 32, of `block` and every step-th behind it, with an allowed value that may reach `floor`, or
    // with a NaN; -1 where none.
    float (*screen_floor)(const float* x, const float* error, float length, const uint32_t* mask, int n);
    int (*screen_next)(const float* x, const float* error, float length, const uint32_t* mask, float floor, int block, int step,
                       int n);
};

// Scratch of one thread for up to max_rows queries (heads of a group x tokens), laid out in the caller's memory.
size_t attention_scratch_bytes(const KvLayout& layout, int max_rows);
AttentionScratch* attention_scratch_init(void* memory, const KvLayout& layout, int max_rows);

const BlockOps* block_ops_avx512();  // null where not compiled in
const BlockOps* block_ops_avx2();
const BlockOps* block_ops_portable();
// The operations of a level that this machine has (at most cg_isa_best()), or of the nearest lower one that is compiled in.
const BlockOps* block_ops(int isa);

}  // namespace callgate
