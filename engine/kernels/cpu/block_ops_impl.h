// The block operations of attention.h, compiled once per instruction set (see block_ops_*.cpp).
#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>

#include "attention.h"
#include "vec.h"

namespace callgate {

// Rows (queries) and vectors that the micro kernel keeps in registers: ROWS * 2 accumulators.
#if defined(__AVX512F__)
constexpr int ROWS = 8;
#else
constexpr int ROWS = 4;
#endif
// Without a dot product of bfloat16, everything is computed in float32: a block's tiles are widened once for all rows.
#if defined(__AVX512BF16__)
constexpr bool BF16_DOT = true;
#else
constexpr bool BF16_DOT = false;
#endif
constexpr int MAX_ROWS_GROUP = 8;
constexpr int BLOCK_TILES = KV_BLOCK / LANES;
constexpr int MAX_FETCH = 4;  // tiles that a score looks ahead

namespace {

struct Bf16Math {
    static constexpr int EXP2_DEGREE = 4;
    static constexpr int v_rows = LANES / 2;  // words of a tile along tokens
    CG_INLINE f16v mac(f16v acc, uint32_t a, const uint32_t* b) { return dot_bf16(acc, splat_bits(a), load<u16v>(b)); }
};

struct F32Math {
    static constexpr int EXP2_DEGREE = 5;
    static constexpr int v_rows = LANES;
    CG_INLINE f16v mac(f16v acc, uint32_t a, const uint32_t* b) {
        return fma16((f16v)splat_bits(a), load<f16v>(b), acc);
    }
};

// ---------------------------------------------------------------- norm and rotary

float mean_square_scale(const float* x, int n, float eps) {
    f16v sum = splat(0.0f);
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        const f16v v = load<f16v>(x + i);
        sum = fma16(v, v, sum);
    }
    float total = sum_lanes(sum);
    for (; i < n; ++i) total += x[i] * x[i];
    return 1.0f / std::sqrt(total / float(n) + eps);
}

void rms_norm(float* out, const float* x, const float* weight, int n, float eps) {
    const float inv = mean_square_scale(x, n, eps);
    int i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, load<f16v>(x + i) * inv * load<f16v>(weight + i));
    for (; i < n; ++i) out[i] = x[i] * inv * weight[i];
}

void rotate(float* head, const float* norm_weight, float eps, const float* cos, const float* sin, int head_dim,
            int rotary_dim) {
    if (norm_weight) rms_norm(head, head, norm_weight, head_dim, eps);
    const int half = rotary_dim / 2;
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        const f16v a = load<f16v>(head + i), b = load<f16v>(head + half + i);
        const f16v c = load<f16v>(cos + i), s = load<f16v>(sin + i);
        store(head + i, a * c - b * s);
        store(head + half + i, b * c + a * s);
    }
    for (; i < half; ++i) {
        const float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = b * cos[i] + a * sin[i];
    }
}

// ---------------------------------------------------------------- writing KV

// Returns the scale, NaN where a value is not finite, so that it stays visible.
float quantize_row(int8_t* out, const float* x, int n) {
    float largest = 0.0f, odd = 0.0f;
    for (int i = 0; i < n; ++i) {
        largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
        odd += x[i] - x[i];
    }
    if (odd != 0.0f) {
        std::memset(out, 0, size_t(n));
        return odd;
    }
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (int i = 0; i < n; ++i) out[i] = int8_t(std::nearbyint(x[i] * inverse));
    return largest / 127.0f;
}

// Scatters one token's key and value (element type E) into its tile.
template <class E, int PAIR>
void scatter(const KvLayout& l, uint8_t* head, int offset, const E* key, const E* value) {
    const int tile = offset / l.tile, lane = offset % l.tile;
    E* k = reinterpret_cast<E*>(head + tile * l.k_tile_bytes);
    E* v = reinterpret_cast<E*>(head + l.v_offset + tile * l.v_tile_bytes);
    for (int i = 0; i < l.head_dim; ++i) k[(i / PAIR) * (l.tile * PAIR) + lane * PAIR + i % PAIR] = key[i];
    const int v_pair = l.tile == 1 ? 1 : PAIR;
    v += (lane / v_pair) * (l.padded_dim * v_pair) + lane % v_pair;
    for (int i = 0; i < l.head_dim; ++i) v[i * v_pair] = value[i];
}

