// Fork-join on persistent threads.
//
// Between two regions of one step the gap is microseconds, so workers spin for SPIN_NS first; between steps they
// park on a condition variable, so an idle engine uses no CPU. Waiting threads fall back to sched_yield: where
// something else holds the partner's core, spinning would only keep it from finishing.
#include "threadpool.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include "linear.h"

namespace {

constexpr int64_t SPIN_NS = 100000;
constexpr int PAUSES_BEFORE_YIELD = 4000;

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

template <class Done>
void spin_until(Done done) {
    for (int i = 0; !done(); ++i) {
        if (i < PAUSES_BEFORE_YIELD)
            cpu_pause();
        else
            std::this_thread::yield();
    }
}

std::vector<int> usable_cores() {
    std::vector<int> cores;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int c = 0; c < CPU_SETSIZE; ++c)
            if (CPU_ISSET(c, &set)) cores.push_back(c);
#endif
    return cores;
}

#if defined(__linux__)
void bind_to(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}
#endif

// A caller that the kernel happens to have put on a worker's core would share it for milliseconds while its own
// stays empty: step over to tid 0's core, then take the old freedom back.
void leave_worker_cores(const cg_ctx* ctx) {
#if defined(__linux__)
    if (ctx->cores.empty()) return;
    const int here = sched_getcpu();
    for (size_t t = 1; t < ctx->cores.size(); ++t) {
        if (ctx->cores[t] != here) continue;
        cpu_set_t old;
        if (sched_getaffinity(0, sizeof old, &old) != 0 || !CPU_ISSET(ctx->cores[0], &old)) return;
        bind_to(ctx->cores[0]);
        sched_setaffinity(0, sizeof old, &old);
        return;
    }
#else
    (void)ctx;
#endif
}

bool wait_for_region(cg_ctx* ctx, uint32_t seen) {
    auto ready = [&] {
        return ctx->epoch.value.load(std::memory_order_acquire) != seen || ctx->stop.load(std::memory_order_acquire);
    };
    const int64_t limit = now_ns() + SPIN_NS;
    for (int i = 1; !ready(); ++i) {
        cpu_pause();
        if (i % 64 == 0 && now_ns() > limit) {
            std::unique_lock<std::mutex> lock(ctx->mutex);
            ctx->sleepers.value.fetch_add(1);
            ctx->wake.wait(lock, [&] { return ctx->epoch.value.load() != seen || ctx->stop.load(); });
            ctx->sleepers.value.fetch_sub(1);
            break;
        }
    }
    return !ctx->stop.load(std::memory_order_acquire);
}

void worker_main(cg_ctx* ctx, int tid) {
#if defined(__linux__)
    if (!ctx->cores.empty()) bind_to(ctx->cores[size_t(tid)]);
#endif
    uint32_t seen = 0;
    while (wait_for_region(ctx, seen)) {
        ++seen;
        ctx->fn(ctx->arg, tid, ctx->threads);
        ctx->running.value.fetch_sub(1, std::memory_order_release);
    }
}

void stop_workers(cg_ctx* ctx) {
    {
        std::lock_guard<std::mutex> lock(ctx->mutex);
        ctx->stop.store(true);
    }
    ctx->wake.notify_all();
    for (auto& w : ctx->workers) w.join();
}

struct Tasks {
    cg_ctx* ctx;
    cg_task_fn fn;
    void* arg;
    int count;
};

void run_tasks(void* arg, int tid, int) {
    auto* t = static_cast<Tasks*>(arg);
    for (int i; (i = cg_counter_next(t->ctx, 0)) < t->count;) t->fn(t->arg, i, tid);
}

}  // namespace

// A slot is set up by whoever comes first, the owner or a thief. Whoever reaches call c has left call c - SHARED_CALLS,
// and leaves only when nothing of it is left to take, so overwriting it loses nothing; a thread that comes later still
// finds a newer call there and so nothing to do.
int callgate::take_units(cg_ctx* ctx, uint32_t call, int owner, int units, int grain, bool own, int* first) {
    std::atomic<uint64_t>& slot = ctx->ranges[size_t(owner)].left[call % SHARED_CALLS];
    uint64_t seen = slot.load(std::memory_order_relaxed);
    for (;;) {
        const int32_t age = int32_t(call - uint32_t(seen >> 32));
        if (age < 0) return 0;
        int begin = age ? 0 : int(seen >> 16 & 0xffff), end = age ? units : int(seen & 0xffff);
        const int count = end - begin < grain ? end - begin : grain;
        if (count <= 0 && age == 0) return 0;
        *first = own ? begin : end - count;
        (own ? begin : end) += own ? count : -count;
        const uint64_t next = uint64_t(call) << 32 | uint64_t(begin) << 16 | uint64_t(end);
        if (slot.compare_exchange_weak(seen, next, std::memory_order_relaxed)) return count;
    }
}

