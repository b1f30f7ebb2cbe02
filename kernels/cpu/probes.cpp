// Single functions of a level, through the C interface: what tests compare between levels and with float64.
//
// Owns: nothing. Must not know: models, steps. A server calls none of this.
//
// Every function returns 0, or 1 if this machine can't run the level.

#include "level.h"
#include "memory.h"

using namespace trioserve;

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// Arrays are padded with zeros to a multiple of GROUP.
EXPORT int trioserve_rms_norm(const char* level, const float* x, const float* weight, int width, float epsilon,
                              float* out) {
  const Level* found = find_level(level);
  if (!found) return 1;
  found->rms_norm(x, weight, width, epsilon, out);
  return 0;
}

// out = activation(gate) * up; `count` is a multiple of LANES here and below.
EXPORT int trioserve_gate(const char* level, int activation, const float* gates, const float* ups, int count,
                          float* out) {
  const Level* found = find_level(level);
  if (!found) return 1;
  found->gate((Activation)activation, gates, ups, count, out);
  return 0;
}

EXPORT int trioserve_soft_cap(const char* level, float* x, int count, float cap) {
  const Level* found = find_level(level);
  if (!found) return 1;
  found->soft_cap(x, count, cap);
  return 0;
}

EXPORT int trioserve_store_halves(const char* level, const float* x, int count, uint16_t* halves) {
  const Level* found = find_level(level);
  if (!found) return 1;
  found->store_value(x, count, 0, halves);
  return 0;
}

// Attention of one token to its sequence, for one KV head: queries and out are [queries][head_dim]. keys and values,
// [tokens][head_dim], are put into pages first, and what is left of the last page gets the bits `stale`.
EXPORT int trioserve_attend(const char* level, int queries, int head_dim, float soft_cap, int window, int tokens,
                            const float* q, const float* keys, const float* values, int stale, float* out) {
  const Level* found = find_level(level);
  if (!found) return 1;
  const AttentionShape shape{1, head_dim, queries, soft_cap, window};
  const int count = (tokens + PAGE - 1) / PAGE, stride = shape.state_floats();
  const size_t page = page_halves(1, head_dim);
  Buffer pages(page * count * sizeof(uint16_t)), table(count * sizeof(int32_t)),
      states(2 * queries * stride * sizeof(float));
  uint16_t* halves = pages.as<uint16_t>();
  for (size_t i = 0; i < page * count; i++) halves[i] = (uint16_t)stale;
  for (int i = 0; i < count; i++) table.as<int32_t>()[i] = i;
  for (int t = 0; t < tokens; t++) {
    found->store_key(keys + (size_t)t * head_dim, head_dim, t % PAGE, halves + page * (t / PAGE));
    found->store_value(values + (size_t)t * head_dim, head_dim, t % PAGE, halves + page * (t / PAGE) + PAGE * head_dim);
  }
  const AttentionRow row{q, table.as<int32_t>(), tokens - 1};
  float *total = states.as<float>(), *next = total + queries * stride;
  for (int stretch = 0; stretch * STRETCH_TOKENS < tokens; stretch++) {
    found->attend(shape, &row, 1, INT32_MAX, halves, 0, stretch, stretch ? next : total);
    for (int i = 0; stretch && i < queries; i++) found->fold(total + i * stride, next + i * stride, head_dim);
  }
  for (int i = 0; i < queries; i++) found->finish(total + i * stride, head_dim, out + i * head_dim);
  return 0;
}

}  // extern "C"
