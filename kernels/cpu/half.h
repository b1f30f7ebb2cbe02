// Half precision in plain C++, for any machine.
//
// Owns: the conversion of single numbers. Must not know: vectors, which are converted by instructions where there are
// any.
#pragma once

#include <cstdint>
#include <cstring>

// Functions that are compiled into several levels must not be left for the linker to merge: it would keep one copy,
// which may hold instructions that the machine has not got.
#define INLINE inline __attribute__((always_inline))

namespace trioserve {

INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7fff;
  uint32_t word;
  float value;
  if (magnitude >= 0x7c00) {  // infinity or NaN
    word = sign | 0x7f800000 | (magnitude & 0x3ff) << 13;
    memcpy(&value, &word, sizeof value);
    return value;
  }
  if (magnitude < 0x400) {  // subnormal: a multiple of 2 ** -24
    value = (float)magnitude * 0x1p-24f;
    return sign ? -value : value;
  }
  word = sign | ((magnitude << 13) + (112u << 23));
  memcpy(&value, &word, sizeof value);
  return value;
}
INLINE uint16_t float_to_half(float x) {
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  const uint32_t sign = word >> 16 & 0x8000, magnitude = word & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000) {                                   // subnormal: let the addition round it
    float a;
    memcpy(&a, &magnitude, sizeof a);
    a += 0.5f;
    uint32_t r;
    memcpy(&r, &a, sizeof r);
    return (uint16_t)(sign | (r - 0x3f000000));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}

}  // namespace trioserve
