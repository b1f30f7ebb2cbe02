#include "memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace trioserve {

namespace {
constexpr size_t HUGE_PAGE = size_t{2} << 20;
// Buffers that all begin at a multiple of 4096 take the same few sets of the first-level cache from each other.
constexpr size_t STAGGER = 5 * 128;
}  // namespace

Buffer::Buffer(size_t bytes) {
  static std::atomic<unsigned> made{0};
  if (bytes == 0) return;
  const bool large = bytes >= HUGE_PAGE;
  const size_t offset = STAGGER * (made.fetch_add(1) % 6 + 1);
  const size_t room = bytes + offset + (large ? HUGE_PAGE : 0);
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  mapped_ = mapped;
  mapped_bytes_ = room;
  uintptr_t start = (uintptr_t)mapped;
  if (large) {
    start = (start + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
#if defined(MADV_HUGEPAGE)
    madvise((void*)start, bytes + offset, MADV_HUGEPAGE);
#endif
  }
  data_ = (void*)(start + offset);
  bytes_ = bytes;
}

Buffer::~Buffer() {
  if (mapped_) munmap(mapped_, mapped_bytes_);
}

uint8_t* Arena::take(size_t bytes) {
  // memory that is never touched costs nothing
  constexpr size_t BLOCK = size_t{256} << 20;
  bytes = (bytes + 63) / 64 * 64;
  if (blocks_.empty() || used_ + bytes > blocks_.back().bytes()) {
    blocks_.emplace_back(bytes > BLOCK ? bytes : BLOCK);
    used_ = 0;
  }
  uint8_t* start = blocks_.back().as<uint8_t>() + used_;
  used_ += bytes;
  return start;
}

}  // namespace trioserve
