// Single functions of a level, through the C interface: what tests compare between levels and with float64.
//
// Owns: nothing. Must not know: models, steps. A server calls none of this.
//
// Every function returns 0, or 1 if this machine can't run the level.

#include <cstring>

#include "level.h"
#include "memory.h"
#include "pack.h"

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
  Buffer part(part_bytes(KvType::FLOAT16, count));
  found->store_value(KvType::FLOAT16, x, count, 0, part.as<uint8_t>());
  memcpy(halves, part.as<uint16_t>() + PAGE * count, count * sizeof *halves);
  return 0;
}

// Attention of one token to its sequence, for one KV head: queries and out are [queries][head_dim]. keys and values,
// [tokens][head_dim], are put into pages first, and what is left of the last page gets the bits `stale`.
EXPORT int trioserve_attend(const char* level, int kv_type, int queries, int head_dim, float soft_cap, int window,
                            int tokens, const float* q, const float* keys, const float* values, int stale, float* out) {
  const Level* found = find_level(level);
  if (!found) return 1;
  const AttentionShape shape{1, head_dim, queries, soft_cap, window, (KvType)kv_type};
  const int count = (tokens + PAGE - 1) / PAGE, stride = shape.state_floats();
  const size_t page = page_bytes(shape.kv_type, 1, head_dim);
  Buffer pages(page * count), table(count * sizeof(int32_t)), states(2 * queries * stride * sizeof(float));
  for (size_t i = 0; i < page * count / sizeof(uint16_t); i++) pages.as<uint16_t>()[i] = (uint16_t)stale;
  for (int i = 0; i < count; i++) table.as<int32_t>()[i] = i;
  for (int t = 0; t < tokens; t++) {
    uint8_t* part = pages.as<uint8_t>() + page * (t / PAGE);
    found->store_key(shape.kv_type, keys + (size_t)t * head_dim, head_dim, t % PAGE, part);
    found->store_value(shape.kv_type, values + (size_t)t * head_dim, head_dim, t % PAGE, part);
  }
  const AttentionRow row{q, table.as<int32_t>(), tokens - 1};
  float *total = states.as<float>(), *next = total + queries * stride;
  for (int stretch = 0; stretch * STRETCH_TOKENS < tokens; stretch++) {
    found->attend(shape, &row, 1, INT32_MAX, pages.as<uint8_t>(), 0, stretch, stretch ? next : total);
    for (int i = 0; stretch && i < queries; i++) found->fold(total + i * stride, next + i * stride, head_dim);
  }
  for (int i = 0; i < queries; i++) found->finish(total + i * stride, head_dim, out + i * head_dim);
  return 0;
}

// A matrix's values as its file has them, [rows][width].
EXPORT void trioserve_dequantise(int kind, const uint8_t* data, int rows, int width, float* out) {
  for (int r = 0; r < rows; r++)
    dequantise((Kind)kind, data + row_bytes((Kind)kind, width) * (size_t)r, width, out + (size_t)r * width);
}

// out [columns][rows] = x [columns][width] times the matrix, [rows][width]. Returns 1 if there is no such level or
// kind.
EXPORT int trioserve_multiply(const char* level, int kind, const uint8_t* data, int rows, int width, const float* x,
                              int columns, float* out) {
  const Level* found = find_level(level);
  if (!found || !row_bytes((Kind)kind, width)) return 1;
  const int groups = groups_of(width), padded = groups * GROUP;
  const Format format = packed_format((Kind)kind);
  Buffer panel(panel_bytes(format, groups)), row(padded * sizeof(float));
  Buffer values((size_t)columns * padded), summaries((size_t)columns * groups * SUMMARIES * sizeof(float));
  const Tiling tiling(columns, found->widest_tile);
  const auto tile_values = [&](int t) { return values.as<int8_t>() + (size_t)tiling.start(t) * padded; };
  const auto tile_summaries = [&](int t) {
    return summaries.as<float>() + (size_t)tiling.start(t) * groups * SUMMARIES;
  };
  for (int c = 0; c < columns; c++) {
    memcpy(row.as<float>(), x + (size_t)c * width, width * sizeof(float));
    const int t = tiling.tile_of(c);
    found->quantise(row.as<float>(), groups, c - tiling.start(t), tiling.width(t), tile_values(t), tile_summaries(t));
  }
  for (int p = 0; p < panels_of(rows); p++) {
    pack_panel((Kind)kind, data, rows, width, p, panel.as<uint8_t>());
    for (int t = 0; t < tiling.count; t++) {
      float products[MOST_TILE_COLUMNS * PANEL];
      found->product(format, panel.as<uint8_t>(), groups, tile_values(t), tile_summaries(t), tiling.width(t), products);
      for (int c = 0; c < tiling.width(t); c++)
        for (int r = 0; r < PANEL && p * PANEL + r < rows; r++)
          out[(size_t)(tiling.start(t) + c) * rows + p * PANEL + r] = products[c * PANEL + r];
    }
  }
  return 0;
}

}  // extern "C"