void kv_write(const KvLayout& l, uint8_t* pool, int layer, int kv_head, int64_t slot, const float* key,
              const float* raw_value) {
    // A value that is not finite would reach later owners of the page through weights of 0.
    float value[MAX_HEAD_DIM];
    for (int i = 0; i < l.head_dim; ++i) value[i] = std::fabs(raw_value[i]) <= 3e38f ? raw_value[i] : 0.0f;
    const int offset = int(slot % l.page_size);
    uint8_t* head = pool + size_t(slot / l.page_size) * l.page_bytes + layer * l.layer_bytes + kv_head * l.head_bytes;
    if (l.type == KV_FLOAT32) {
        scatter<float, 1>(l, head, offset, key, value);
    } else if (l.type == KV_BFLOAT16) {
        uint16_t k[MAX_HEAD_DIM], v[MAX_HEAD_DIM];
        for (int i = 0; i < l.head_dim; ++i) {
            k[i] = to_bf16(key[i]);
            v[i] = to_bf16(value[i]);
        }
        scatter<uint16_t, 2>(l, head, offset, k, v);
    } else {
        int8_t k[MAX_HEAD_DIM], v[MAX_HEAD_DIM];
        float* scales = reinterpret_cast<float*>(head + l.scale_offset);
        scales[offset] = quantize_row(k, key, l.head_dim);
        scales[l.page_size + offset] = quantize_row(v, value, l.head_dim);
        scatter<int8_t, 2>(l, head, offset, k, v);
    }
}

// ---------------------------------------------------------------- reading KV: one block as tiles of 16 tokens

struct Tiles {
    const uint32_t* k[BLOCK_TILES + MAX_FETCH];  // behind the block's own: what to ask for
    const uint32_t* v[BLOCK_TILES];
};

// 2n int8 to n words of bfloat16 pairs (exact).
CG_INLINE void widen(uint32_t* out, const int8_t* in, int words) {
    int i = 0;
    for (; i + 8 <= words; i += 8) {
        const f16v x = __builtin_convertvector(load<b16v>(in + 2 * i), f16v);
        store(out + i, __builtin_convertvector((u16v)x >> 16, h16v));
    }
    uint16_t* half = reinterpret_cast<uint16_t*>(out);
    for (i *= 2; i < 2 * words; ++i) half[i] = uint16_t(float_bits(float(in[i])) >> 16);
}

// Puts `rows` rows of `width` words (int8 pairs are widened) at out + r * out_stride.
CG_INLINE void copy_words(uint32_t* out, int out_stride, const uint8_t* in, int rows, int width, bool int8) {
    for (int r = 0; r < rows; ++r) {
        if (int8) {
            widen(out + r * out_stride, reinterpret_cast<const int8_t*>(in) + size_t(r) * width * 2, width);
        } else {
            std::memcpy(out + r * out_stride, in + size_t(r) * width * 4, size_t(width) * 4);
        }
    }
}

// V of single-token tiles: tokens 2i and 2i+1 become the halves of word row i.
CG_INLINE void pair_token(uint32_t* out, int parity, const uint8_t* in, int width, bool int8) {
    uint16_t* half = reinterpret_cast<uint16_t*>(out) + parity;
    for (int d = 0; d < width; ++d) {
        if (int8) {
            half[2 * d] = uint16_t(float_bits(float(reinterpret_cast<const int8_t*>(in)[d])) >> 16);
        } else {
            std::memcpy(half + 2 * d, in + 2 * d, 2);
        }
    }
}

// Resolves tiles 0..count-1 of the block that starts at position `start`; gathers into scratch where a tile does not lie
// in one piece in the computing type. Positions at or beyond `limit` are not read through the page table.
void resolve(const KvView& view, AttentionScratch* s, int kv_head, int start, int count, int limit, Tiles& tiles) {
    const KvLayout& l = *view.layout;
    const bool int8 = l.type == KV_INT8, f32 = l.type == KV_FLOAT32;
    const bool in_place = l.tile == LANES && !int8;
    const size_t k_words = size_t(l.k_words) * LANES;
    const int v_rows = f32 ? LANES : LANES / 2;
    const size_t v_words = size_t(v_rows) * l.padded_dim;
    for (int i = 0; i < count; ++i) {
        uint32_t* k_out = reinterpret_cast<uint32_t*>(s->k_tiles) + i * k_words;
        uint32_t* v_out = reinterpret_cast<uint32_t*>(s->v_tiles) + i * v_words;
        for (int t = 0; t < LANES; t += l.tile) {
            const int position = start + i * LANES + t;
            if (position >= limit) {  // unwritten tail: any finite content, weight 0
                for (int w = 0; w < l.k_words; ++w) std::memset(k_out + w * LANES + t, 0, size_t(l.tile) * 4);
                if (l.tile == 1 && !f32) {
                    for (int d = 0; d < l.padded_dim; ++d)
                        reinterpret_cast<uint16_t*>(v_out + (t / 2) * l.padded_dim)[2 * d + t % 2] = 0;
                } else {
                    const int rows = f32 ? l.tile : l.tile / 2;
                    std::memset(v_out + size_t(f32 ? t : t / 2) * l.padded_dim, 0, size_t(rows) * l.padded_dim * 4);
                }
                continue;
            }
            const int offset = position % l.page_size, tile = offset / l.tile;
            const uint8_t* k = key_tile(view, kv_head, position);
            const uint8_t* head = k - tile * l.k_tile_bytes;
            const uint8_t* v = head + l.v_offset + tile * l.v_tile_bytes;
            if (int8) {
                const float* scales = reinterpret_cast<const float*>(head + l.scale_offset);
                std::memcpy(s->k_scale + i * LANES + t, scales + offset, size_t(l.tile) * 4);
                std::memcpy(s->v_scale + i * LANES + t, scales + l.page_size + offset, size_t(l.tile) * 4);
            }
            if (in_place) {
                tiles.k[i] = reinterpret_cast<const uint32_t*>(k);
                tiles.v[i] = reinterpret_cast<const uint32_t*>(v);
                continue;
            }
            if (l.tile == LANES) {
                copy_words(k_out, 0, k, 1, int(k_words), int8);
                copy_words(v_out, 0, v, 1, int(v_words), int8);
            } else {
                copy_words(k_out + t, LANES, k, l.k_words, l.tile, int8);
                if (f32) {
                    copy_words(v_out + size_t(t) * l.padded_dim, 0, v, 1, l.tile * l.padded_dim, false);
                } else if (l.tile == 1) {
                    pair_token(v_out + size_t(t / 2) * l.padded_dim, t % 2, v, l.padded_dim, int8);
                } else {
                    copy_words(v_out + size_t(t / 2) * l.padded_dim, 0, v, 1, l.tile / 2 * l.padded_dim, int8);
                }
            }
        }
        if (!in_place) {
            tiles.k[i] = k_out;
            tiles.v[i] = v_out;
        }
    }
    for (int i = count; i < BLOCK_TILES + MAX_FETCH; ++i) {
        const int position = start + i * LANES;
        tiles.k[i] = in_place && position < limit ? reinterpret_cast<const uint32_t*>(key_tile(view, kv_head, position)) : tiles.k[0];
    }
}

