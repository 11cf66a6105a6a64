// KV page layout, scratch layout and the choice of block operations.
#include "attention.h"
#include "callgate_cpu.h"

#include <numeric>

namespace callgate {

namespace {
size_t align64(size_t n) { return (n + 63) / 64 * 64; }
}  // namespace

KvLayout make_kv_layout(int layers, int kv_heads, int head_dim, int page_size, int type) {
    KvLayout l{};
    l.num_layers = layers;
    l.num_kv_heads = kv_heads;
    l.head_dim = head_dim;
    l.page_size = page_size;
    l.type = type;
    l.tile = std::gcd(page_size, LANES);
    l.padded_dim = (head_dim + LANES - 1) / LANES * LANES;
    l.k_words = type == KV_FLOAT32 ? head_dim : head_dim / 2;
    const size_t element = type == KV_FLOAT32 ? 4 : type == KV_BFLOAT16 ? 2 : 1;
    l.k_tile_bytes = element * l.tile * head_dim;
    l.v_tile_bytes = element * l.tile * l.padded_dim;
    const size_t tiles = size_t(page_size / l.tile);
    l.v_offset = align64(tiles * l.k_tile_bytes);
    l.scale_offset = l.v_offset + align64(tiles * l.v_tile_bytes);
    l.head_bytes = l.scale_offset + (type == KV_INT8 ? align64(size_t(page_size) * 8) : 0);
    l.layer_bytes = l.head_bytes * kv_heads;
    l.page_bytes = l.layer_bytes * layers;
    return l;
}

namespace {
struct Carver {
    uint8_t* base;
    size_t used = 0;
    template <class T>
    T* take(size_t count) {
        T* p = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used += align64(count * sizeof(T));
        return p;
    }
};

size_t carve(void* memory, const KvLayout& l, int max_rows, AttentionScratch** out) {
    Carver c{static_cast<uint8_t*>(memory)};
    AttentionScratch s{};
    auto* self = c.take<AttentionScratch>(1);
    s.query = c.take<uint32_t>(size_t(max_rows) * l.head_dim);
    s.last = c.take<int32_t>(max_rows);
    s.scores = c.take<float>(8 * KV_BLOCK);
    s.weights = c.take<uint32_t>(8 * KV_BLOCK);
    s.values = c.take<float>(size_t(8) * l.padded_dim);
    s.k_scale = c.take<float>(KV_BLOCK);
    s.v_scale = c.take<float>(KV_BLOCK);
    s.k_tiles = c.take<uint8_t>(size_t(KV_BLOCK) * l.head_dim * 4);
    s.v_tiles = c.take<uint8_t>(size_t(KV_BLOCK) * l.padded_dim * 4);
    if (l.type != KV_FLOAT32) {
        s.k_wide = c.take<float>(size_t(KV_BLOCK) * l.head_dim);
        s.v_wide = c.take<float>(size_t(KV_BLOCK) * l.padded_dim);
    }
    if (self) *self = s;
    if (out) *out = self;
    return c.used;
}
}  // namespace

size_t attention_scratch_bytes(const KvLayout& layout, int max_rows) { return carve(nullptr, layout, max_rows, nullptr); }

AttentionScratch* attention_scratch_init(void* memory, const KvLayout& layout, int max_rows) {
    AttentionScratch* s = nullptr;
    carve(memory, layout, max_rows, &s);
    // Scales beyond a row's last token are multiplied by a weight of 0: they must be finite from the start.
    for (int i = 0; i < KV_BLOCK; ++i) s->k_scale[i] = s->v_scale[i] = 0.0f;
    return s;
}

const BlockOps* block_ops(int isa) {
    if (isa >= CG_ISA_AVX512 && block_ops_avx512()) return block_ops_avx512();
    if (isa >= CG_ISA_AVX2 && block_ops_avx2()) return block_ops_avx2();
    return block_ops_portable();
}

}  // namespace callgate
