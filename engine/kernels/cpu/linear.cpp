// Packed linear layers: creation, the cached blob, and how a layer's work is cut between threads.
#include "linear.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "memory.h"
#include "threadpool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

using namespace callgate;

namespace {

constexpr uint64_t MAGIC = 0x32574c4554414743;  // "CGATELW2": a new number for every change of packed.h
constexpr uint32_t MAX_SEGMENTS = 16;

struct Segment {
    int32_t fmt, n;
    int32_t n_offset, blocks;
    uint64_t data_at, bias_at;  // from the blob's start; bias_at 0: none
};

struct BlobHeader {
    uint64_t magic, bytes;
    int32_t n, k;
    uint32_t segments;
    int32_t gate_up;
};

struct Source {
    int fmt, n;
    const void* raw;
    const float* bias;
    bool screen = false;  // raw is Q8_0: its upper five bits, and what bounds the others in place of a bias
};

size_t align64(size_t x) { return (x + 63) / 64 * 64; }
int blocks_of(int n) { return (n + LANES - 1) / LANES; }

int rows_kind_of(int fmt) { return fmt == CG_F32 ? CG_ROWS_F32 : fmt == CG_BF16 ? CG_ROWS_BF16 : CG_ROWS_Q8; }

BlockFn block_fn(const Kernels* k, int fmt) {
    switch (fmt) {
        case CG_Q4_0: return k->q4_0;
        case CG_Q4_1: return k->q4_1;
        case CG_Q5_0: return k->q5_0;
        case CG_Q5_1: return k->q5_1;
        case CG_Q8_0: return k->q8_0;
        case CG_Q4_K: return k->q4_k;
        case CG_Q5_K: return k->q5_k;
        case CG_Q6_K: return k->q6_k;
        case CG_BF16: return k->bf16;
        default: return k->f32;
    }
}

#if defined(__x86_64__)
uint64_t enabled_state() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

// cpuid by hand: __builtin_cpu_supports needs a runtime that not every compiler's library brings.
int cpu_level() {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return CG_ISA_PORTABLE;
    const bool osxsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !fma || !f16c || (enabled_state() & 6) != 6) return CG_ISA_PORTABLE;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 5 & 1)) return CG_ISA_PORTABLE;
    const uint32_t needed = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    const bool avx512 = (b & needed) == needed && (c >> 11 & 1) && (enabled_state() & 0xe6) == 0xe6;
    if (!avx512 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return CG_ISA_AVX2;
    return (a >> 5 & 1) ? CG_ISA_AVX512 : CG_ISA_AVX2;
}
#else
int cpu_level() { return CG_ISA_PORTABLE; }
#endif

}  // namespace

struct cg_linear {
    const uint8_t* blob;
    void* owned;  // nullptr: the blob is the caller's
    int n, k, rows_kind;
    bool gate_up;
    int blocks;   // gate_up: of one half
    size_t weight_bytes;
    std::vector<Segment> segments;
};