// Rows of words of bfloat16 pairs to twice as many rows of floats; asks for as many lines of what is widened next.
CG_INLINE void widen_rows(float* out, const uint32_t* in, int rows, int width, const uint32_t* next) {
    for (int r = 0; r < rows; ++r, out += 2 * width, in += width, next += width)
        for (int i = 0; i < width; i += LANES) {
            __builtin_prefetch(next + i);
#if defined(__AVX2__)
#pragma GCC unroll 2
            for (int h = i; h < i + LANES; h += 8) {
                const __m256i pairs = load<__m256i>(in + h);
                store(out + h, _mm256_slli_epi32(pairs, 16));
                store(out + width + h, _mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))));
            }
#else
            const u16v pairs = load<u16v>(in + i);
            store(out + i, pairs << 16);
            store(out + width + i, pairs & splat_bits(0xffff0000u));
#endif
        }
}

void widen_tiles(const KvLayout& l, AttentionScratch* s, Tiles& tiles, int count) {
    float *k = s->k_wide, *v = s->v_wide;
    for (int i = 0; i < count; ++i, k += LANES * l.head_dim, v += LANES * l.padded_dim) {
        widen_rows(k, tiles.k[i], l.k_words, LANES, tiles.k[i + 2]);
        widen_rows(v, tiles.v[i], LANES / 2, l.padded_dim, tiles.v[i + 2 < count ? i + 2 : i]);
        tiles.k[i] = reinterpret_cast<const uint32_t*>(k);
        tiles.v[i] = reinterpret_cast<const uint32_t*>(v);
    }
}

// Words of one query and key where they are multiplied.
CG_INLINE int computed_words(const KvLayout& l) { return BF16_DOT ? l.k_words : l.head_dim; }

// ---------------------------------------------------------------- micro kernels

// scores[r][t * 16 ..] = sum over words of a[r][w] * k_t[w][16 lanes], ascending w. FETCH: asks meanwhile for the lines of
// the keys that come two pairs later, and for these tokens' values.
template <class M, int R, int T, bool FETCH>
CG_INLINE void score_tiles(float* scores, const uint32_t* a, int a_stride, const uint32_t* const* k, const uint32_t* const* v,
                           int words) {
    f16v acc[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) acc[r][t] = splat(0.0f);
#pragma GCC unroll 2
    for (int w = 0; w < words; ++w) {
        if (FETCH)
            for (int t = 0; t < T; ++t) {
                __builtin_prefetch(k[t + 2 * T] + w * LANES);
                __builtin_prefetch(v[t] + w * LANES);
            }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int t = 0; t < T; ++t) acc[r][t] = M::mac(acc[r][t], a[r * a_stride + w], k[t] + w * LANES);
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) store(scores + r * KV_BLOCK + t * LANES, acc[r][t]);
}

#if CG_EIGHT_LANES

