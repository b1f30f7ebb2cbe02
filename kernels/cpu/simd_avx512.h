// Sixteen lanes in a register of AVX-512.
//
// Owns: F, I and M, and their functions. Must not know: what is computed with them. A part of simd.h, for it alone to
// include; simd_portable.h says what each function does.
#pragma once

namespace trioserve {
namespace LEVEL {

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
INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
INLINE M less(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
INLINE F select(M m, F a, F b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
INLINE uint32_t bits(M m) { return m.v; }
INLINE I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
INLINE F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
INLINE I load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
INLINE void store(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
INLINE I all(int32_t x) { return {_mm512_set1_epi32(x)}; }
INLINE I add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
INLINE F power_of_2(I a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(127)), 23))};
}
INLINE F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
INLINE void store_half(uint16_t* p, F a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE I load_bytes(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
INLINE void store_bytes(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }

INLINE __m256 low_half(F a) { return _mm512_castps512_ps256(a.v); }
INLINE __m256 high_half(F a) { return _mm512_extractf32x8_ps(a.v, 1); }
INLINE __m256i low_half(I a) { return _mm512_castsi512_si256(a.v); }
INLINE __m256i high_half(I a) { return _mm512_extracti64x4_epi64(a.v, 1); }

}  // namespace LEVEL
}  // namespace trioserve

#include "simd_avx.h"
