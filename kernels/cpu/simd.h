// Sixteen float lanes on every machine: the vocabulary that all kernels are written in.
//
// Owns: the types F (16 float32), I (16 int32) and M (16 truth values), and what can be done with them at each level.
// Must not know: models, tokens, threads.
//
// Every operation rounds as IEEE 754 says, a multiply-add always rounds once, and sums over the lanes always go in the
// same order. So a kernel gives the same bits at every level, and the portable level is the oracle of the others.
//
// This file is compiled once for each level, with LEVEL set to the name of the level. Nothing in it, nor in any file
// that includes it, may be a function that the linker merges with the same function of another level: everything
// lives in a namespace of the level's name, and nothing here uses the standard library's templates.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace trioserve {
namespace LEVEL {

constexpr int LANES = 16;

#if defined(__AVX512F__)

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct M {
  __mmask16 v;
};

INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
INLINE F all(float x) { return {_mm512_set1_ps(x)}; }
INLINE F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
INLINE F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
INLINE F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
INLINE F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c
INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// the larger; b where either is NaN
INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
INLINE M less(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
// where m: a, else b
INLINE F select(M m, F a, F b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
// 16 bits, lane 0 the lowest
INLINE uint32_t bits(M m) { return m.v; }
// the nearest integer, halves to the even one; a must be within the range of int32
INLINE I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
INLINE F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
INLINE I load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
INLINE void store(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
INLINE I all(int32_t x) { return {_mm512_set1_epi32(x)}; }
INLINE I add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
// 2 ** a, for -126 <= a <= 127
INLINE F power_of_2(I a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(127)), 23))};
}
INLINE F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
INLINE void store_half(uint16_t* p, F a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE I load_bytes(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
// the low bytes of the lanes
INLINE void store_bytes(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }

#elif defined(__AVX2__)

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct M {
  __m256 a, b;
};

INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
INLINE F all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INLINE F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INLINE F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INLINE F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INLINE F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INLINE F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INLINE F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INLINE F abs(F x) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
INLINE M less(F x, F y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
INLINE F select(M m, F x, F y) { return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)}; }
INLINE uint32_t bits(M m) { return (uint32_t)_mm256_movemask_ps(m.a) | (uint32_t)_mm256_movemask_ps(m.b) << 8; }
INLINE I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
INLINE F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE I load(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
INLINE void store(int32_t* p, I x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)(p + 8), x.b);
}
INLINE I all(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE I add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
INLINE __m256 power_of_2(__m256i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(127)), 23));
}
INLINE F power_of_2(I x) { return {power_of_2(x.a), power_of_2(x.b)}; }
INLINE F load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
INLINE void store_half(uint16_t* p, F x) {
  constexpr int how = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, how));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, how));
}
INLINE I load_bytes(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
INLINE void store_bytes(int8_t* p, I x) {
  alignas(32) int32_t words[LANES];
  store(words, x);
  for (int i = 0; i < LANES; i++) p[i] = (int8_t)words[i];
}

#else  // any machine; on ARM the compiler turns the loops into NEON instructions

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
INLINE F fma(F a, F b, F c) {
  EACH_LANE c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
INLINE F max(F a, F b) {
  EACH_LANE a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
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
INLINE F select(M m, F a, F b) {
  EACH_LANE b.v[i] = m.v[i] ? a.v[i] : b.v[i];
  return b;
}
INLINE uint32_t bits(M m) {
  uint32_t r = 0;
  EACH_LANE r |= (uint32_t)m.v[i] << i;
  return r;
}
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
INLINE void store_bytes(int8_t* p, I a) { EACH_LANE p[i] = (int8_t)a.v[i]; }

#undef EACH_LANE
#endif

#if defined(__AVX2__)

#if defined(__AVX512F__)
INLINE __m256 low_half(F a) { return _mm512_castps512_ps256(a.v); }
INLINE __m256 high_half(F a) { return _mm512_extractf32x8_ps(a.v, 1); }
INLINE __m256i low_half(I a) { return _mm512_castsi512_si256(a.v); }
INLINE __m256i high_half(I a) { return _mm512_extracti64x4_epi64(a.v, 1); }
#else
INLINE __m256 low_half(F a) { return a.a; }
INLINE __m256 high_half(F a) { return a.b; }
INLINE __m256i low_half(I a) { return a.a; }
INLINE __m256i high_half(I a) { return a.b; }
#endif

// The sum of the lanes: halves are added to each other until one is left.
INLINE float sum(F a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE float largest(F a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

INLINE int32_t sum(I a) {
  const __m256i eight = _mm256_add_epi32(low_half(a), high_half(a));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

#else

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

#endif

// e ** a, within 2 units in the last place for a in [-87, 88]; 0 below -87, and what is above 88 counts as
// 88. A NaN stays one.
//
// e ** a = 2 ** n * e ** r with n the integer nearest to a / ln 2; |r| <= ln 2 / 2, where the Taylor series to the
// seventh power is exact to float32. r is formed with ln 2 in two parts (Cody and Waite).
INLINE F exp(F a) {
  const M tiny = less(a, all(-87.0f));
  const F x = max(all(-87.0f), min(all(88.0f), a));
  const I n = to_int(mul(x, all(1.44269504f)));
  const F whole = to_float(n);
  const F r = fma(whole, all(2.12194440e-4f), fma(whole, all(-0.693359375f), x));
  F p = all(1.98412698e-4f);
  p = fma(p, r, all(1.38888889e-3f));
  p = fma(p, r, all(8.33333333e-3f));
  p = fma(p, r, all(4.16666667e-2f));
  p = fma(p, r, all(0.166666667f));
  p = fma(p, r, all(0.5f));
  p = fma(p, r, all(1.0f));
  p = fma(p, r, all(1.0f));
  return select(tiny, all(0.0f), mul(p, power_of_2(n)));
}

}  // namespace LEVEL
}  // namespace trioserve