// out[r][16] (+)= sum over words of a[r][w] * b[w][16], ascending w: by hand, since the compiler takes wider vectors than
// the machine's through memory.
template <int R>
CG_INLINE void multiply(float* out, int out_stride, const uint32_t* a, int a_stride, const uint32_t* b, int b_stride, int words,
                        bool add) {
    __m256 acc[R][2];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) acc[r][h] = add ? load<__m256>(out + r * out_stride + 8 * h) : _mm256_setzero_ps();
#pragma GCC unroll 2
    for (int w = 0; w < words; ++w) {
        const __m256 b0 = load<__m256>(b + w * b_stride), b1 = load<__m256>(b + w * b_stride + 8);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const __m256 x = _mm256_broadcast_ss(reinterpret_cast<const float*>(a) + r * a_stride + w);
            acc[r][0] = _mm256_fmadd_ps(x, b0, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(x, b1, acc[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) store(out + r * out_stride + 8 * h, acc[r][h]);
}

template <class M, int R, bool FETCH>
void score_block(float* scores, const uint32_t* a, int a_stride, const Tiles& tiles, int count, int words) {
    static_assert(M::v_rows == LANES, "float32");
    for (int i = 0; i < count; ++i) multiply<R>(scores + i * LANES, KV_BLOCK, a, a_stride, tiles.k[i], LANES, words, false);
}

template <class M, int R>
void value_block(float* values, const uint32_t* p, const Tiles& tiles, int count, int padded_dim) {
    for (int d = 0; d < padded_dim; d += LANES)
        for (int i = 0; i < count; ++i)
            multiply<R>(values + d, padded_dim, p + i * LANES, KV_BLOCK, tiles.v[i] + d, padded_dim, LANES, i > 0);
}

#else

template <class M, int R, bool FETCH>
void score_block(float* scores, const uint32_t* a, int a_stride, const Tiles& tiles, int count, int words) {
    int i = 0;
    for (; i + 2 <= count; i += 2)
        score_tiles<M, R, 2, FETCH>(scores + i * LANES, a, a_stride, tiles.k + i, tiles.v + i, words);
    if (i < count) score_tiles<M, R, 1, FETCH>(scores + i * LANES, a, a_stride, tiles.k + i, tiles.v + i, words);
}

// values[r][t * 16 ..] = sum over tokens of p[r][token] * v[token][16 lanes], ascending tokens.
template <class M, int R, int T>
CG_INLINE void value_vectors(float* values, int stride, const uint32_t* p, const uint32_t* const* v, int offset, int count,
                             int padded_dim) {
    f16v acc[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) acc[r][t] = splat(0.0f);
    for (int i = 0; i < count; ++i) {
        const uint32_t* tile = v[i] + offset;
        for (int w = 0; w < M::v_rows; ++w)
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int t = 0; t < T; ++t)
                    acc[r][t] = M::mac(acc[r][t], p[r * KV_BLOCK + i * M::v_rows + w], tile + w * padded_dim + t * LANES);
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) store(values + r * stride + offset + t * LANES, acc[r][t]);
}

template <class M, int R>
void value_block(float* values, const uint32_t* p, const Tiles& tiles, int count, int padded_dim) {
    int d = 0;
    for (; d + 2 * LANES <= padded_dim; d += 2 * LANES)
        value_vectors<M, R, 2>(values, padded_dim, p, tiles.v, d, count, padded_dim);
    if (d < padded_dim) value_vectors<M, R, 1>(values, padded_dim, p, tiles.v, d, count, padded_dim);
}

#endif

template <class M, int R>
struct ByRows {
    static void score(int rows, float* scores, const uint32_t* a, int a_stride, const Tiles& t, int count, int words,
                      bool fetch) {
        if (rows == R && fetch) return score_block<M, R, true>(scores, a, a_stride, t, count, words);
        if (rows == R) return score_block<M, R, false>(scores, a, a_stride, t, count, words);
        if constexpr (R > 1) ByRows<M, R - 1>::score(rows, scores, a, a_stride, t, count, words, fetch);
    }
    static void value(int rows, float* values, const uint32_t* p, const Tiles& t, int count, int padded_dim) {
        if (rows == R) return value_block<M, R>(values, p, t, count, padded_dim);
        if constexpr (R > 1) ByRows<M, R - 1>::value(rows, values, p, t, count, padded_dim);
    }
};

// ---------------------------------------------------------------- softmax of one block, merging of blocks

// Where a row's largest score starts, and what stands behind the row's last token: so much lower that its weight is 0
// even where the row's own scores are lower still. Such a row then weighs nothing, and comes out as NaN.
constexpr float LOWEST_SCORE = -1e30f, NO_SCORE = -2e30f;

#if CG_EIGHT_LANES

// The first `visible` of a row's scores, the last vector padded with NO_SCORE; int8 keys' scales are applied. Returns the
// largest.
CG_INLINE float prepare_scores(const AttentionScratch* s, int type, float* scores, int visible) {
    const int used = (visible + LANES - 1) / LANES * LANES;
    if (type == KV_INT8)
        for (int i = 0; i < used; i += 8)
            store(scores + i, _mm256_mul_ps(load<__m256>(scores + i), load<__m256>(s->k_scale + i)));
    for (int i = visible; i < used; ++i) scores[i] = NO_SCORE;
    __m256 largest[2] = {_mm256_set1_ps(LOWEST_SCORE), _mm256_set1_ps(LOWEST_SCORE)};
    for (int i = 0; i < used; i += LANES)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) largest[h] = _mm256_max_ps(largest[h], load<__m256>(scores + i + 8 * h));
    const __m256 all = _mm256_max_ps(largest[0], largest[1]);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// scores -> weights 2^(score - row_max) in the computing type, 0 behind `visible` up to `count` tiles. Returns the lanes'
// sums.
template <class M>
CG_INLINE f16v weigh(const AttentionScratch* s, int type, const float* scores, uint32_t* weights, int count, int visible,
                     float row_max) {
    static_assert(M::v_rows == LANES, "float32");
    const int used = (visible + LANES - 1) / LANES * LANES;
    const __m256 largest = _mm256_set1_ps(row_max);
    __m256 sum[2] = {};
    for (int i = 0; i < used; i += LANES)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const int at = i + 8 * h;
            __m256 p = exp2_8(_mm256_sub_ps(load<__m256>(scores + at), largest));
            sum[h] = _mm256_add_ps(sum[h], p);
            if (type == KV_INT8) p = _mm256_mul_ps(p, load<__m256>(s->v_scale + at));
            store(weights + at, p);
        }
    std::memset(weights + used, 0, size_t(count * LANES - used) * 4);
    return load<f16v>(sum);
}

