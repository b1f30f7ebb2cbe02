// Dot products of a group of weights with activations, on any machine.
//
// Owns: int4_dots and int8_dots. Must not know: scales, groups beside this one. A part of matmul.h, for it alone to
// include.
#pragma once

namespace trioserve {
namespace LEVEL {

constexpr int WIDEST_TILE = 4;

// dot[row] += 4 products, for each of 16 rows
INLINE void add_dot4(int32_t* dot, const int8_t* weights, const int8_t* activation) {
  for (int r = 0; r < PANEL; r++)
    for (int k = 0; k < CHUNK; k++) dot[r] += weights[CHUNK * r + k] * activation[k];
}

// dot = the products of 16 rows' 4-bit weights with W columns' activations, summed over the group
template <int W>
INLINE void int4_dots(const uint8_t* weights, const int8_t* activations, I* dot) {
  for (int c = 0; c < W; c++) dot[c] = all(0);
  for (int i = 0; i < CHUNKS; i++) {
    int8_t bytes[PANEL * CHUNK];
    for (int j = 0; j < PANEL * CHUNK; j++) bytes[j] = (int8_t)(weights[64 * (i / 2) + j] >> 4 * (i % 2) & 0x0f);
    for (int c = 0; c < W; c++) add_dot4(dot[c].v, bytes, activations + CHUNK * (i * W + c));
  }
}

// The same for 8-bit weights.
template <int W>
INLINE void int8_dots(const int8_t* weights, const int8_t* activations, I* dot) {
  for (int c = 0; c < W; c++) dot[c] = all(0);
  for (int i = 0; i < CHUNKS; i++)
    for (int c = 0; c < W; c++) add_dot4(dot[c].v, weights + 64 * i, activations + CHUNK * (i * W + c));
}

}  // namespace LEVEL
}  // namespace trioserve
