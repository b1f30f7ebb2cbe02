// How a thread rounds.
//
// Owns: the processor's mode of floating point. Must not know: what is computed.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trioserve {

// While one exists, this thread computes as IEEE 754 says, whatever the program has set: tiny numbers are not nothing.
class StrictFloats {
 public:
#if defined(__x86_64__)
  StrictFloats() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~StrictFloats() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  StrictFloats() {}
#endif
};

}  // namespace trioserve