#else

// The first `visible` of a row's scores, the last vector padded with NO_SCORE; int8 keys' scales are applied. Returns the
// largest.
CG_INLINE float prepare_scores(const AttentionScratch* s, int type, float* scores, int visible) {
    const int used = (visible + LANES - 1) / LANES;
    if (type == KV_INT8)
        for (int i = 0; i < used; ++i)
            store(scores + i * LANES, load<f16v>(scores + i * LANES) * load<f16v>(s->k_scale + i * LANES));
    if (visible < used * LANES) {
        const i16v lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        float* last = scores + (used - 1) * LANES;
        store(last, (lane + (used - 1) * LANES) < visible ? load<f16v>(last) : splat(NO_SCORE));
    }
    f16v largest = splat(LOWEST_SCORE);
#pragma GCC unroll 4
    for (int i = 0; i < used; ++i) largest = max16(largest, load<f16v>(scores + i * LANES));
    return max_lanes(largest);
}

// scores -> weights 2^(score - row_max) in the computing type, 0 behind `visible` up to `count` tiles. Returns the lanes'
// sums.
template <class M>
CG_INLINE f16v weigh(const AttentionScratch* s, int type, const float* scores, uint32_t* weights, int count, int visible,
                     float row_max) {
    const int used = (visible + LANES - 1) / LANES;
    const f16v largest = splat(row_max);
    f16v sum = splat(0.0f);
#pragma GCC unroll 4
    for (int i = 0; i < used; ++i) {
        f16v p = exp2_16<M::EXP2_DEGREE>(load<f16v>(scores + i * LANES) - largest);
        sum += p;
        if (type == KV_INT8) p = p * load<f16v>(s->v_scale + i * LANES);
        if (M::v_rows == LANES) store(weights + i * LANES, p);
        else put_bf16(reinterpret_cast<uint16_t*>(weights) + i * LANES, p);
    }
    std::memset(weights + used * M::v_rows, 0, size_t(count - used) * M::v_rows * 4);
    return sum;
}

#endif

// Merges up to MAX_ROWS_GROUP rows into their states: values[padded_dim], then [0] = max, [1] = sum. Rows of sum 0 saw
// nothing; a sum that is NaN is merged like any other, so that it stays visible. The rows' factors are computed side by
// side, one to a lane.
CG_INLINE void merge_rows(float* state, size_t state_stride, const float* values, size_t values_stride, const float* row_max,
                          const float* row_sum, int rows, int padded_dim) {
    static_assert(MAX_ROWS_GROUP <= LANES, "one lane each");
    float kept_max[LANES] = {}, new_max[LANES] = {}, top[LANES], keep[LANES], take[LANES];
    for (int r = 0; r < rows; ++r) {
        kept_max[r] = state[size_t(r) * state_stride + padded_dim];
        new_max[r] = row_sum[r] == 0.0f ? kept_max[r] : row_max[r];
    }
    const f16v a = load<f16v>(kept_max), b = load<f16v>(new_max), largest = max16(a, b);
    store(top, largest);
    store(keep, exp2_16(a - largest));
    store(take, exp2_16(b - largest));
    for (int r = 0; r < rows; ++r) {
        if (row_sum[r] == 0.0f) continue;
        float *s = state + size_t(r) * state_stride, *tail = s + padded_dim;
        const float* v = values + size_t(r) * values_stride;
#if CG_EIGHT_LANES
        const __m256 kept = _mm256_set1_ps(keep[r]), taken = _mm256_set1_ps(take[r]);
        for (int d = 0; d < padded_dim; d += 8)
            store(s + d, _mm256_fmadd_ps(load<__m256>(s + d), kept, _mm256_mul_ps(load<__m256>(v + d), taken)));
#else
        for (int d = 0; d < padded_dim; d += LANES)
            store(s + d, fma16(load<f16v>(s + d), splat(keep[r]), load<f16v>(v + d) * take[r]));
#endif
        tail[0] = top[r];
        tail[1] = tail[1] * keep[r] + row_sum[r] * take[r];
    }
}