namespace {

cg_linear* open_blob(const void* memory, size_t bytes, void* owned) {
    BlobHeader h;
    if (!memory || reinterpret_cast<uintptr_t>(memory) % 64 || bytes < sizeof h) return nullptr;
    std::memcpy(&h, memory, sizeof h);
    if (h.magic != MAGIC || h.bytes > bytes || h.segments < 1 || h.segments > MAX_SEGMENTS || h.n <= 0 || h.k <= 0 ||
        sizeof h + h.segments * sizeof(Segment) > h.bytes || (h.gate_up && h.segments != 2))
        return nullptr;
    auto* w = new (std::nothrow) cg_linear;
    if (!w) return nullptr;
    w->blob = static_cast<const uint8_t*>(memory);
    w->owned = nullptr;
    w->n = h.n;
    w->k = h.k;
    w->gate_up = h.gate_up != 0;
    w->blocks = 0;
    w->weight_bytes = 0;
    int64_t at = 0;
    bool good = true;
    for (uint32_t i = 0; i < h.segments && good; ++i) {
        Segment s;
        std::memcpy(&s, w->blob + sizeof h + i * sizeof s, sizeof s);
        good = packable(s.fmt, h.k) && packed_fmt(s.fmt) == s.fmt && s.n > 0 && s.blocks == blocks_of(s.n) &&
               s.n_offset == at && s.data_at % 64 == 0 && s.bias_at % 64 == 0 && s.data_at <= h.bytes &&
               size_t(s.blocks) * block_bytes(s.fmt, h.k) <= h.bytes - s.data_at &&
               (s.bias_at == 0 || (s.bias_at <= h.bytes && size_t(s.blocks) * LANES * 4 <= h.bytes - s.bias_at));
        if (!good) break;
        if (i == 0) w->rows_kind = rows_kind_of(s.fmt);
        good = rows_kind_of(s.fmt) == w->rows_kind && (!h.gate_up || s.n == h.n);
        at = h.gate_up ? 0 : at + s.n;
        w->weight_bytes += size_t(s.blocks) * block_bytes(s.fmt, h.k);
        w->blocks = h.gate_up ? s.blocks : w->blocks + s.blocks;
        w->segments.push_back(s);
    }
    if (!good || (!h.gate_up && at != h.n)) {
        delete w;
        return nullptr;
    }
    w->owned = owned;
    return w;
}

cg_linear* build(const Source* sources, int count, int n, int k, bool gate_up) {
    if (count < 1 || count > int(MAX_SEGMENTS)) return nullptr;
    size_t at = align64(sizeof(BlobHeader) + size_t(count) * sizeof(Segment));
    std::vector<Segment> segments;
    int offset = 0;
    for (int i = 0; i < count; ++i) {
        const Source& s = sources[i];
        if (s.n <= 0 || !s.raw || !packable(s.fmt, k)) return nullptr;
        Segment seg{packed_fmt(s.fmt), s.n, gate_up ? 0 : offset, blocks_of(s.n), at, 0};
        at += size_t(seg.blocks) * block_bytes(seg.fmt, k);
        if (s.bias || s.screen) {
            seg.bias_at = at;
            at += size_t(seg.blocks) * LANES * 4;
        }
        offset += s.n;
        segments.push_back(seg);
    }
    void* memory = allocate(at);
    if (!memory) return nullptr;
    auto* blob = static_cast<uint8_t*>(memory);
    std::memset(blob, 0, align64(sizeof(BlobHeader) + size_t(count) * sizeof(Segment)));
    const BlobHeader h{MAGIC, at, n, k, uint32_t(count), gate_up ? 1 : 0};
    std::memcpy(blob, &h, sizeof h);
    std::memcpy(blob + sizeof h, segments.data(), segments.size() * sizeof(Segment));
    for (int i = 0; i < count; ++i) {
        const Source& s = sources[i];
        const Segment& seg = segments[size_t(i)];
        float* bias = seg.bias_at ? reinterpret_cast<float*>(blob + seg.bias_at) : nullptr;
        if (bias) std::memset(bias, 0, size_t(seg.blocks) * LANES * 4);
        if (s.screen) {
            pack_coarse(s.n, k, s.raw, blob + seg.data_at, bias);
            continue;
        }
        pack_matrix(s.fmt, s.n, k, s.raw, blob + seg.data_at);
        if (bias) std::memcpy(bias, s.bias, size_t(s.n) * 4);
    }
    cg_linear* w = open_blob(memory, at, memory);
    if (!w) std::free(memory);
    return w;
}

const Segment& segment_of(const cg_linear* w, int* block) {
    size_t i = 0;
    while (*block >= w->segments[i].blocks) *block -= w->segments[i++].blocks;
    return w->segments[i];
}

const uint8_t* block_data(const cg_linear* w, const Segment& s, int block) {
    return w->blob + s.data_at + size_t(block) * block_bytes(s.fmt, w->k);
}

const float* bias_of(const cg_linear* w, const Segment& s) {
    return s.bias_at ? reinterpret_cast<const float*>(w->blob + s.bias_at) : nullptr;
}

constexpr int64_t GRAIN_NS = 4000;  // work taken at once: long beside an atomic, short beside a time slice

// About how long one block takes: reading it from memory or multiplying it, whichever is longer.
int64_t block_ns(size_t bytes, int k, int rows) {
    const int64_t read = int64_t(bytes) / 32, multiply = int64_t(rows) * k / CG_GROUP * 3;
    return 1 + (read > multiply ? read : multiply);
}

// Calls fn(block, first row, rows) for this thread's share of blocks x row chunks. Every thread owns a run of blocks,
// which it takes in order, so that its weights are one stream; row chunks are the outer loop, so that a chunk's
// activations stay in L2. Who is done takes from the end of another's: a thread that lost its core for a while holds up
// nobody for longer than one grain. Which thread computes a block never changes its bits.
template <class Fn>
void my_share(cg_ctx* ctx, int blocks, int m, int64_t unit_ns, int tid, int nthreads, Fn fn) {
    const int chunks = (m + ROW_CHUNK - 1) / ROW_CHUNK;
    const auto run = [&](int owner, int first, int count) {
        const int lo = int(int64_t(blocks) * owner / nthreads), own = int(int64_t(blocks) * (owner + 1) / nthreads) - lo;
        for (int u = first; u < first + count; ++u) {
            const int c = u / own;
            const int r0 = int(int64_t(m) * c / chunks), r1 = int(int64_t(m) * (c + 1) / chunks);
            fn(lo + u % own, r0, r1 - r0);
        }
    };
    const auto units = [&](int owner) {
        return (int(int64_t(blocks) * (owner + 1) / nthreads) - int(int64_t(blocks) * owner / nthreads)) * chunks;
    };
    if (nthreads != ctx->threads || nthreads == 1 || int64_t(blocks) * chunks > MAX_SHARED_UNITS)
        return run(tid, 0, units(tid));
    const uint32_t call = ++ctx->ranges[size_t(tid)].calls;
    const int grain = int(unit_ns >= GRAIN_NS ? 1 : GRAIN_NS / unit_ns);
    for (int i = 0; i < nthreads; ++i) {
        const int owner = (tid + i) % nthreads;
        for (int first, count; (count = take_units(ctx, call, owner, units(owner), grain, i == 0, &first)) > 0;)
            run(owner, first, count);
    }
}

struct Call {
    cg_ctx* ctx;
    const cg_linear* w;
    const cg_rows* x;
    float* y;
    int ldy, m, flags;
    const cg_rows* out;
};

void linear_region(void* arg, int tid, int nthreads) {
    auto* c = static_cast<Call*>(arg);
    cg_linear_part(c->ctx, c->w, c->x, c->y, c->ldy, c->m, c->flags, tid, nthreads);
}

void gate_up_region(void* arg, int tid, int nthreads) {
    auto* c = static_cast<Call*>(arg);
    cg_gate_up_part(c->ctx, c->w, c->x, c->out, c->m, tid, nthreads);
}

struct Conversion {
    cg_ctx* ctx;
    const cg_rows* rows;
    const float* x;
    int ldx, m;
};

void quantize_region(void* arg, int tid, int nthreads) {
    auto* c = static_cast<Conversion*>(arg);
    const int lo = int(int64_t(c->m) * tid / nthreads), hi = int(int64_t(c->m) * (tid + 1) / nthreads);
    for (int r = lo; r < hi; ++r) c->ctx->kernels->set_row(c->rows, r, c->x + size_t(r) * size_t(c->ldx));
}

struct Measure {
    cg_ctx* ctx;
    const uint8_t* memory;
    size_t bytes;
    int rounds;
    std::vector<double> done;
};

void read_region(void* arg, int tid, int nthreads) {
    auto* c = static_cast<Measure*>(arg);
    const size_t share = c->bytes / size_t(nthreads) / 256 * 256;
    c->done[size_t(tid)] = double(c->ctx->kernels->read(c->memory + size_t(tid) * share, share));
}

void dots_region(void* arg, int tid, int) {
    auto* c = static_cast<Measure*>(arg);
    c->done[size_t(tid)] = c->ctx->kernels->dots(c->rounds);
}

int64_t unit_ns(const cg_linear* w, int m) {
    const int rows = m < ROW_CHUNK ? m : ROW_CHUNK;
    return block_ns(w->weight_bytes / size_t(w->blocks), w->k, w->gate_up ? 2 * rows : rows);
}

struct Tile {
    uint8_t* scratch;
    float* acc[2];
};

Tile tile_of(cg_ctx* ctx, int tid) {
    constexpr size_t ACC = size_t(ROW_CHUNK) * LANES * sizeof(float);
    auto* memory = static_cast<uint8_t*>(cg_scratch(ctx, tid, 0, SCRATCH_BYTES + 2 * ACC));
    if (!memory) std::abort();  // half a megabyte: nothing can go on without it
    auto* acc = reinterpret_cast<float*>(memory + SCRATCH_BYTES);
    return {memory, {acc, acc + size_t(ROW_CHUNK) * LANES}};
}

}  // namespace

