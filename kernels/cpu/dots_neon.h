// Dot products of a group of weights with activations, on 64-bit ARM.
//
// Owns: int4_dots and int8_dots, with the instruction for four products at once (FEAT_DotProd) and without it. Must not
// know: scales, groups beside this one. A part of matmul.h, for it alone to include.
#pragma once

namespace trioserve {
namespace LEVEL {

// 16 of the 32 registers hold sums.
constexpr int WIDEST_TILE = 4;

// A column's 4 activations of a chunk, by turns.
INLINE int8x16_t broadcast4(const int8_t* p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return vreinterpretq_s8_s32(vdupq_n_s32(word));
}

// 16 bytes of 4-bit weights: those of the even chunk, and those of the odd one
INLINE int8x16_t low_nibbles(uint8x16_t both) { return vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(0x0f))); }
INLINE int8x16_t high_nibbles(uint8x16_t both) { return vreinterpretq_s8_u8(vshrq_n_u8(both, 4)); }

// Without this the compiler goes on with one column's sums before it begins with the next one's, and keeps the weights
// in memory meanwhile.
template <class Vector>
INLINE void keep(Vector& sum) {
  asm("" : "+w"(sum));
}

#if defined(LEVEL_IS_DOTPROD)

// Weights of 16 rows, 4 of each.
struct Weights {
  int8x16_t a, b, c, d;
};

INLINE void add_dot4(I& sum, const Weights& weights, const int8_t* activations) {
  const int8x16_t activation = broadcast4(activations);
  keep(sum.a = vdotq_s32(sum.a, weights.a, activation));
  keep(sum.b = vdotq_s32(sum.b, weights.b, activation));
  keep(sum.c = vdotq_s32(sum.c, weights.c, activation));
  keep(sum.d = vdotq_s32(sum.d, weights.d, activation));
}

// dot = the products of 16 rows' 4-bit weights with W columns' activations, summed over the group
template <int W>
INLINE void int4_dots(const uint8_t* weights, const int8_t* activations, I* dot) {
  for (int c = 0; c < W; c++) dot[c] = all(0);
#pragma GCC unroll 1
  for (int i = 0; i < CHUNKS / 2; i++, weights += 64, activations += 2 * CHUNK * W) {
    const uint8x16_t a = vld1q_u8(weights), b = vld1q_u8(weights + 16);
    const uint8x16_t c = vld1q_u8(weights + 32), d = vld1q_u8(weights + 48);
    const Weights even = {low_nibbles(a), low_nibbles(b), low_nibbles(c), low_nibbles(d)};
    for (int k = 0; k < W; k++) add_dot4(dot[k], even, activations + CHUNK * k);
    const Weights odd = {high_nibbles(a), high_nibbles(b), high_nibbles(c), high_nibbles(d)};
    for (int k = 0; k < W; k++) add_dot4(dot[k], odd, activations + CHUNK * (W + k));
  }
}

// The same for 8-bit weights.
template <int W>
INLINE void int8_dots(const int8_t* weights, const int8_t* activations, I* dot) {
  for (int c = 0; c < W; c++) dot[c] = all(0);
#pragma GCC unroll 1
  for (int i = 0; i < CHUNKS; i++, weights += 64, activations += CHUNK * W) {
    const Weights all_rows = {vld1q_s8(weights), vld1q_s8(weights + 16), vld1q_s8(weights + 32),
                              vld1q_s8(weights + 48)};
    for (int k = 0; k < W; k++) add_dot4(dot[k], all_rows, activations + CHUNK * k);
  }
}

#else

// Sums of 4 rows from those of pairs and pairs: two rows each, with two sums of a row side by side.
INLINE int32x4_t join(int32x4_t first, int32x4_t second) { return vpaddq_s32(first, second); }