void merge(float* a, const float* b, int rows, int padded_dim) {
    const size_t stride = size_t(padded_dim) + LANES;
    for (int first = 0; first < rows; first += MAX_ROWS_GROUP) {
        const int n = rows - first < MAX_ROWS_GROUP ? rows - first : MAX_ROWS_GROUP;
        const float* from = b + size_t(first) * stride;
        float row_max[MAX_ROWS_GROUP], row_sum[MAX_ROWS_GROUP];
        for (int r = 0; r < n; ++r) {
            row_max[r] = from[size_t(r) * stride + padded_dim];
            row_sum[r] = from[size_t(r) * stride + padded_dim + 1];
        }
        merge_rows(a + size_t(first) * stride, stride, from, stride, row_max, row_sum, n, padded_dim);
    }
}

template <class M>
void attend_group(const KvLayout& l, AttentionScratch* s, const Tiles& tiles, int first_row, int rows, int start,
                  float* state) {
    int limit = 0;  // tokens of the block that the row that sees most sees
    for (int r = 0; r < rows; ++r) limit = s->last[first_row + r] + 1 - start > limit ? s->last[first_row + r] + 1 - start : limit;
    if (limit <= 0) return;
    limit = limit < KV_BLOCK ? limit : KV_BLOCK;
    const int count = (limit + LANES - 1) / LANES;
    const int words = computed_words(l);
    const uint32_t* a = s->query + size_t(first_row) * size_t(words);
    for (int r = 0; r < rows; r += ROWS) {
        const int n = rows - r < ROWS ? rows - r : ROWS;
        ByRows<M, ROWS>::score(n, s->scores + r * KV_BLOCK, a + size_t(r) * size_t(words), words, tiles, count, words,
                               first_row + r == 0);
    }
    // Loop by loop over the rows, so that one's reduction does not wait for another's.
    float row_max[MAX_ROWS_GROUP], row_sum[MAX_ROWS_GROUP];
    int visible[MAX_ROWS_GROUP];
    f16v sums[MAX_ROWS_GROUP];
    for (int r = 0; r < rows; ++r) {
        const int tokens = s->last[first_row + r] + 1 - start;
        visible[r] = tokens < 0 ? 0 : tokens < count * LANES ? tokens : count * LANES;
        row_max[r] = prepare_scores(s, l.type, s->scores + r * KV_BLOCK, visible[r]);
    }
    for (int r = 0; r < rows; ++r)
        sums[r] = weigh<M>(s, l.type, s->scores + r * KV_BLOCK, s->weights + r * KV_BLOCK, count, visible[r], row_max[r]);
    for (int r = 0; r < rows; ++r) row_sum[r] = sum_lanes(sums[r]);
    for (int r = 0; r < rows; r += ROWS) {
        const int n = rows - r < ROWS ? rows - r : ROWS;
        ByRows<M, ROWS>::value(n, s->values + r * l.padded_dim, s->weights + r * KV_BLOCK, tiles, count, l.padded_dim);
    }
    const size_t stride = size_t(l.padded_dim) + LANES;
    merge_rows(state + size_t(first_row) * stride, stride, s->values, size_t(l.padded_dim), row_max, row_sum, rows, l.padded_dim);
}

void load_queries(const HeadGeometry& g, const KvLayout& l, AttentionScratch* s, const float* q, size_t q_stride,
                  int num_tokens, int first_position) {
    const int group = g.num_heads / g.num_kv_heads;
    const float scale = g.scale * 1.44269504088896341f;  // log2 e: weights are powers of two
    for (int t = 0; t < num_tokens; ++t) {
        for (int h = 0; h < group; ++h) {
            const int row = t * group + h;
            const float* x = q + t * q_stride + size_t(h) * g.head_dim;
            s->last[row] = first_position + t;
            uint32_t* out = s->query + size_t(row) * size_t(computed_words(l));
            if (l.type == KV_FLOAT32 || !BF16_DOT) {
                for (int d = 0; d < g.head_dim; ++d) out[d] = float_bits(x[d] * scale);
                continue;
            }
            uint16_t* halves = reinterpret_cast<uint16_t*>(out);
            int d = 0;
            for (; d + LANES <= g.head_dim; d += LANES)
                store(halves + d, __builtin_convertvector(round_bf16(load<f16v>(x + d) * scale) >> 16, h16v));
            for (; d < g.head_dim; ++d) store(halves + d, to_bf16(x[d] * scale));  // read again as words
        }
    }
}

