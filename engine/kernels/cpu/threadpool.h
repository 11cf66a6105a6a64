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
};