const Kernels* callgate::kernels_for(int isa) {
    switch (isa) {
        case CG_ISA_PORTABLE: return kernels_portable();
        case CG_ISA_AVX2: return kernels_avx2();
        case CG_ISA_AVX512: return kernels_avx512();
        default: return nullptr;
    }
}

extern "C" {

int cg_abi_version(void) { return CG_ABI_VERSION; }

int cg_isa_best(void) {
    int level = cpu_level();
    while (level > CG_ISA_PORTABLE && !kernels_for(level)) --level;
    return level;
}

size_t cg_rows_bytes(int kind, int m, int k) {
    if (kind < CG_ROWS_F32 || kind > CG_ROWS_Q8 || m < 0 || k <= 0 || k % CG_GROUP) return 0;
    return align64(size_t(m) * row_stride_bytes(kind, k));
}

void cg_rows_init(cg_rows* rows, int kind, int m, int k, void* memory) {
    (void)m;
    *rows = cg_rows{kind, k, memory};
}

void cg_rows_set(const cg_ctx* ctx, const cg_rows* rows, int row, const float* x) { ctx->kernels->set_row(rows, row, x); }

void cg_rows_quantize(cg_ctx* ctx, const cg_rows* rows, const float* x, int ldx, int m) {
    Conversion c{ctx, rows, x, ldx, m};
    if (size_t(m) * size_t(rows->k) < 16384) quantize_region(&c, 0, 1);
    else cg_region(ctx, quantize_region, &c);
}

cg_linear* cg_linear_create(int fmt, int n, int k, const void* raw, const float* bias) {
    const Source s{fmt, n, raw, bias};
    return build(&s, 1, n, k, false);
}

cg_linear* cg_linear_create_gate_up(int gate_fmt, int up_fmt, int n, int k, const void* gate, const void* up) {
    const Source s[2] = {{gate_fmt, n, gate, nullptr}, {up_fmt, n, up, nullptr}};
    return n % CG_GROUP ? nullptr : build(s, 2, n, k, true);
}

cg_linear* cg_linear_create_stack(int count, const int* fmts, const int* ns, int k, const void* const* raws,
                                  const float* const* biases) {
    std::vector<Source> sources;
    int n = 0;
    for (int i = 0; i < count; ++i) {
        sources.push_back({fmts[i], ns[i], raws[i], biases ? biases[i] : nullptr});
        n += ns[i];
    }
    return build(sources.data(), count, n, k, false);
}

cg_linear* cg_linear_create_screen(int fmt, int n, int k, const void* raw) {
    const Source s{CG_Q5_0, n, raw, nullptr, true};
    return fmt == CG_Q8_0 ? build(&s, 1, n, k, false) : nullptr;
}

void cg_linear_destroy(cg_linear* w) {
    if (!w) return;
    std::free(w->owned);
    delete w;
}

const void* cg_linear_blob(const cg_linear* w, size_t* bytes) {
    BlobHeader h;
    std::memcpy(&h, w->blob, sizeof h);
    *bytes = h.bytes;
    return w->blob;
}

cg_linear* cg_linear_from_blob(const void* blob, size_t bytes) { return open_blob(blob, bytes, nullptr); }

int cg_linear_n(const cg_linear* w) { return w->n; }
int cg_linear_k(const cg_linear* w) { return w->k; }
int cg_linear_rows_kind(const cg_linear* w) { return w->rows_kind; }
int cg_linear_is_gate_up(const cg_linear* w) { return w->gate_up; }
size_t cg_linear_bytes(const cg_linear* w) { return w->weight_bytes; }
const float* cg_linear_bias(const cg_linear* w) { return bias_of(w, w->segments[0]); }

void cg_linear_part(cg_ctx* ctx, const cg_linear* w, const cg_rows* x, float* y, int ldy, int m, int flags, int tid,
                    int nthreads) {
    const Tile tile = tile_of(ctx, tid);
    const size_t stride = row_stride_bytes(w->rows_kind, w->k);
    const auto* rows = static_cast<const uint8_t*>(x->data);
    my_share(ctx, w->blocks, m, unit_ns(w, m), tid, nthreads, [&](int b, int r0, int count) {
        const Segment& s = segment_of(w, &b);
        block_fn(ctx->kernels, s.fmt)(block_data(w, s, b), w->k, rows + size_t(r0) * stride, count, tile.acc[0], tile.scratch);
        const int lanes = s.n - b * LANES < LANES ? s.n - b * LANES : LANES;
        const float* bias = flags & CG_NO_BIAS ? nullptr : bias_of(w, s);
        if (bias) bias += b * LANES;
        float* out = y + size_t(r0) * size_t(ldy) + s.n_offset + b * LANES;
        ctx->kernels->store(tile.acc[0], count, lanes, bias, out, ldy, flags);
    });
}

void cg_linear_block_part(cg_ctx* ctx, const cg_linear* w, const cg_rows* x, int row, int block, float* out, int tid) {
    const Segment& s = segment_of(w, &block);
    const auto* data = static_cast<const uint8_t*>(x->data) + size_t(row) * row_stride_bytes(w->rows_kind, w->k);
    block_fn(ctx->kernels, s.fmt)(block_data(w, s, block), w->k, data, 1, out, tile_of(ctx, tid).scratch);
}

void cg_linear_forward(cg_ctx* ctx, const cg_linear* w, const cg_rows* x, float* y, int ldy, int m, int flags) {
    Call c{ctx, w, x, y, ldy, m, flags, nullptr};
    cg_region(ctx, linear_region, &c);
}

void cg_gate_up_part(cg_ctx* ctx, const cg_linear* w, const cg_rows* x, const cg_rows* out, int m, int tid, int nthreads) {
    const Tile tile = tile_of(ctx, tid);
    const size_t stride = row_stride_bytes(w->rows_kind, w->k);
    const auto* rows = static_cast<const uint8_t*>(x->data);
    my_share(ctx, w->blocks, m, unit_ns(w, m), tid, nthreads, [&](int b, int r0, int count) {
        for (size_t i = 0; i < 2; ++i) {
            const Segment& s = w->segments[i];
            block_fn(ctx->kernels, s.fmt)(block_data(w, s, b), w->k, rows + size_t(r0) * stride, count, tile.acc[i], tile.scratch);
        }
        ctx->kernels->store_silu(tile.acc[0], tile.acc[1], count, out, r0, b);
    });
}

void cg_gate_up_forward(cg_ctx* ctx, const cg_linear* w, const cg_rows* x, const cg_rows* out, int m) {
    Call c{ctx, w, x, nullptr, 0, m, 0, out};
    cg_region(ctx, gate_up_region, &c);
}

int cg_linear_row(const cg_linear* w, int row, float* out) {
    if (row < 0) return CG_EINVAL;
    for (size_t i = 0; i < w->segments.size(); ++i) {
        const Segment& s = w->segments[i];
        const int at = row - (w->gate_up ? int(i) * w->n : s.n_offset);
        if (at < 0 || at >= s.n) continue;
        unpack_row(s.fmt, w->k, block_data(w, s, at / LANES), at % LANES, out);
        return CG_OK;
    }
    return CG_EINVAL;
}

void cg_measure_read(cg_ctx* ctx, const void* memory, size_t bytes) {
    Measure c{ctx, static_cast<const uint8_t*>(memory), bytes, 0, std::vector<double>(size_t(ctx->threads))};
    cg_region(ctx, read_region, &c);
}

double cg_measure_dots(cg_ctx* ctx, int rounds) {
    Measure c{ctx, nullptr, 0, rounds, std::vector<double>(size_t(ctx->threads))};
    cg_region(ctx, dots_region, &c);
    double sum = 0;
    for (double d : c.done) sum += d;
    return sum;
}

}  // extern "C"
