// How a thread rounds.
//
// Owns: the processor's mode of floating point. Must not know: what is computed.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trioserve {

// While one exists, this thread computes as IEEE 754 says, whatever the program has set: tiny numbers are not nothing.
class StrictFloats {
#if defined(__x86_64__)
 public:
  StrictFloats() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~StrictFloats() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
 public:
  StrictFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    set(0);
  }
  ~StrictFloats() { set(before_); }

 private:
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }

  uint64_t before_;
#else
 public:
  StrictFloats() {}
#endif
};

}  // namespace trioserve