extern "C" {

cg_ctx* cg_ctx_create(int threads, int isa) {
    if (isa == CG_ISA_AUTO) isa = cg_isa_best();
    const callgate::Kernels* kernels = callgate::kernels_for(isa);
    if (threads < 0 || isa > cg_isa_best() || !kernels) return nullptr;
    auto* ctx = new (std::nothrow) cg_ctx;
    if (!ctx) return nullptr;
    ctx->isa = isa;
    ctx->kernels = kernels;
    try {
        std::vector<int> cores = usable_cores();
        if (threads == 0) threads = cores.empty() ? int(std::thread::hardware_concurrency()) : int(cores.size());
        ctx->threads = threads < 1 ? 1 : threads;
        if (cores.size() >= size_t(ctx->threads)) ctx->cores.assign(cores.begin(), cores.begin() + ctx->threads);
        ctx->ranges.resize(size_t(ctx->threads));
        ctx->scratch.resize(size_t(ctx->threads) * callgate::SCRATCH_SLOTS);
        for (int t = 1; t < ctx->threads; ++t) ctx->workers.emplace_back(worker_main, ctx, t);
    } catch (...) {
        stop_workers(ctx);
        delete ctx;
        return nullptr;
    }
    return ctx;
}

void cg_ctx_destroy(cg_ctx* ctx) {
    if (!ctx) return;
    stop_workers(ctx);
    for (auto& s : ctx->scratch) std::free(s.memory);
    delete ctx;
}

int cg_ctx_threads(const cg_ctx* ctx) { return ctx->threads; }
int cg_ctx_isa(const cg_ctx* ctx) { return ctx->isa; }

void cg_region(cg_ctx* ctx, cg_region_fn fn, void* arg) {
    for (auto& c : ctx->counters) c.value.store(0, std::memory_order_relaxed);
    if (ctx->threads > 1) {
        ctx->fn = fn;
        ctx->arg = arg;
        ctx->running.value.store(uint32_t(ctx->threads - 1), std::memory_order_relaxed);
        ctx->epoch.value.fetch_add(1);
        if (ctx->sleepers.value.load()) {
            leave_worker_cores(ctx);
            { std::lock_guard<std::mutex> lock(ctx->mutex); }
            ctx->wake.notify_all();
        }
    }
    fn(arg, 0, ctx->threads);
    spin_until([&] { return ctx->threads == 1 || ctx->running.value.load(std::memory_order_acquire) == 0; });
}

void cg_barrier(cg_ctx* ctx) {
    if (ctx->threads == 1) return;
    const uint32_t phase = ctx->phase.value.load(std::memory_order_acquire);
    if (ctx->arrived.value.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(ctx->threads)) {
        ctx->arrived.value.store(0, std::memory_order_relaxed);
        ctx->phase.value.store(phase + 1, std::memory_order_release);
        return;
    }
    spin_until([&] { return ctx->phase.value.load(std::memory_order_acquire) != phase; });
}

void cg_parallel_for(cg_ctx* ctx, cg_task_fn fn, void* arg, int n_tasks) {
    Tasks tasks{ctx, fn, arg, n_tasks};
    cg_region(ctx, run_tasks, &tasks);
}

int cg_counter_next(cg_ctx* ctx, int slot) {
    return int(ctx->counters[slot].value.fetch_add(1, std::memory_order_relaxed));
}

void cg_counter_reset(cg_ctx* ctx, int slot) { ctx->counters[slot].value.store(0, std::memory_order_relaxed); }

void* cg_scratch(cg_ctx* ctx, int tid, int slot, size_t bytes) {
    if (tid < 0 || tid >= ctx->threads || slot < 0 || slot >= callgate::SCRATCH_SLOTS) return nullptr;
    callgate::Scratch& s = ctx->scratch[size_t(tid) * callgate::SCRATCH_SLOTS + size_t(slot)];
    if (s.bytes < bytes) {
        std::free(s.memory);
        s.bytes = (bytes + 4095) / 4096 * 4096;
        s.memory = std::aligned_alloc(4096, s.bytes);
        if (!s.memory) s.bytes = 0;
    }
    return s.memory;
}

}  // extern "C"
