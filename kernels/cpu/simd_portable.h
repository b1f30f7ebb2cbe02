// Sixteen lanes in arrays, for any machine: the oracle of the other levels.
//
// Owns: F, I and M, and their functions. Must not know: what is computed with them. A part of simd.h, for it alone to
// include.
#pragma once

namespace trioserve {
namespace LEVEL {

struct F {
  float v[LANES];
};
struct I {
  int32_t v[LANES];
};
struct M {
  uint8_t v[LANES];
};

#define EACH_LANE for (int i = 0; i < LANES; i++)

INLINE F load(const float* p) {
  F r;
  memcpy(r.v, p, sizeof r.v);
  return r;
}
INLINE void store(float* p, F a) { memcpy(p, a.v, sizeof a.v); }
INLINE F all(float x) {
  F r;
  EACH_LANE r.v[i] = x;
  return r;
}
INLINE F add(F a, F b) {
  EACH_LANE a.v[i] += b.v[i];
  return a;
}
INLINE F sub(F a, F b) {
  EACH_LANE a.v[i] -= b.v[i];
  return a;
}
INLINE F mul(F a, F b) {
  EACH_LANE a.v[i] *= b.v[i];
  return a;
}
INLINE F div(F a, F b) {
  EACH_LANE a.v[i] /= b.v[i];
  return a;
}
// a * b + c, rounded once
INLINE F fma(F a, F b, F c) {
  EACH_LANE c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
// the larger; b where either is NaN
INLINE F max(F a, F b) {
  EACH_LANE a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
// the smaller; b where either is NaN
INLINE F min(F a, F b) {
  EACH_LANE a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
INLINE F abs(F a) {
  EACH_LANE a.v[i] = __builtin_fabsf(a.v[i]);
  return a;
}
INLINE M less(F a, F b) {
  M r;
  EACH_LANE r.v[i] = a.v[i] < b.v[i];
  return r;
}
// where m: a, else b
INLINE F select(M m, F a, F b) {
  EACH_LANE b.v[i] = m.v[i] ? a.v[i] : b.v[i];
  return b;
}
// 16 bits, lane 0 the lowest
INLINE uint32_t bits(M m) {
  uint32_t r = 0;
  EACH_LANE r |= (uint32_t)m.v[i] << i;
  return r;
}
// the nearest integer, halves to the even one; a must be within the range of int32
INLINE I to_int(F a) {
  I r;
  EACH_LANE r.v[i] = (int32_t)__builtin_rintf(a.v[i]);
  return r;
}
INLINE F to_float(I a) {
  F r;
  EACH_LANE r.v[i] = (float)a.v[i];
  return r;
}
INLINE I load(const int32_t* p) {
  I r;
  memcpy(r.v, p, sizeof r.v);
  return r;
}
INLINE void store(int32_t* p, I a) { memcpy(p, a.v, sizeof a.v); }
INLINE I all(int32_t x) {
  I r;
  EACH_LANE r.v[i] = x;
  return r;
}
// wraps around, as the instructions of the other levels do: what came of a NaN may be any number
INLINE I add(I a, I b) {
  EACH_LANE a.v[i] = (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]);
  return a;
}
// 2 ** a, for -126 <= a <= 127
INLINE F power_of_2(I a) {
  F r;
  EACH_LANE {
    const uint32_t word = (uint32_t)(a.v[i] + 127) << 23;
    memcpy(&r.v[i], &word, sizeof word);
  }
  return r;
}
INLINE F load_half(const uint16_t* p) {
  F r;
  EACH_LANE r.v[i] = half_to_float(p[i]);
  return r;
}
INLINE void store_half(uint16_t* p, F a) { EACH_LANE p[i] = float_to_half(a.v[i]); }
INLINE I load_bytes(const int8_t* p) {
  I r;
  EACH_LANE r.v[i] = p[i];
  return r;
}
// the low bytes of the lanes
INLINE void store_bytes(int8_t* p, I a) { EACH_LANE p[i] = (int8_t)a.v[i]; }

// The sum of the lanes: halves are added to each other until one is left.
INLINE float sum(F a) {
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
  return a.v[0];
}

INLINE float largest(F a) {
  float best = a.v[0];
  for (int i = 1; i < LANES; i++) best = a.v[i] > best ? a.v[i] : best;
  return best;
}

INLINE int32_t sum(I a) {
  uint32_t total = 0;
  for (int i = 0; i < LANES; i++) total += (uint32_t)a.v[i];
  return (int32_t)total;
}

#undef EACH_LANE

}  // namespace LEVEL
}  // namespace trioserve
