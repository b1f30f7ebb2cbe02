// The C interface of the library: what Python calls.
//
// Owns: the boundary. No exception leaves it, and nothing here is C++ to the caller. Must not know: how a step is
// computed.

#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "decoder.h"
#include "level.h"
#include "pack.h"

using namespace trioserve;

namespace {

// Those that this machine can run, the fastest first.
const Level* levels[3];

int find_levels() {
  int count = 0;
#if defined(TRIOSERVE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    levels[count++] = &level_avx512;
#endif
#if defined(TRIOSERVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    levels[count++] = &level_avx2;
#endif
  levels[count++] = &level_portable;
  return count;
}

const int level_count = find_levels();

}  // namespace

const Level* trioserve::find_level(const char* name) {
  for (int i = 0; i < level_count; i++)
    if (!strcmp(levels[i]->name, name)) return levels[i];
  return nullptr;
}

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// The name of the i-th level that this machine can run, the fastest first; null past the last.
EXPORT const char* trioserve_level(int i) { return i >= 0 && i < level_count ? levels[i]->name : nullptr; }

// A decoder without weights; null if there is no memory for it, or no such level.
EXPORT Decoder* trioserve_decoder_new(const Spec* spec, const double* frequencies, const uint8_t* has_window,
                                      int page_count, int threads, const char* level) {
  const Level* found = find_level(level);
  if (!found) return nullptr;
  try {
    return new Decoder(*spec, frequencies, has_window, page_count, threads, *found);
  } catch (const std::exception&) {
    return nullptr;
  }
}

EXPORT void trioserve_decoder_delete(Decoder* decoder) { delete decoder; }

// Returns 0, or 1 if the model has no such weight, or not of this kind, or there is no memory.
EXPORT int trioserve_decoder_set(Decoder* decoder, const char* name, int layer, int kind, const uint8_t* data) {
  try {
    decoder->weights().set(name, layer, (Kind)kind, data, decoder->team());
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

EXPORT size_t trioserve_decoder_weight_bytes(const Decoder* decoder) {
  return const_cast<Decoder*>(decoder)->weights().bytes();
}

EXPORT int trioserve_decoder_run(Decoder* decoder, const Step* step) {
  try {
    return (int)decoder->run(*step);
  } catch (const std::exception&) {
    return (int)Outcome::NO_MEMORY;
  }
}

EXPORT void trioserve_decoder_interrupt(Decoder* decoder) { decoder->interrupt(); }

// Bytes of a row of `width` values of a kind; 0 if there is no such kind or no such row.
EXPORT size_t trioserve_row_bytes(int kind, int width) { return row_bytes((Kind)kind, width); }

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
      float products[16 * PANEL];
      found->product(format, panel.as<uint8_t>(), groups, tile_values(t), tile_summaries(t), tiling.width(t), products);
      for (int c = 0; c < tiling.width(t); c++)
        for (int r = 0; r < PANEL && p * PANEL + r < rows; r++)
          out[(size_t)(tiling.start(t) + c) * rows + p * PANEL + r] = products[c * PANEL + r];
    }
  }
  return 0;
}

}  // extern "C"