void attend(const HeadGeometry& g, const KvView& view, AttentionScratch* s, int kv_head, const float* q, size_t q_stride,
            int num_tokens, int first_position, int block_begin, int block_end, float* state) {
    const KvLayout& l = *view.layout;
    const int rows = num_tokens * (g.num_heads / g.num_kv_heads);
    load_queries(g, l, s, q, q_stride, num_tokens, first_position);
    for (int r = 0; r < rows; ++r) {
        float* row = state + size_t(r) * (l.padded_dim + LANES);
        std::memset(row, 0, size_t(l.padded_dim + LANES) * 4);
        row[l.padded_dim] = -std::numeric_limits<float>::max();
    }
    const int limit = first_position + num_tokens;
    for (int block = block_begin; block < block_end; ++block) {
        const int start = block * KV_BLOCK;
        if (start >= limit) break;
        const int tokens = limit - start < KV_BLOCK ? limit - start : KV_BLOCK;
        Tiles tiles;
        const int count = (tokens + LANES - 1) / LANES;
        resolve(view, s, kv_head, start, count, limit, tiles);
        if (!BF16_DOT && l.type != KV_FLOAT32) widen_tiles(l, s, tiles, count);
        for (int r = 0; r < rows; r += MAX_ROWS_GROUP) {
            const int n = rows - r < MAX_ROWS_GROUP ? rows - r : MAX_ROWS_GROUP;
            if constexpr (BF16_DOT) {
                if (l.type != KV_FLOAT32) {
                    attend_group<Bf16Math>(l, s, tiles, r, n, start, state);
                    continue;
                }
            }
            attend_group<F32Math>(l, s, tiles, r, n, start, state);
        }
    }
}

void finish(const HeadGeometry& g, const float* state, int num_tokens, float* out, size_t out_stride, int kv_head) {
    const int group = g.num_heads / g.num_kv_heads;
    const int padded = (g.head_dim + LANES - 1) / LANES * LANES;
    for (int t = 0; t < num_tokens; ++t) {
        for (int h = 0; h < group; ++h) {
            const float* row = state + size_t(t * group + h) * (padded + LANES);
            const float inverse = 1.0f / row[padded + 1];
            float* o = out + t * out_stride + size_t(kv_head * group + h) * g.head_dim;
            for (int d = 0; d < g.head_dim; ++d) o[d] = row[d] * inverse;
        }
    }
}

// ---------------------------------------------------------------- argmax

#if CG_EIGHT_LANES

// Whether sixteen values hold none above `best` and no NaN, so that nothing of them matters.
CG_INLINE bool nothing_above(const float* x, float best) {
    const __m256 limit = _mm256_set1_ps(best);
    const __m256 a = _mm256_cmp_ps(load<__m256>(x), limit, _CMP_NLE_UQ), b = _mm256_cmp_ps(load<__m256>(x + 8), limit, _CMP_NLE_UQ);
    return _mm256_testz_ps(_mm256_or_ps(a, b), _mm256_or_ps(a, b));
}

int argmax(const float* x, const uint32_t* mask, int n) {
    const float none = -std::numeric_limits<float>::infinity();
    float value = none;
    int index = -1;
    for (int i = 0; i < n; i += LANES) {
        const int end = i + LANES < n ? i + LANES : n;
        // Where none of them is allowed, a NaN is all that matters.
        const bool closed = mask && !((mask[i / 32] >> (i % 32)) & 0xffffu);
        if (end == i + LANES && nothing_above(x + i, closed ? -none : value)) continue;
        for (int j = i; j < end; ++j) {
            if (x[j] != x[j]) return j;
            if (mask && !((mask[j / 32] >> (j % 32)) & 1u)) continue;
            if (x[j] > value) {
                value = x[j];
                index = j;
            }
        }
    }
    return index;
}

#else

