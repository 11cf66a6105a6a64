// The pool behind cg_ctx: persistent workers that spin briefly between regions and then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "callgate_cpu.h"

namespace callgate {

struct Kernels;

struct Scratch {
    void* memory = nullptr;
    size_t bytes = 0;
};

constexpr int SCRATCH_SLOTS = 4;

struct alignas(64) Line {
    std::atomic<uint32_t> value{0};
};

// Work of one thread in the latest shared calls: call number (32 bits), first and end of what is left (16 bits each).
constexpr uint32_t SHARED_CALLS = 4;

struct alignas(64) Ranges {
    std::atomic<uint64_t> left[SHARED_CALLS];
    uint32_t calls = 0;  // made by this thread

    Ranges() {
        for (auto& l : left) l.store(0, std::memory_order_relaxed);
    }
    Ranges(const Ranges&) : Ranges() {}
};

constexpr int MAX_SHARED_UNITS = 0xffff;

// Takes up to `grain` of the units [0, units) that `owner` has in call `call`: its own from the front, another's from the
// back. Returns how many; first: the first of them.
int take_units(cg_ctx* ctx, uint32_t call, int owner, int units, int grain, bool own, int* first);

}  // namespace callgate

struct cg_ctx {
    int threads = 1;
    int isa = 0;
    const callgate::Kernels* kernels = nullptr;

    cg_region_fn fn = nullptr;
    void* arg = nullptr;
    callgate::Line epoch;      // one more per region
    callgate::Line running;    // workers still inside the region
    callgate::Line sleepers;   // workers parked on `wake`
    callgate::Line arrived;    // barrier
    callgate::Line phase;      // barrier
    callgate::Line counters[CG_COUNTERS];
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::condition_variable wake;
    std::vector<int> cores;    // the core of each tid, empty where unknown
    std::vector<std::thread> workers;
    std::vector<callgate::Scratch> scratch;
    std::vector<callgate::Ranges> ranges;
};
