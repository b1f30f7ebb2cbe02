// One panel of weights times one tile of activations: the product that nearly all time goes to.
//
// Owns: the inner loops, for 4-bit and 8-bit weights. Must not know: which matrix it is, what the result is for.
//
// Groups are taken in order. In a group the products are summed as integers, which is exact; then
//   result = dot * (weight scale * activation scale) + result
//   result = minimum * (activation scale * sum of activations) + result
// each rounded once. A column's result depends on nothing but its own values, whatever the tile's width.
#pragma once

#include "shapes.h"
#include "simd.h"

#if defined(LEVEL_HAS_NEON)
#include "dots_neon.h"
#elif !defined(__AVX2__)
#include "dots_portable.h"
#endif

namespace trioserve {
namespace LEVEL {

INLINE F load_halves(const uint8_t* p) {
  uint16_t halves[PANEL];
  memcpy(halves, p, sizeof halves);
  return load_half(halves);
}

#if defined(__AVX512VNNI__)

constexpr int WIDEST_TILE = 12;

// Adds the products of each lane's 4 weights with the 4 activations of one token.
INLINE __m512i dot4(__m512i sum, __m512i weights, const int8_t* activations) {
  int32_t word;
  memcpy(&word, activations, sizeof word);
  return _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(word));
}

template <int W>
static void int4_panel(const uint8_t* panel, int groups, const int8_t* values, const float* summaries, float* out) {
  const __m512i low_nibbles = _mm512_set1_epi8(0x0f);
  F result[W];
  for (int c = 0; c < W; c++) result[c] = all(0.0f);
  for (int g = 0; g < groups; g++) {
    __m512i dot[W];
    for (int c = 0; c < W; c++) dot[c] = _mm512_setzero_si512();
    for (int i = 0; i < CHUNKS / 2; i++) {
      const __m512i both = _mm512_loadu_si512(panel + 64 * i);
      const __m512i even = _mm512_and_si512(both, low_nibbles);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_nibbles);
      for (int c = 0; c < W; c++) dot[c] = dot4(dot[c], even, values + CHUNK * (2 * i * W + c));
      for (int c = 0; c < W; c++) dot[c] = dot4(dot[c], odd, values + CHUNK * ((2 * i + 1) * W + c));
    }
    const F scale = load_halves(panel + 256), minimum = load_halves(panel + 288);
    for (int c = 0; c < W; c++) {
      result[c] = fma(to_float(I{dot[c]}), mul(scale, all(summaries[c])), result[c]);
      result[c] = fma(minimum, all(summaries[W + c]), result[c]);
    }
    panel += INT4_GROUP_BYTES;
    values += GROUP * W;
    summaries += SUMMARIES * W;
  }
  for (int c = 0; c < W; c++) store(out + c * PANEL, result[c]);
}

template <int W>
static void int8_panel(const uint8_t* panel, int groups, const int8_t* values, const float* summaries, float* out) {
  // The instruction wants one operand unsigned: 128 is added to the weights, and 128 times the sum subtracted.
  const __m512i offset = _mm512_set1_epi8((char)0x80);
  F result[W];
  for (int c = 0; c < W; c++) result[c] = all(0.0f);
  for (int g = 0; g < groups; g++) {
    int32_t sums[W];
    memcpy(sums, summaries + 2 * W, sizeof sums);
    const uint8_t* bytes = panel + int8_values(g);
    __m512i dot[W];
    for (int c = 0; c < W; c++) dot[c] = _mm512_set1_epi32((int32_t)(-128u * (uint32_t)sums[c]));
    for (int i = 0; i < CHUNKS; i++) {
      const __m512i weights = _mm512_xor_si512(_mm512_loadu_si512(bytes + 64 * i), offset);
      for (int c = 0; c < W; c++) dot[c] = dot4(dot[c], weights, values + CHUNK * (i * W + c));
    }
    const F scale = load_halves(panel + int8_scales(g));
    for (int c = 0; c < W; c++) result[c] = fma(to_float(I{dot[c]}), mul(scale, all(summaries[c])), result[c]);
    values += GROUP * W;
    summaries += SUMMARIES * W;
  }
  for (int c = 0; c < W; c++) store(out + c * PANEL, result[c]);
}

#elif defined(__AVX2__)

constexpr int WIDEST_TILE = 6;

// Without this the compiler re-associates the sums and runs out of registers: half the speed.
INLINE void keep(__m256i& sum) { asm("" : "+x"(sum)); }

INLINE __m256i broadcast4(const int8_t* p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return _mm256_set1_epi32(word);
}

INLINE void add_product(const F& scale, float activation_scale, I dot, float* out) {
  store(out, fma(to_float(dot), mul(scale, all(activation_scale)), load(out)));
}

