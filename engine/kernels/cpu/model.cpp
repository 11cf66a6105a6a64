// The composed decoder forward. One region per step; inside it every thread walks the layers together and meets at
// five barriers a layer when rows are few. A row's arithmetic is the same whatever shares the step (see attention.h and
// callgate_cpu.h), so chunking, batching and cache state cannot change its bits.
//
// Of a prompt's tokens only the last one's logits are wanted: behind the last layer's keys and values the other rows'
// results would reach nobody, and are not computed.
#include "model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <vector>

#include "attention.h"
#include "memory.h"

using namespace callgate;

namespace {

constexpr int SCRATCH_ROWS = 1, SCRATCH_ATTENTION = 2;
constexpr int TILE_ROWS = 256;         // queries (tokens x heads of a group) of one attention task
constexpr int PRIVATE_ROWS = 4;        // up to so many rows each thread prepares its own copy instead of a barrier
constexpr int SPLIT_MIN_BLOCKS = 2;    // KV blocks below which a decode is not split
constexpr int SCREEN_PAUSE = 32;       // steps that read the head whole after one whose screen left too much open
constexpr float SHORTEST = 1e-20f, LONGEST = 1e28f;  // rows that a screen is used for

struct Layer {
    std::vector<float> attn_norm, ffn_norm, q_norm, k_norm;
    const cg_linear *qkv, *out, *gate_up, *down;
    std::vector<float> key_offset;
};

struct AttentionTask {
    int32_t row, kv_head, first_token, num_tokens, block_begin, block_end;
    int32_t out;       // row of the attention buffer that the first token's result goes to
    int32_t partial;   // index in `partials` of its first block's state, or -1: finishes by itself
    int32_t partials;  // first part of a row: how many block states of the row follow each other, else 0
    int64_t cost;
};

struct Buffer {
    void* data = nullptr;
    size_t bytes = 0;
    ~Buffer() { std::free(data); }
    bool reserve(size_t n) {
        if (n <= bytes) return true;
        std::free(data);
        n += n / 4;
        data = allocate(n);
        bytes = data ? n : 0;
        return data != nullptr;
    }
    template <class T>
    T* as() const { return static_cast<T*>(data); }
};

// Rows up to which a screen is read first. Plain loops are slower on five bits than on bytes. With AVX-512 (not measured)
// further rows of the head cost little, and the candidates of each as much as the first one's.
int screen_rows(int isa) { return isa == CG_ISA_AVX2 ? 16 : isa == CG_ISA_AVX512 ? 4 : 0; }

// Seconds of a clock that does not go back, or of this thread's processor time.
double now(bool processor_time) {
    timespec t;
    clock_gettime(processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

}  // namespace

struct cg_model {
    cg_ctx* ctx;
    const BlockOps* ops;
    cg_model_config config;
    HeadGeometry geometry;
    std::vector<float> inv_freq, final_norm;
    std::vector<Layer> layers;
    int embedding_type = -1;
    const void* embedding = nullptr;
    const cg_linear *head = nullptr, *screen = nullptr;
    KvLayout layout{};
    uint8_t* pool = nullptr;
    size_t pool_bytes = 0;
    int num_pages = 0;
    Buffer x, qkv, attention, rows, wide_rows, rotary, partials, logits, gathered, best;
    std::vector<AttentionTask> tasks, last_tasks;  // last_tasks: of the last layer, where it is trimmed
    bool trimmed = false; // the last layer goes on with the rows whose logits are wanted
    bool fused = false;   // every row has one token: rotary, KV write and attention in one task
    bool split = false;   // some task is a part of a row's blocks
    int profile = CG_PROFILE_OFF;
    cg_profile counters{};
    int64_t steps = 0;
    bool screened = false;  // this step's logits come from the screen first
    int screen_pause = 0;
};

namespace {

struct Step {
    cg_model* m;
    const cg_batch* b;
    cg_output* o;
    int state_stride;  // floats of one row's state
};

// What one thread carries through a step.
struct Walk {
    Step* s;
    int tid, nthreads;
    double mark;

    cg_model& m() const { return *s->m; }
    void barrier() const { cg_barrier(s->m->ctx); }
    void count(int op) {
        if (tid != 0 || !s->m->profile) return;
        const double t = now(s->m->profile == CG_PROFILE_CPU);
        cg_profile& p = s->m->counters;
        p.seconds[op] += t - mark;
        p.fastest[op] = p.calls[op]++ ? std::min(p.fastest[op], t - mark) : t - mark;
        mark = t;
    }
    // This thread's share of n items, in multiples of `unit`.
    void share(int n, int unit, int& begin, int& end) const {
        const int units = (n + unit - 1) / unit;
        begin = std::min(n, int(int64_t(units) * tid / nthreads) * unit);
        end = std::min(n, int(int64_t(units) * (tid + 1) / nthreads) * unit);
    }
};

void fetch(const void* memory, size_t bytes, bool write) {
    const char* p = static_cast<const char*>(memory);
    for (size_t at = 0; at < bytes; at += 64) write ? __builtin_prefetch(p + at, 1) : __builtin_prefetch(p + at, 0);
}

// Rows for `linear` made from n float rows, normalised first where `norm` is given. Few rows: each thread makes its own
// copy and no barrier is needed before the linear.
cg_rows prepare(Walk& w, const cg_linear* linear, const float* x, size_t stride, int n, const float* norm) {
    cg_model& m = w.m();
    const int k = cg_linear_k(linear), kind = cg_linear_rows_kind(linear);
    const bool own = n <= PRIVATE_ROWS;
    const size_t bytes = cg_rows_bytes(kind, n, k), width = cg_rows_bytes(kind, 1, k);
    const size_t row_bytes = (size_t(k) * 4 + 63) / 64 * 64;
    uint8_t* scratch = static_cast<uint8_t*>(cg_scratch(m.ctx, w.tid, SCRATCH_ROWS, row_bytes + (own ? bytes : 0)));
    float* row = reinterpret_cast<float*>(scratch);
    cg_rows rows;
    cg_rows_init(&rows, kind, n, k, own ? scratch + row_bytes : m.rows.as<uint8_t>());
    int begin = 0, end = n;
    if (!own) w.share(n, 1, begin, end);
    for (int i = begin; i < end; ++i) {
        const float* source = x + i * stride;
        if (i + 1 < end) {  // other threads wrote half of the next row and read the last step's copy of it
            fetch(source + stride, size_t(k) * 4, false);
            fetch(static_cast<uint8_t*>(rows.data) + (i + 1) * width, width, true);
        }
        if (norm) {
            m.ops->rms_norm(row, source, norm, k, m.config.rms_eps);
            source = row;
        }
        cg_rows_set(m.ctx, &rows, i, source);
    }
    if (!own) w.barrier();
    return rows;
}

void rotary_tables(Walk& w) {
    cg_model& m = w.m();
    const int half = m.config.rotary_dim / 2;
    float* table = m.rotary.as<float>();
    int begin, end;
    w.share(w.s->b->tokens, 1, begin, end);
    for (int t = begin; t < end; ++t) {
        float *cos = table + size_t(t) * 2 * half, *sin = cos + half;
        for (int i = 0; i < half; ++i) {
            const float angle = float(w.s->b->positions[t]) * m.inv_freq[i];
            cos[i] = float(std::cos(double(angle))) * m.config.rope_attention;
            sin[i] = float(std::sin(double(angle))) * m.config.rope_attention;
        }
    }
}

void embed(Walk& w) {
    cg_model& m = w.m();
    const int hidden = m.config.hidden_size;
    int begin, end;
    w.share(w.s->b->tokens, 1, begin, end);
    float* x = m.x.as<float>() + size_t(begin) * hidden;
    if (end > begin)
        cg_embed_rows(m.embedding_type, m.embedding, m.config.vocab_size, hidden, w.s->b->input_ids + begin, end - begin, x, hidden);
    if (m.config.embedding_scale != 1.0f)
        for (size_t i = 0; i < size_t(end - begin) * hidden; ++i) x[i] *= m.config.embedding_scale;
}

struct HeadPointers {
    float *q, *k, *v;  // q: first head of the group
};

HeadPointers heads_of(const cg_model& m, int token, int kv_head) {
    const cg_model_config& c = m.config;
    const int group = c.num_heads / c.num_kv_heads;
    float* row = m.qkv.as<float>() + size_t(token) * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    return {row + size_t(kv_head) * group * c.head_dim, row + size_t(c.num_heads + kv_head) * c.head_dim,
            row + size_t(c.num_heads + c.num_kv_heads + kv_head) * c.head_dim};
}

// Rotary of one token's group, and its key and value into the page.
void rotate_and_write(Walk& w, int layer, int token, int kv_head) {
    cg_model& m = w.m();
    const cg_model_config& c = m.config;
    const Layer& l = m.layers[layer];
    const float* cos = m.rotary.as<float>() + size_t(token) * c.rotary_dim;
    const float* sin = cos + c.rotary_dim / 2;
    const HeadPointers p = heads_of(m, token, kv_head);
    const float* q_norm = l.q_norm.empty() ? nullptr : l.q_norm.data();
    const float* k_norm = l.k_norm.empty() ? nullptr : l.k_norm.data();
    for (int h = 0; h < c.num_heads / c.num_kv_heads; ++h)
        m.ops->rotate(p.q + size_t(h) * c.head_dim, q_norm, c.rms_eps, cos, sin, c.head_dim, c.rotary_dim);
    m.ops->rotate(p.k, k_norm, c.rms_eps, cos, sin, c.head_dim, c.rotary_dim);
    if (!l.key_offset.empty()) {
        const float* offset = l.key_offset.data() + size_t(kv_head) * c.head_dim;
        for (int i = 0; i < c.head_dim; ++i) p.k[i] -= offset[i];
    }
    m.ops->kv_write(m.layout, m.pool, layer, kv_head, w.s->b->slot_mapping[token], p.k, p.v);
}

void run_task(Walk& w, int layer, const AttentionTask& task, AttentionScratch* scratch, float* own_state) {
    cg_model& m = w.m();
    const cg_model_config& c = m.config;
    const cg_batch& b = *w.s->b;
    const size_t q_stride = size_t(c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    if (m.fused && task.block_begin == 0) rotate_and_write(w, layer, task.first_token, task.kv_head);
    const KvView view{&m.layout, m.pool, b.page_table + size_t(task.row) * b.pages_per_row, layer};
    const auto attend = [&](int begin, int end, float* state) {
        m.ops->attend(m.geometry, view, scratch, task.kv_head, heads_of(m, task.first_token, task.kv_head).q, q_stride,
                      task.num_tokens, b.positions[task.first_token], begin, end, state);
    };
    if (task.partial < 0) {
        attend(task.block_begin, task.block_end, own_state);
        const size_t width = size_t(c.num_heads) * c.head_dim;
        m.ops->finish(m.geometry, own_state, task.num_tokens, m.attention.as<float>() + task.out * width, width, task.kv_head);
        return;
    }
    // One state per block, merged later one by one in order: the same sums as a task that runs through the blocks.
    const size_t block_floats = size_t(c.num_heads / c.num_kv_heads) * w.s->state_stride;
    float* state = m.partials.as<float>() + task.partial * block_floats;
    for (int block = task.block_begin; block < task.block_end; ++block, state += block_floats) attend(block, block + 1, state);
}

void merge_parts(Walk& w) {
    cg_model& m = w.m();
    const cg_model_config& c = m.config;
    const int group = c.num_heads / c.num_kv_heads;
    const size_t width = size_t(c.num_heads) * c.head_dim, part = size_t(group) * w.s->state_stride;
    int index = 0;
    for (const AttentionTask& task : m.tasks) {
        if (task.partials == 0 || index++ % w.nthreads != w.tid) continue;
        float* state = m.partials.as<float>() + task.partial * part;
        for (int i = 1; i < task.partials; ++i) m.ops->merge(state, state + i * part, group, m.layout.padded_dim);
        m.ops->finish(m.geometry, state, 1, m.attention.as<float>() + task.out * width, width, task.kv_head);
    }
}

void attention(Walk& w, int layer, const std::vector<AttentionTask>& tasks) {
    cg_model& m = w.m();
    const cg_model_config& c = m.config;
    if (!m.fused) {
        int begin, end;
        w.share(w.s->b->tokens, 1, begin, end);
        for (int t = begin; t < end; ++t)
            for (int h = 0; h < c.num_kv_heads; ++h) rotate_and_write(w, layer, t, h);
        w.barrier();
    }
    const size_t bytes = attention_scratch_bytes(m.layout, TILE_ROWS);
    uint8_t* memory = static_cast<uint8_t*>(
        cg_scratch(m.ctx, w.tid, SCRATCH_ATTENTION, bytes + size_t(TILE_ROWS) * w.s->state_stride * sizeof(float)));
    AttentionScratch* scratch = attention_scratch_init(memory, m.layout, TILE_ROWS);
    const int slot = layer & 1, count = int(tasks.size());
    for (int i = cg_counter_next(m.ctx, slot); i < count; i = cg_counter_next(m.ctx, slot))
        run_task(w, layer, tasks[i], scratch, reinterpret_cast<float*>(memory + bytes));
    w.barrier();
    if (w.tid == 0) cg_counter_reset(m.ctx, slot);
    if (m.split) {
        merge_parts(w);
        w.barrier();
    }
}

// The rows of x whose logits are wanted, to `gathered`.
void gather_rows(Walk& w) {
    cg_model& m = w.m();
    const cg_batch& b = *w.s->b;
    const size_t hidden = size_t(m.config.hidden_size);
    int begin, end;
    w.share(b.num_logits, 1, begin, end);
    for (int i = begin; i < end; ++i)
        std::memcpy(m.gathered.as<float>() + i * hidden, m.x.as<float>() + size_t(b.logits_index[i]) * hidden, hidden * 4);
}

void decoder_layer(Walk& w, int index) {
    cg_model& m = w.m();
    const cg_model_config& c = m.config;
    const Layer& l = m.layers[index];
    const bool trimmed = m.trimmed && index + 1 == c.num_layers;
    int n = w.s->b->tokens;
    const int hidden = c.hidden_size;
    const int width = c.num_heads * c.head_dim;
    float* x = m.x.as<float>();

    cg_rows rows = prepare(w, l.qkv, x, hidden, n, l.attn_norm.data());
    w.count(CG_OP_NORM);
    const int qkv_width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    cg_linear_part(m.ctx, l.qkv, &rows, m.qkv.as<float>(), qkv_width, n, 0, w.tid, w.nthreads);
    w.barrier();
    w.count(CG_OP_QKV);

    if (trimmed) gather_rows(w);
    attention(w, index, trimmed ? m.last_tasks : m.tasks);
    w.count(CG_OP_ATTENTION);
    if (trimmed) {
        n = w.s->b->num_logits;
        x = m.gathered.as<float>();
        if (n == 0) return;
    }

    rows = prepare(w, l.out, m.attention.as<float>(), width, n, nullptr);
    w.count(CG_OP_NORM);
    cg_linear_part(m.ctx, l.out, &rows, x, hidden, n, CG_ADD, w.tid, w.nthreads);
    w.barrier();
    w.count(CG_OP_OUT);

    rows = prepare(w, l.gate_up, x, hidden, n, l.ffn_norm.data());
    w.count(CG_OP_NORM);
    cg_rows wide;
    cg_rows_init(&wide, cg_linear_rows_kind(l.down), n, c.intermediate_size, m.wide_rows.data);
    cg_gate_up_part(m.ctx, l.gate_up, &rows, &wide, n, w.tid, w.nthreads);
    w.barrier();
    w.count(CG_OP_GATE_UP);

    cg_linear_part(m.ctx, l.down, &wide, x, hidden, n, CG_ADD, w.tid, w.nthreads);
    w.barrier();
    w.count(CG_OP_DOWN);
}

struct Best {
    float value;
    int32_t index;
    int32_t unsettled;  // of refine; apart from the others, which a thread that is ahead may write already
    uint8_t pad[52];
};

// Allowed tokens from `begin` (a multiple of 32) on of a row that wants logits, or null for all.
const uint32_t* mask_of(const Walk& w, int row, int begin) {
    const cg_output& o = *w.s->o;
    if (!o.mask || (o.masked && !o.masked[row])) return nullptr;
    return reinterpret_cast<const uint32_t*>(o.mask) + size_t(row) * ((w.m().config.vocab_size + 31) / 32) + begin / 32;
}

// |x| of a quantized row; NaN, which leaves every token open, where a sum of its products could overflow (no weight is
// beyond 128 * 65504) or lose bits below the smallest normal number: what bounds the screen's errors knows of neither.
float length_of(const cg_rows& rows, int row) {
    const int groups = rows.k / CG_GROUP;
    const cg_q8_group* group = static_cast<const cg_q8_group*>(rows.data) + size_t(row) * groups;
    double sum = 0;
    for (int g = 0; g < groups; ++g) {
        int32_t squares = 0;
        for (int i = 0; i < CG_GROUP; ++i) squares += group[g].q[i] * group[g].q[i];
        sum += double(group[g].scale) * group[g].scale * squares;
    }
    const float length = float(std::sqrt(sum) * 1.00001);
    return length > SHORTEST && length < LONGEST ? length : NAN;
}

// In m.logits is what the screen says. Where that leaves open whether a token could be the best, the head's own logits
// take its place: what stays is below the largest of those, so the argmax is that of the head. False where so much is
// open that reading the whole head is faster: nothing is known then.
bool refine(Walk& w, const cg_rows& rows) {
    cg_model& m = w.m();
    const int vocab = m.config.vocab_size, n = w.s->b->num_logits;
    const float* errors = cg_linear_bias(m.screen);
    Best* floors = m.best.as<Best>();
    int allowance = vocab / 32 / 2 / w.nthreads;  // blocks: half of the head
    int begin, end;
    w.share(vocab, 32, begin, end);
    for (int i = 0; i < n; ++i) {
        const float* x = m.logits.as<float>() + size_t(i) * vocab + begin;
        const float length = length_of(rows, i);
        floors[i * w.nthreads + w.tid].value = m.ops->screen_floor(x, errors + begin, length, mask_of(w, i, begin), end - begin);
    }
    w.barrier();
    for (int i = 0; i < n; ++i) {
        float* x = m.logits.as<float>() + size_t(i) * vocab;
        const float length = length_of(rows, i);
        float floor = -INFINITY, exact[32];
        for (int t = 0; t < w.nthreads; ++t) floor = std::max(floor, floors[i * w.nthreads + t].value);
        if (std::isinf(floor)) floor = -INFINITY;
        // Likely tokens have neighbouring ids: threads take blocks in turn, not runs of them.
        for (int block = w.tid; allowance >= 0; block += w.nthreads) {
            block = m.ops->screen_next(x, errors, length, mask_of(w, i, 0), floor, block, w.nthreads, vocab);
            if (block < 0) break;
            --allowance;
            cg_linear_block_part(m.ctx, m.head, &rows, i, block, exact, w.tid);
            std::memcpy(x + block * 32, exact, size_t(std::min(32, vocab - block * 32)) * 4);
        }
    }
    floors[w.tid].unsettled = allowance < 0;
    w.barrier();
    bool settled = true;
    for (int t = 0; t < w.nthreads; ++t) settled = settled && !floors[t].unsettled;
    if (w.tid == 0 && !settled) m.screen_pause = SCREEN_PAUSE;
    return settled;
}

void best_tokens(Walk& w) {
    cg_model& m = w.m();
    const cg_batch& b = *w.s->b;
    const cg_output& o = *w.s->o;
    const int vocab = m.config.vocab_size;
    const float* logits = m.logits.as<float>();
    int begin, end;
    w.share(vocab, 32, begin, end);
    for (int i = 0; i < b.num_logits; ++i) {
        const float* x = logits + size_t(i) * vocab + begin;
        const int index = m.ops->argmax(x, mask_of(w, i, begin), end - begin);
        Best& best = m.best.as<Best>()[size_t(i) * w.nthreads + w.tid];
        best.index = index < 0 ? -1 : begin + index;
        best.value = index < 0 ? 0.0f : x[index];
    }
    w.barrier();
    if (w.tid != 0) return;
    for (int i = 0; i < b.num_logits; ++i) {
        const Best* parts = m.best.as<Best>() + size_t(i) * w.nthreads;
        int32_t index = -1;
        float value = 0.0f;
        for (int t = 0; t < w.nthreads; ++t) {
            if (parts[t].index < 0 || value != value) continue;
            if (index < 0 || parts[t].value > value || parts[t].value != parts[t].value) {
                index = parts[t].index;
                value = parts[t].value;
            }
        }
        o.argmax[i] = index;
    }
}

// This thread's share of n rows after the final norm.
void norm_rows(Walk& w, float* out, const float* x, int n) {
    cg_model& m = w.m();
    const size_t hidden = size_t(m.config.hidden_size);
    int begin, end;
    w.share(n, 1, begin, end);
    for (int i = begin; i < end; ++i)
        m.ops->rms_norm(out + i * hidden, x + i * hidden, m.final_norm.data(), int(hidden), m.config.rms_eps);
}

// Final norm, head and argmax of the rows that want logits.
void finish_step(Walk& w) {
    cg_model& m = w.m();
    const cg_batch& b = *w.s->b;
    cg_output& o = *w.s->o;
    const int hidden = m.config.hidden_size;
    if (o.hidden) norm_rows(w, o.hidden, m.x.as<float>(), b.tokens);
    if (b.num_logits == 0) return;
    if (!m.trimmed) {
        gather_rows(w);
        w.barrier();
    }
    if (o.states) norm_rows(w, o.states, m.gathered.as<float>(), b.num_logits);
    const cg_rows rows = prepare(w, m.head, m.gathered.as<float>(), hidden, b.num_logits, m.final_norm.data());
    w.count(CG_OP_NORM);
    const auto multiply = [&](const cg_linear* linear, int flags) {
        cg_linear_part(m.ctx, linear, &rows, m.logits.as<float>(), m.config.vocab_size, b.num_logits, flags, w.tid, w.nthreads);
        w.barrier();
    };
    if (m.screened) multiply(m.screen, CG_NO_BIAS);
    if (!m.screened || !refine(w, rows)) multiply(m.head, 0);
    w.count(CG_OP_HEAD);
    if (o.argmax) best_tokens(w);
    w.count(CG_OP_ARGMAX);
}

void walk_step(void* arg, int tid, int nthreads) {
    Step* s = static_cast<Step*>(arg);
    const int profile = s->m->profile;
    Walk w{s, tid, nthreads, profile && tid == 0 ? now(profile == CG_PROFILE_CPU) : 0.0};
    rotary_tables(w);
    embed(w);
    w.barrier();
    w.count(CG_OP_EMBED);
    for (int i = 0; i < s->m->config.num_layers; ++i) decoder_layer(w, i);
    finish_step(w);
}

struct AttentionOnly {
    Step step;
    int layer;
};

void walk_attention(void* arg, int tid, int nthreads) {
    AttentionOnly* a = static_cast<AttentionOnly*>(arg);
    Walk w{&a->step, tid, nthreads, 0.0};
    rotary_tables(w);
    w.barrier();
    attention(w, a->layer, w.m().tasks);
}

// ---------------------------------------------------------------- planning, outside the region

bool valid(const cg_model& m, const cg_batch& b) {
    if (b.rows < 0 || b.tokens <= 0 || b.num_logits < 0 || b.cu_seqlens[0] != 0 || b.cu_seqlens[b.rows] != b.tokens) return false;
    const int page_size = m.layout.page_size;
    for (int r = 0; r < b.rows; ++r) {
        const int begin = b.cu_seqlens[r], n = b.cu_seqlens[r + 1] - begin;
        if (n <= 0 || b.seq_lens[r] < n) return false;
        const int pages = (b.seq_lens[r] + page_size - 1) / page_size;
        if (pages > b.pages_per_row) return false;
        const int32_t* table = b.page_table + size_t(r) * b.pages_per_row;
        for (int p = 0; p < pages; ++p)
            if (table[p] < 0 || table[p] >= m.num_pages) return false;
        for (int i = 0; i < n; ++i) {
            const int position = b.seq_lens[r] - n + i, t = begin + i;
            if (b.positions[t] != position || b.input_ids[t] < 0 || b.input_ids[t] >= m.config.vocab_size) return false;
            if (b.slot_mapping[t] != table[position / page_size] * page_size + position % page_size) return false;
        }
    }
    for (int i = 0; i < b.num_logits; ++i)
        if (b.logits_index[i] < 0 || b.logits_index[i] >= b.tokens) return false;
    return true;
}

// `count` tokens of a row from `token` on, with all that they see, by one task; results from row `out` on.
AttentionTask whole_task(const cg_batch& b, int row, int kv_head, int token, int count, int out) {
    const int seen = b.positions[token] + count;
    return {row, kv_head, token, count, 0, (seen + KV_BLOCK - 1) / KV_BLOCK, out, -1, 0, int64_t(seen) * count};
}

void plan(cg_model& m, const cg_batch& b) {
    const cg_model_config& c = m.config;
    const int group = c.num_heads / c.num_kv_heads, threads = cg_ctx_threads(m.ctx);
    m.tasks.clear();
    m.split = false;
    int64_t blocks = 0;
    bool single = true;
    for (int r = 0; r < b.rows; ++r) {
        single = single && b.cu_seqlens[r + 1] - b.cu_seqlens[r] == 1;
        blocks += (b.seq_lens[r] + KV_BLOCK - 1) / KV_BLOCK;
    }
    // Whole (row, head) tasks leave threads idle where they are fewer than a few per thread.
    const bool wants_split = single && threads > 1 && b.rows * c.num_kv_heads % threads != 0 && b.rows * c.num_kv_heads < 4 * threads;
    const int64_t share = std::max<int64_t>(SPLIT_MIN_BLOCKS, (blocks * c.num_kv_heads + 2 * threads - 1) / (2 * threads));
    const int tile_tokens = std::max(1, TILE_ROWS / group);
    int32_t partials = 0;
    for (int r = 0; r < b.rows; ++r) {
        const int begin = b.cu_seqlens[r], n = b.cu_seqlens[r + 1] - begin;
        for (int h = 0; h < c.num_kv_heads; ++h) {
            const int row_blocks = (b.seq_lens[r] + KV_BLOCK - 1) / KV_BLOCK;
            if (wants_split && row_blocks > share) {
                const int parts = int((row_blocks + share - 1) / share);
                for (int p = 0; p < parts; ++p) {
                    const int from = row_blocks * p / parts, to = row_blocks * (p + 1) / parts;
                    m.tasks.push_back({r, h, begin, 1, from, to, begin, partials + from, p == 0 ? row_blocks : 0, to - from});
                }
                partials += row_blocks;
                m.split = true;
                continue;
            }
            for (int t = 0; t < n; t += tile_tokens) {
                m.tasks.push_back(whole_task(b, r, h, begin + t, std::min(tile_tokens, n - t), begin + t));
            }
        }
    }
    m.fused = single && !m.split;
    std::stable_sort(m.tasks.begin(), m.tasks.end(), [](const AttentionTask& x, const AttentionTask& y) { return x.cost > y.cost; });
    m.partials.reserve(size_t(std::max(partials, 1)) * group * (m.layout.padded_dim + LANES) * sizeof(float));
}

// Attention of the rows whose logits are wanted: the last layer's, where it is trimmed.
void plan_last(cg_model& m, const cg_batch& b) {
    const cg_model_config& c = m.config;
    const int tile_tokens = std::max(1, TILE_ROWS / (c.num_heads / c.num_kv_heads));
    m.last_tasks.clear();
    for (int i = 0, count; i < b.num_logits; i += count) {
        const int token = b.logits_index[i];
        const int row = int(std::upper_bound(b.cu_seqlens, b.cu_seqlens + b.rows, token) - b.cu_seqlens) - 1;
        count = 1;
        while (i + count < b.num_logits && count < tile_tokens && b.logits_index[i + count] == token + count &&
               token + count < b.cu_seqlens[row + 1])
            ++count;
        for (int h = 0; h < c.num_kv_heads; ++h) m.last_tasks.push_back(whole_task(b, row, h, token, count, i));
    }
}

bool reserve(cg_model& m, const cg_batch& b) {
    const cg_model_config& c = m.config;
    const size_t n = b.tokens, l = std::max(b.num_logits, 1);
    const int width = c.num_heads * c.head_dim, widest = std::max({c.hidden_size, width});
    size_t rows = 0, wide = 0;
    for (int kind : {CG_ROWS_F32, CG_ROWS_BF16, CG_ROWS_Q8}) {
        rows = std::max(rows, cg_rows_bytes(kind, int(std::max(n, l)), widest));
        wide = std::max(wide, cg_rows_bytes(kind, int(n), c.intermediate_size));
    }
    return m.x.reserve(n * c.hidden_size * 4) && m.qkv.reserve(n * (width + 2 * c.num_kv_heads * c.head_dim) * 4) &&
           m.attention.reserve(n * width * 4) && m.rows.reserve(rows) && m.wide_rows.reserve(wide) &&
           m.rotary.reserve(n * c.rotary_dim * 4) && m.logits.reserve(l * c.vocab_size * 4) &&
           m.gathered.reserve(l * c.hidden_size * 4) && m.best.reserve(l * cg_ctx_threads(m.ctx) * sizeof(Best));
}

void release_kv(cg_model& m) {
    if (m.pool) munmap(m.pool, m.pool_bytes);
    m.pool = nullptr;
    m.num_pages = 0;
}

std::vector<float> copy_floats(const float* x, int n) { return x ? std::vector<float>(x, x + n) : std::vector<float>(); }

}  // namespace

extern "C" {

cg_model* cg_model_create(cg_ctx* ctx, const cg_model_config* config, const float* inv_freq) {
    const cg_model_config& c = *config;
    if (c.num_layers < 1 || c.num_kv_heads < 1 || c.num_heads % c.num_kv_heads || c.head_dim < 2 || c.head_dim % 2 ||
        c.head_dim > MAX_HEAD_DIM || c.rotary_dim < 2 || c.rotary_dim > c.head_dim || c.rotary_dim % 2 ||
        c.num_heads / c.num_kv_heads > TILE_ROWS)
        return nullptr;
    cg_model* m = new (std::nothrow) cg_model();
    if (!m) return nullptr;
    m->ctx = ctx;
    m->ops = block_ops(cg_ctx_isa(ctx));
    m->config = c;
    m->geometry = {c.num_heads, c.num_kv_heads, c.head_dim, c.score_scale};
    m->inv_freq = copy_floats(inv_freq, c.rotary_dim / 2);
    m->layers.resize(c.num_layers);
    return m;
}

void cg_model_destroy(cg_model* m) {
    if (!m) return;
    release_kv(*m);
    delete m;
}

int cg_model_set_layer(cg_model* m, int layer, const float* attn_norm, const float* ffn_norm, const float* q_norm,
                       const float* k_norm, const cg_linear* const* linears) {
    const cg_model_config& c = m->config;
    if (layer < 0 || layer >= c.num_layers) return CG_EINVAL;
    const int width = c.num_heads * c.head_dim;
    const cg_linear *qkv = linears[0], *out = linears[1], *gate_up = linears[2], *down = linears[3];
    if (cg_linear_k(qkv) != c.hidden_size || cg_linear_n(qkv) != width + 2 * c.num_kv_heads * c.head_dim ||
        cg_linear_k(out) != width || cg_linear_n(out) != c.hidden_size || cg_linear_k(gate_up) != c.hidden_size ||
        cg_linear_n(gate_up) != c.intermediate_size || !cg_linear_is_gate_up(gate_up) ||
        cg_linear_k(down) != c.intermediate_size || cg_linear_n(down) != c.hidden_size)
        return CG_EINVAL;
    m->layers[layer] = {copy_floats(attn_norm, c.hidden_size), copy_floats(ffn_norm, c.hidden_size),
                        copy_floats(q_norm, c.head_dim), copy_floats(k_norm, c.head_dim), qkv, out, gate_up, down, {}};
    return CG_OK;
}

int cg_model_set_key_offset(cg_model* m, int layer, const float* offset) {
    if (layer < 0 || layer >= m->config.num_layers) return CG_EINVAL;
    m->layers[layer].key_offset = copy_floats(offset, m->config.num_kv_heads * m->config.head_dim);
    return CG_OK;
}

int cg_model_set_embedding(cg_model* m, int fmt, const void* raw, const float* final_norm, const cg_linear* head) {
    if (cg_linear_k(head) != m->config.hidden_size || cg_linear_n(head) != m->config.vocab_size ||
        cg_row_bytes(fmt, m->config.hidden_size) == 0)
        return CG_EINVAL;
    m->embedding_type = fmt;
    m->embedding = raw;
    m->final_norm = copy_floats(final_norm, m->config.hidden_size);
    m->head = head;
    return CG_OK;
}

int cg_model_set_screen(cg_model* m, const cg_linear* screen) {
    if (!m->head || cg_linear_k(screen) != m->config.hidden_size || cg_linear_n(screen) != m->config.vocab_size ||
        cg_linear_rows_kind(screen) != CG_ROWS_Q8 || cg_linear_rows_kind(m->head) != CG_ROWS_Q8 || cg_linear_bias(m->head) ||
        !cg_linear_bias(screen))
        return CG_EINVAL;
    m->screen = screen;
    return CG_OK;
}

size_t cg_kv_page_bytes(const cg_model_config* c, int page_size, int type) {
    return make_kv_layout(c->num_layers, c->num_kv_heads, c->head_dim, page_size, type).page_bytes;
}

int cg_model_set_kv(cg_model* m, int num_pages, int page_size, int type) {
    if (num_pages < 1 || page_size < 1 || type < KV_FLOAT32 || type > KV_INT8) return CG_EINVAL;
    if (int64_t(num_pages) * page_size > INT32_MAX) return CG_EINVAL;
    release_kv(*m);
    m->layout = make_kv_layout(m->config.num_layers, m->config.num_kv_heads, m->config.head_dim, page_size, type);
    const size_t bytes = m->layout.page_bytes * size_t(num_pages);
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return CG_ENOMEM;
    madvise(p, bytes, MADV_HUGEPAGE);
    m->pool = static_cast<uint8_t*>(p);
    m->pool_bytes = bytes;
    m->num_pages = num_pages;
    return CG_OK;
}

int cg_model_copy_page(cg_model* m, int source, int target) {
    if (source < 0 || source >= m->num_pages || target < 0 || target >= m->num_pages) return CG_EINVAL;
    const size_t bytes = m->layout.page_bytes;
    if (source != target) std::memcpy(m->pool + target * bytes, m->pool + source * bytes, bytes);
    return CG_OK;
}

int cg_model_forward(cg_model* m, const cg_batch* batch, cg_output* output) {
    if (!m->head || !m->pool || !valid(*m, *batch)) return CG_EINVAL;
    if (!reserve(*m, *batch)) return CG_ENOMEM;
    plan(*m, *batch);
    m->trimmed = batch->num_logits < batch->tokens && !output->hidden && !m->fused && !m->split;
    if (m->trimmed) plan_last(*m, *batch);
    output->logits = m->logits.as<float>();
    m->screened = m->screen && output->argmax && output->argmax_only && batch->num_logits <= screen_rows(cg_ctx_isa(m->ctx));
    if (m->screened && m->screen_pause) {
        --m->screen_pause;
        m->screened = false;
    }
    Step step{m, batch, output, m->layout.padded_dim + LANES};
    cg_region(m->ctx, walk_step, &step);
    m->steps++;
    return CG_OK;
}

int cg_model_head(cg_model* m, const float* hidden, int n, float* logits) {
    const int kind = cg_linear_rows_kind(m->head), k = m->config.hidden_size;
    if (!m->head || n < 0) return CG_EINVAL;
    if (!m->rows.reserve(cg_rows_bytes(kind, n, k))) return CG_ENOMEM;
    cg_rows rows;
    cg_rows_init(&rows, kind, n, k, m->rows.data);
    cg_rows_quantize(m->ctx, &rows, hidden, k, n);
    cg_linear_forward(m->ctx, m->head, &rows, logits, m->config.vocab_size, n, 0);
    return CG_OK;
}

int cg_model_attention(cg_model* m, int layer, const cg_batch* batch, const float* qkv, float* out) {
    const cg_model_config& c = m->config;
    if (layer < 0 || layer >= c.num_layers || !m->pool || !valid(*m, *batch)) return CG_EINVAL;
    if (!reserve(*m, *batch)) return CG_ENOMEM;
    plan(*m, *batch);
    const size_t width = size_t(c.num_heads) * c.head_dim, kv = size_t(c.num_kv_heads) * c.head_dim;
    std::memcpy(m->qkv.data, qkv, size_t(batch->tokens) * (width + 2 * kv) * sizeof(float));
    AttentionOnly a{{m, batch, nullptr, m->layout.padded_dim + LANES}, layer};
    cg_region(m->ctx, walk_attention, &a);
    std::memcpy(out, m->attention.data, size_t(batch->tokens) * width * sizeof(float));
    return CG_OK;
}

void cg_model_set_profile(cg_model* m, int mode) { m->profile = mode; }

int64_t cg_model_profile(cg_model* m, cg_profile* profile) {
    const int64_t steps = m->steps;
    *profile = m->counters;
    m->counters = cg_profile{};
    m->steps = 0;
    return steps;
}

void cg_rms_norm(const cg_ctx* ctx, float* out, const float* x, const float* weight, int rows, int n, float eps) {
    const BlockOps* ops = block_ops(cg_ctx_isa(ctx));
    for (int i = 0; i < rows; ++i) ops->rms_norm(out + size_t(i) * n, x + size_t(i) * n, weight, n, eps);
}

void cg_rotate(const cg_ctx* ctx, float* heads, const float* norm_weight, float eps, const float* cos, const float* sin, int rows,
               int head_dim, int rotary_dim) {
    const BlockOps* ops = block_ops(cg_ctx_isa(ctx));
    const int half = rotary_dim / 2;
    for (int i = 0; i < rows; ++i)
        ops->rotate(heads + size_t(i) * head_dim, norm_weight, eps, cos + size_t(i) * half, sin + size_t(i) * half, head_dim, rotary_dim);
}

int cg_argmax(const cg_ctx* ctx, const float* x, const int32_t* mask, int n) {
    return block_ops(cg_ctx_isa(ctx))->argmax(x, reinterpret_cast<const uint32_t*>(mask), n);
}

}  // extern "C"
