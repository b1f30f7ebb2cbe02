// What an instruction set level offers, and the plain data that goes in and out.
//
// Owns: the table of a level's functions. Must not know: how any of them works.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sampler_row.h"
#include "shapes.h"

namespace trioserve {

enum class Activation : int32_t { SILU = 0, GELU = 1, GELU_TANH = 2 };

// Keys are taken 64 at a time, and summed up from nothing every 128.
constexpr int CHUNK_PAGES = 4, CHUNK_TOKENS = CHUNK_PAGES * PAGE;
constexpr int STRETCH_CHUNKS = 2, STRETCH_TOKENS = STRETCH_CHUNKS * CHUNK_TOKENS;
// Queries of one KV head that are computed together, as far as whole rows allow; and how many one row may have.
constexpr int BLOCK_QUERIES = 24, MOST_QUERIES = 64;
// A running sum: largest score, sum of weights, two unused; then the weighted sum of values, [head_dim].
constexpr int STATE_HEAD = 4;

struct AttentionShape {
  int kv_heads, head_dim, queries_per_head;
  float soft_cap;  // 0: none
  int window;      // 0: none
  KvType kv_type;

  INLINE int state_floats() const { return STATE_HEAD + head_dim; }
};

struct AttentionRow {
  const float* queries;  // [heads][head_dim], scaled
  const int32_t* pages;  // its sequence's block table
  int32_t position;
};

struct Level {
  const char* name;
  int widest_tile;
  void (*product)(Format, const uint8_t* panel, int groups, const int8_t* values, const float* summaries, int width,
                  float* out);
  void (*rms_norm)(const float* x, const float* weight, int width, float epsilon, float* out);
  void (*quantise)(const float* x, int groups, int column, int width, int8_t* values, float* summaries);
  void (*gate)(Activation, const float* gates, const float* ups, int count, float* out);
  void (*gate_tile)(Activation, float* gates, float* ups, const float* gate_bias, const float* up_bias, int width,
                    float* out, size_t stride);
  void (*add_tile)(float* to, size_t stride, const float* products, const float* bias, float factor, int width);
  void (*soft_cap)(float* x, int count, float cap);
  void (*add_scaled)(float* to, const float* from, float factor, int count);
  void (*rotate)(float* head, const float* cosines, const float* sines, int dim, bool interleaved);
  void (*store_key)(KvType, const float* key, int head_dim, int offset, uint8_t* part);
  void (*store_value)(KvType, const float* value, int head_dim, int offset, uint8_t* part);
  void (*attend)(const AttentionShape&, const AttentionRow* rows, int row_count, int shared_chunks,
                 const uint8_t* layer_pages, int kv_head, int stretch, float* states);
  void (*fold)(float* state, const float* next, int head_dim);
  void (*finish)(const float* state, int head_dim, float* out);
  int64_t (*sampler_scratch)(int32_t vocab);
  void (*sample)(const float* logits, int32_t vocab, const SamplerRow&, float* scratch, int32_t* counts, Drawn*,
                 int32_t* alternative_ids, double* alternative_log_probabilities);
};

// A level that this machine can run; null if it can't run one of that name.
const Level* find_level(const char* name);

// Those that this library was built with.
extern const Level level_portable;
#if defined(TRIOSERVE_AVX2)
extern const Level level_avx2;
#endif
#if defined(TRIOSERVE_AVX512)
extern const Level level_avx512;
#endif
#if defined(TRIOSERVE_NEON)
extern const Level level_neon;
#endif
#if defined(TRIOSERVE_DOTPROD)
extern const Level level_dotprod;
#endif

}  // namespace trioserve