template <int W>
static void int4_panel(const uint8_t* panel, int groups, const int8_t* values, const float* summaries, float* out) {
  const __m256i low_nibbles = _mm256_set1_epi8(0x0f), ones = _mm256_set1_epi16(1);
  for (int c = 0; c < W; c++) store(out + c * PANEL, all(0.0f));
  for (int g = 0; g < groups; g++) {
    // 16 bits are enough for a group: 8 chunks x 2 products x 15 x 127 = 30480
    __m256i dot[W][2];
    for (int c = 0; c < W; c++) dot[c][0] = dot[c][1] = _mm256_setzero_si256();
    for (int i = 0; i < CHUNKS; i++) {
      const __m256i* both = (const __m256i*)(panel + 64 * (i / 2));
      __m256i a = _mm256_loadu_si256(both), b = _mm256_loadu_si256(both + 1);
      if (i % 2) a = _mm256_srli_epi16(a, 4), b = _mm256_srli_epi16(b, 4);
      a = _mm256_and_si256(a, low_nibbles), b = _mm256_and_si256(b, low_nibbles);
      for (int c = 0; c < W; c++) {
        const __m256i activation = broadcast4(values + CHUNK * (i * W + c));
        dot[c][0] = _mm256_add_epi16(dot[c][0], _mm256_maddubs_epi16(a, activation));
        keep(dot[c][0]);
        dot[c][1] = _mm256_add_epi16(dot[c][1], _mm256_maddubs_epi16(b, activation));
        keep(dot[c][1]);
      }
    }
    const F scale = load_halves(panel + 256), minimum = load_halves(panel + 288);
    for (int c = 0; c < W; c++) {
      const I sum = {_mm256_madd_epi16(dot[c][0], ones), _mm256_madd_epi16(dot[c][1], ones)};
      const F result = fma(to_float(sum), mul(scale, all(summaries[c])), load(out + c * PANEL));
      store(out + c * PANEL, fma(minimum, all(summaries[W + c]), result));
    }
    panel += INT4_GROUP_BYTES;
    values += GROUP * W;
    summaries += SUMMARIES * W;
  }
}

// 4 products of each lane. One operand must be unsigned: the weights' signs go over to the activations. With -128 as
// a weight two products are at most 2 x 128 x 127 = 32512, so 16 bits are enough for them.
INLINE __m256i signed_dot4(__m256i weights, __m256i activation, __m256i ones) {
  const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(activation, weights));
  return _mm256_madd_epi16(products, ones);
}

template <int W>
static void int8_panel(const uint8_t* panel, int groups, const int8_t* values, const float* summaries, float* out) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int c = 0; c < W; c++) store(out + c * PANEL, all(0.0f));
  for (int g = 0; g < groups; g++) {
    __m256i dot[W][2];
    for (int c = 0; c < W; c++) dot[c][0] = dot[c][1] = _mm256_setzero_si256();
    for (int i = 0; i < CHUNKS; i++) {
      const __m256i* weights = (const __m256i*)(panel + int8_values(g) + 64 * i);
      const __m256i a = _mm256_loadu_si256(weights), b = _mm256_loadu_si256(weights + 1);
      for (int c = 0; c < W; c++) {
        const __m256i activation = broadcast4(values + CHUNK * (i * W + c));
        dot[c][0] = _mm256_add_epi32(dot[c][0], signed_dot4(a, activation, ones));
        keep(dot[c][0]);
        dot[c][1] = _mm256_add_epi32(dot[c][1], signed_dot4(b, activation, ones));
        keep(dot[c][1]);
      }
    }
    const F scale = load_halves(panel + int8_scales(g));
    for (int c = 0; c < W; c++) {
      const I sum = {dot[c][0], dot[c][1]};
      const F factor = mul(scale, all(summaries[c]));
      store(out + c * PANEL, fma(to_float(sum), factor, load(out + c * PANEL)));
    }
    values += GROUP * W;
    summaries += SUMMARIES * W;
  }
}

#else

template <int W>
static void int4_panel(const uint8_t* panel, int groups, const int8_t* values, const float* summaries, float* out) {
  for (int c = 0; c < W; c++) store(out + c * PANEL, all(0.0f));
  for (int g = 0; g < groups; g++) {
    I dot[W];
    int4_dots<W>(panel, values, dot);
    const F scale = load_halves(panel + 256), minimum = load_halves(panel + 288);
    for (int c = 0; c < W; c++) {
      const F result = fma(to_float(dot[c]), mul(scale, all(summaries[c])), load(out + c * PANEL));
      store(out + c * PANEL, fma(minimum, all(summaries[W + c]), result));
    }
    panel += INT4_GROUP_BYTES;
    values += GROUP * W;
    summaries += SUMMARIES * W;
  }
}

template <int W>
static void int8_panel(const uint8_t* panel, int groups, const int8_t* values, const float* summaries, float* out) {
  for (int c = 0; c < W; c++) store(out + c * PANEL, all(0.0f));
  for (int g = 0; g < groups; g++) {
    I dot[W];
    int8_dots<W>((const int8_t*)panel + int8_values(g), values, dot);
    const F scale = load_halves(panel + int8_scales(g));
    for (int c = 0; c < W; c++) {
      const F factor = mul(scale, all(summaries[c]));
      store(out + c * PANEL, fma(to_float(dot[c]), factor, load(out + c * PANEL)));
    }
    values += GROUP * W;
    summaries += SUMMARIES * W;
  }
}

#endif

static_assert(WIDEST_TILE <= MOST_TILE_COLUMNS);

using Product = void (*)(const uint8_t*, int, const int8_t*, const float*, float*);

// out[width][16] = panel x tile
static void product(Format format, const uint8_t* panel, int groups, const int8_t* values, const float* summaries,
                    int width, float* out) {
#define BOTH(W)                  \
  {                              \
    int4_panel<W>, int8_panel<W> \
  }
  static constexpr Product products[WIDEST_TILE][2] = {BOTH(1),  BOTH(2), BOTH(3), BOTH(4),
#if defined(__AVX2__)
                                                       BOTH(5),  BOTH(6),
#endif
#if defined(__AVX512VNNI__)
                                                       BOTH(7),  BOTH(8), BOTH(9), BOTH(10),
                                                       BOTH(11), BOTH(12)
#endif
  };
#undef BOTH
  products[width - 1][(int)format](panel, groups, values, summaries, out);
}

}  // namespace LEVEL
}  // namespace trioserve
