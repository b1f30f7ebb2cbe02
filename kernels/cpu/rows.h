// What is done to one token's row between the products: norms, quantisation, activations, rotation.
//
// Owns: the arithmetic of a row. Must not know: which layer it is in, other rows.
//
// Rows are padded with zeros to a multiple of GROUP, so no loop here has a tail.
#pragma once

#include "level.h"
#include "shapes.h"
#include "simd.h"

namespace trioserve {
namespace LEVEL {

// out = x * weight / sqrt(mean(x ** 2) + epsilon); the mean is over `width` values, all arrays are padded.
static void rms_norm(const float* x, const float* weight, int width, float epsilon, float* out) {
  const int padded = groups_of(width) * GROUP;
  F a = all(0.0f), b = all(0.0f);
  for (int i = 0; i < padded; i += 2 * LANES) {
    const F x0 = load(x + i), x1 = load(x + i + LANES);
    a = fma(x0, x0, a);
    b = fma(x1, x1, b);
  }
  const float mean = sum(add(a, b)) / (float)width;
  const F factor = all(1.0f / __builtin_sqrtf(mean + epsilon));
  for (int i = 0; i < padded; i += LANES) store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
}

// How values become int8: as multiples of `size`, of which 127 are as much as the largest magnitude.
struct Steps {
  float size;
  bool finite;
  F per_unit;

  INLINE I of(F x) const { return finite ? to_int(mul(x, per_unit)) : all(0); }
};

INLINE Steps steps_to(float most, bool finite) {
  // A maximum would pass over a NaN: the size is what keeps values of which one is not finite from seeming sound.
  const float size = finite ? most / 127.0f : __builtin_nanf("");
  // by what underflows to nothing, nothing must be divided
  return {size, finite, all(size > 1e-30f ? 127.0f / most : 0.0f)};
}

// Write a row into its column of a tile (see Tiling): each group as int8 multiples of its largest magnitude / 127.
static void quantise(const float* x, int groups, int column, int width, int8_t* values, float* summaries) {
  for (int g = 0; g < groups; g++) {
    const F x0 = load(x + g * GROUP), x1 = load(x + g * GROUP + LANES);
    const float most = largest(max(abs(x0), abs(x1)));
    const F infinite = all(__builtin_inff());
    const bool finite = (bits(less(abs(x0), infinite)) & bits(less(abs(x1), infinite))) == 0xffff;
    const Steps steps = steps_to(most, finite);
    const I q0 = steps.of(x0), q1 = steps.of(x1);
    alignas(64) int8_t bytes[GROUP];
    store_bytes(bytes, q0);
    store_bytes(bytes + LANES, q1);
    const int32_t total = sum(add(q0, q1));
    int8_t* to = values + (size_t)g * GROUP * width + column * CHUNK;
    for (int i = 0; i < CHUNKS; i++) memcpy(to + i * CHUNK * width, bytes + i * CHUNK, CHUNK);
    float* summary = summaries + (size_t)g * SUMMARIES * width + column;
    summary[0] = steps.size;
    summary[width] = steps.size * (float)total;
    memcpy(summary + 2 * width, &total, sizeof total);
  }
}

// tanh(x) = 1 - 2 / (e ** 2x + 1)
INLINE F tanh(F x) { return sub(all(1.0f), div(all(2.0f), add(exp(add(x, x)), all(1.0f)))); }

INLINE F silu(F x) { return div(x, add(all(1.0f), exp(sub(all(0.0f), x)))); }

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x ** 3)))
INLINE F gelu_tanh(F x) {
  const F inner = mul(all(0.797884561f), fma(mul(all(0.044715f), mul(x, x)), x, x));
  return mul(mul(all(0.5f), x), add(all(1.0f), tanh(inner)));
}

INLINE F gelu(F x) {
  float v[LANES];
  store(v, x);
  for (int i = 0; i < LANES; i++) v[i] = 0.5f * v[i] * (1.0f + __builtin_erff(v[i] * 0.707106781f));
  return load(v);
}

// out = activation(gate) * up, for `count` values, a multiple of LANES
static void gate(Activation activation, const float* gates, const float* ups, int count, float* out) {
  for (int i = 0; i < count; i += LANES) {
    const F g = load(gates + i);
    const F a = activation == Activation::SILU ? silu(g) : activation == Activation::GELU ? gelu(g) : gelu_tanh(g);
    store(out + i, mul(a, load(ups + i)));
  }
}

// The same for a tile of products, [width][PANEL] each, and a panel's biases, null if there are none; columns of the
// result are `stride` apart.
static void gate_tile(Activation activation, float* gates, float* ups, const float* gate_bias, const float* up_bias,
                      int width, float* out, size_t stride) {
  for (int c = 0; c < width; c++, gates += PANEL, ups += PANEL, out += stride) {
    if (gate_bias) store(gates, add(load(gates), load(gate_bias)));
    if (up_bias) store(ups, add(load(ups), load(up_bias)));
    gate(activation, gates, ups, PANEL, out);
  }
}

// to += factor * (products + bias), for a tile of products, [width][PANEL]; columns of `to` are `stride` apart.
static void add_tile(float* to, size_t stride, const float* products, const float* bias, float factor, int width) {
  for (int c = 0; c < width; c++, products += PANEL, to += stride) {
    const F product = bias ? add(load(products), load(bias)) : load(products);
    store(to, fma(product, all(factor), load(to)));
  }
}

// x = cap * tanh(x / cap), for `count` values, a multiple of LANES
static void soft_cap(float* x, int count, float cap) {
  for (int i = 0; i < count; i += LANES) store(x + i, mul(all(cap), tanh(div(load(x + i), all(cap)))));
}

// to += factor * from, for `count` values, a multiple of LANES
static void add_scaled(float* to, const float* from, float factor, int count) {
  for (int i = 0; i < count; i += LANES) store(to + i, fma(load(from + i), all(factor), load(to + i)));
}

// Turn each pair of the first `dim` values by its angle. cosines, sines: [dim / 2].
static void rotate(float* head, const float* cosines, const float* sines, int dim, bool interleaved) {
  const int half = dim / 2;
  for (int i = 0; i < half; i++) {
    float& first = head[interleaved ? 2 * i : i];
    float& second = head[interleaved ? 2 * i + 1 : i + half];
    const float a = first, b = second;
    first = a * cosines[i] - b * sines[i];
    second = b * cosines[i] + a * sines[i];
  }
}

}  // namespace LEVEL
}  // namespace trioserve