int argmax(const float* x, const uint32_t* mask, int n) {
    const float none = -std::numeric_limits<float>::infinity();
    const i16v lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const i16v bit = i16v{} + 1;
    f16v best = splat(none);
    i16v where = i16v{} - 1, unordered = i16v{};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        f16v v = load<f16v>(x + i);
        unordered |= v != v;
        if (mask) {
            const int bits = int((mask[i / 32] >> (i % 32)) & 0xffffu);
            if (bits == 0) continue;
            v = (((i16v{} + bits) >> lane) & bit) != 0 ? v : splat(none);
        }
        const i16v better = v > best;
        best = better ? v : best;
        where = better ? lane + i : where;
    }
    float value = none;
    int index = -1;
    float values[LANES];
    int32_t indices[LANES], odd[LANES];
    store(odd, unordered);
    for (int k = 0; k < LANES; ++k)
        if (odd[k])
            for (int j = 0; j < n; ++j)
                if (x[j] != x[j]) return j;
    store(values, best);
    store(indices, where);
    for (int k = 0; k < LANES; ++k) {
        if (indices[k] < 0) continue;
        if (index < 0 || values[k] > value || (values[k] == value && indices[k] < index)) {
            value = values[k];
            index = indices[k];
        }
    }
    for (; i < n; ++i) {
        if (x[i] != x[i]) return i;
        if (mask && !((mask[i / 32] >> (i % 32)) & 1u)) continue;
        if (x[i] > value) {
            value = x[i];
            index = i;
        }
    }
    return index;
}

#endif

// ---------------------------------------------------------------- screening

constexpr int SCREEN_BLOCK = 32;

// Vectors of the machine's own width: all values are read twice for every row, and the compiler takes wider ones through
// memory.
#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
constexpr int PARTS = SCREEN_BLOCK / WIDTH;
typedef float fv __attribute__((vector_size(4 * WIDTH)));
typedef int32_t iv __attribute__((vector_size(4 * WIDTH)));

// Allowed values of a block of 32 from x[at] on, as bits.
CG_INLINE uint32_t allowed(const uint32_t* mask, int at, int n) {
    const uint32_t bits = mask ? mask[at / SCREEN_BLOCK] : ~0u;
    return n - at < SCREEN_BLOCK ? bits & ((1u << (n - at)) - 1) : bits;
}

// The values whose bit is set; -inf for the others.
CG_INLINE fv where_set(fv x, uint32_t bits) {
    iv bit = {};
    for (int i = 0; i < WIDTH; ++i) bit[i] = 1 << i;
    return ((iv{} + int32_t(bits)) & bit) != 0 ? x : fv{} - std::numeric_limits<float>::infinity();
}

float screen_floor(const float* x, const float* error, float length, const uint32_t* mask, int n) {
    const float none = -std::numeric_limits<float>::infinity();
    const fv scale = fv{} + length;
    fv best[PARTS];
    for (fv& b : best) b = fv{} + none;
    int at = 0;
    for (; at + SCREEN_BLOCK <= n; at += SCREEN_BLOCK) {
        const uint32_t bits = allowed(mask, at, n);
        if (!bits) continue;
        for (int i = 0; i < PARTS; ++i) {
            fv low = load<fv>(x + at + i * WIDTH) - load<fv>(error + at + i * WIDTH) * scale;
            if (bits != ~0u) low = where_set(low, bits >> (i * WIDTH));
            best[i] = low > best[i] ? low : best[i];  // not where it is NaN
        }
    }
    float floor = none;
    for (const fv& b : best)
        for (int i = 0; i < WIDTH; ++i) floor = b[i] > floor ? b[i] : floor;
    for (; at < n; ++at) {
        const float low = x[at] - error[at] * length;
        if ((!mask || (mask[at / SCREEN_BLOCK] >> at % SCREEN_BLOCK & 1u)) && low > floor) floor = low;
    }
    return floor;
}

// Whether no value of a block may reach `floor`; false where one is NaN.
CG_INLINE bool all_below(const float* x, const float* error, float length, float floor) {
    iv below = iv{} - 1;
    for (int i = 0; i < SCREEN_BLOCK; i += WIDTH) below &= load<fv>(x + i) + load<fv>(error + i) * (fv{} + length) < fv{} + floor;
    uint64_t halves[WIDTH / 2], all = ~uint64_t{0};
    store(halves, below);
    for (uint64_t h : halves) all &= h;
    return all == ~uint64_t{0};
}

int screen_next(const float* x, const float* error, float length, const uint32_t* mask, float floor, int block, int step,
                int n) {
    for (int at = block * SCREEN_BLOCK; at < n; at += step * SCREEN_BLOCK) {
        const int count = n - at < SCREEN_BLOCK ? n - at : SCREEN_BLOCK;
        const uint32_t bits = allowed(mask, at, n);
        const float limit = bits ? floor : std::numeric_limits<float>::infinity();  // of what is not allowed, a NaN counts
        if (count == SCREEN_BLOCK && all_below(x + at, error + at, length, limit)) continue;
        for (int i = 0; i < count; ++i) {
            const float high = x[at + i] + error[at + i] * length;
            if (high != high || (((bits >> i) & 1u) && high >= floor)) return at / SCREEN_BLOCK;
        }
    }
    return -1;
}

const BlockOps OPS = {rms_norm, rotate, kv_write, attend, merge, finish, argmax, screen_floor, screen_next};

}  // namespace
}  // namespace callgate
