// Memory for weights and activations.
#pragma once

#include <cstddef>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace callgate {

// For std::free; nullptr where there is none. In large pages where it fills half of one: weights are read at the speed
// of memory, and activations walked down columns of rows, where with small pages every row is another one.
inline void* allocate(size_t bytes) {
    constexpr size_t HUGE_PAGE = size_t(2) << 20;
    const size_t alignment = bytes >= HUGE_PAGE / 2 ? HUGE_PAGE : 64;
    void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (memory && alignment == HUGE_PAGE) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

}  // namespace callgate