// dot = the products of 16 rows' 4-bit weights with W columns' activations, summed over the group
template <int W>
INLINE void int4_dots(const uint8_t* weights, const int8_t* activations, I* dot) {
  int32x4_t rows[W][4];
  for (int half = 0; half < 2; half++) {
    // 16 bits are enough for a group: each of them gets 8 products, 8 x 15 x 127 = 15240
    int16x8_t sums[W][4];
    for (int c = 0; c < W; c++)
      for (int v = 0; v < 4; v++) sums[c][v] = vdupq_n_s16(0);
#pragma GCC unroll 1
    for (int i = 0; i < CHUNKS; i++) {
      const uint8_t* both = weights + 64 * (i / 2) + 32 * half;
      const uint8x16_t a = vld1q_u8(both), b = vld1q_u8(both + 16);
      const int8x16_t first = i % 2 ? high_nibbles(a) : low_nibbles(a);
      const int8x16_t second = i % 2 ? high_nibbles(b) : low_nibbles(b);
      for (int c = 0; c < W; c++) {
        const int8x16_t activation = broadcast4(activations + CHUNK * (i * W + c));
        keep(sums[c][0] = vmlal_s8(sums[c][0], vget_low_s8(first), vget_low_s8(activation)));
        keep(sums[c][1] = vmlal_high_s8(sums[c][1], first, activation));
        keep(sums[c][2] = vmlal_s8(sums[c][2], vget_low_s8(second), vget_low_s8(activation)));
        keep(sums[c][3] = vmlal_high_s8(sums[c][3], second, activation));
      }
    }
    for (int c = 0; c < W; c++)
      for (int v = 0; v < 2; v++)
        rows[c][2 * half + v] = join(vpaddlq_s16(sums[c][2 * v]), vpaddlq_s16(sums[c][2 * v + 1]));
  }
  for (int c = 0; c < W; c++) dot[c] = {rows[c][0], rows[c][1], rows[c][2], rows[c][3]};
}

// The same for 8-bit weights.
template <int W>
INLINE void int8_dots(const int8_t* weights, const int8_t* activations, I* dot) {
  int32x4_t rows[W][4];
  for (int half = 0; half < 2; half++) {
    int32x4_t sums[W][4];
    for (int c = 0; c < W; c++)
      for (int v = 0; v < 4; v++) sums[c][v] = vdupq_n_s32(0);
#pragma GCC unroll 1
    for (int i = 0; i < CHUNKS; i += 2) {
      // 16 bits are enough for two chunks: even with -128 as a weight, 2 x 128 x 127 = 32512
      const int8_t* bytes = weights + 64 * i + 32 * half;
      const int8x16_t here[2] = {vld1q_s8(bytes), vld1q_s8(bytes + 16)};
      const int8x16_t next[2] = {vld1q_s8(bytes + 64), vld1q_s8(bytes + 80)};
      for (int c = 0; c < W; c++) {
        const int8x16_t x = broadcast4(activations + CHUNK * (i * W + c));
        const int8x16_t y = broadcast4(activations + CHUNK * ((i + 1) * W + c));
        for (int v = 0; v < 2; v++) {
          const int16x8_t low = vmull_s8(vget_low_s8(here[v]), vget_low_s8(x)), high = vmull_high_s8(here[v], x);
          int32x4_t *first = &sums[c][2 * v], *second = first + 1;
          keep(*first = vpadalq_s16(*first, vmlal_s8(low, vget_low_s8(next[v]), vget_low_s8(y))));
          keep(*second = vpadalq_s16(*second, vmlal_high_s8(high, next[v], y)));
        }
      }
    }
    for (int c = 0; c < W; c++)
      for (int v = 0; v < 2; v++) rows[c][2 * half + v] = join(sums[c][2 * v], sums[c][2 * v + 1]);
  }
  for (int c = 0; c < W; c++) dot[c] = {rows[c][0], rows[c][1], rows[c][2], rows[c][3]};
}

#endif

}  // namespace LEVEL
}  // namespace trioserve
