// Attention of a few queries to the pages of their sequences.
//
// Owns: scores, softmax and weighted sums. Must not know: layers, who shares pages with whom and why.
//
// Keys are taken in parts of CHUNK_TOKENS; a stretch of STRETCH_CHUNKS such parts is summed up from nothing, and the
// stretches are folded together in order. Both are cut by position alone, so a query's result does not depend on the
// queries beside it, nor on whether stretches were computed by one thread or by several. A key that a query may not see
// has weight 0, which adds nothing, not even a rounding.
#pragma once

#include "kv.h"
#include "level.h"
#include "rows.h"
#include "shapes.h"
#include "simd.h"

namespace trioserve {
namespace LEVEL {

// Score of what may not be seen, and the maximum of nothing: finite, so that differences are numbers.
constexpr float NOTHING = -1e30f;

#if defined(__AVX512F__)
constexpr int QUERIES_AT_ONCE = 6, PAGES_AT_ONCE = 4, VECTORS_AT_ONCE = 4;
#elif defined(__AVX2__)
constexpr int QUERIES_AT_ONCE = 3, PAGES_AT_ONCE = 2, VECTORS_AT_ONCE = 2;
#elif defined(LEVEL_HAS_NEON)
constexpr int QUERIES_AT_ONCE = 6, PAGES_AT_ONCE = 1, VECTORS_AT_ONCE = 1;
#else
constexpr int QUERIES_AT_ONCE = 2, PAGES_AT_ONCE = 2, VECTORS_AT_ONCE = 2;
#endif

// Before a loop over what is to lie in registers: the compiler puts it there only if it unrolls the loop whole, and
// gives up on that where 16 lanes take several of them.
#define UNROLLED _Pragma("GCC unroll 24")

// scores[q][page] = queries[q] . keys[page], Q queries and P pages of keys [head_dim][PAGE]
template <class Kv, int Q, int P>
static void score_tile(const float* const* queries, const typename Kv::Item* const* keys, int head_dim, float* scores) {
  F sums[Q * P];
  UNROLLED
  for (int i = 0; i < Q * P; i++) sums[i] = all(0.0f);
  for (int d = 0; d < head_dim; d++) {
    F key[P];
    UNROLLED
    for (int p = 0; p < P; p++) key[p] = Kv::load(keys[p] + d * PAGE);
    UNROLLED
    for (int q = 0; q < Q; q++) {
      const F query = all(queries[q][d]);
      UNROLLED
      for (int p = 0; p < P; p++) sums[q * P + p] = fma(query, key[p], sums[q * P + p]);
    }
  }
  UNROLLED
  for (int i = 0; i < Q * P; i++) {
    if constexpr (Kv::SCALED) sums[i] = mul(sums[i], load(Kv::key_scales(keys[i % P], head_dim)));
    store(scores + i / P * CHUNK_TOKENS + i % P * PAGE, sums[i]);
  }
}

// totals[q] = totals[q] * factors[q] + weights[q] . values, for V vectors of the head; values of pages [PAGE][head_dim]
template <class Kv, int Q, int V>
static void value_tile(const float* weights, const float* factors, const typename Kv::Item* const* values, int tokens,
                       int head_dim, float* totals, int stride) {
  F sums[Q * V];
  UNROLLED
  for (int i = 0; i < Q * V; i++) sums[i] = mul(load(totals + i / V * stride + i % V * LANES), all(factors[i / V]));
  for (int t = 0; t < tokens; t++) {
    const typename Kv::Item* row = values[t / PAGE] + (t % PAGE) * head_dim;
    F value[V];
    UNROLLED
    for (int v = 0; v < V; v++) value[v] = Kv::load(row + v * LANES);
    UNROLLED
    for (int q = 0; q < Q; q++) {
      const F weight = all(weights[q * CHUNK_TOKENS + t]);
      UNROLLED
      for (int v = 0; v < V; v++) sums[q * V + v] = fma(weight, value[v], sums[q * V + v]);
    }
  }
  UNROLLED
  for (int i = 0; i < Q * V; i++) store(totals + i / V * stride + i % V * LANES, sums[i]);
}

template <int N>
struct Count {
  static constexpr int value = N;
};

// call(Count<n>()) for the n of 1 to N that is `count`: loops over what lies in registers need their length when they
// are compiled.
template <int N, class Call>
INLINE void with_count(int count, Call call) {
  if constexpr (N > 1)
    if (count < N) return with_count<N - 1>(count, call);
  call(Count<N>());
}

template <class Kv, int Q>
static void score_pages(const float* const* queries, const typename Kv::Item* const* keys, int pages, int head_dim,
                        float* scores) {
  for (int p = 0; p < pages; p += PAGES_AT_ONCE)
    with_count<PAGES_AT_ONCE>(
        pages - p, [&](auto some) { score_tile<Kv, Q, some.value>(queries, keys + p, head_dim, scores + p * PAGE); });
}

template <class Kv, int Q>
static void add_values(const float* weights, const float* factors, const typename Kv::Item* const* values, int tokens,
                       int head_dim, float* totals, int stride) {
  for (int d = 0; d < head_dim; d += VECTORS_AT_ONCE * LANES) {
    const typename Kv::Item* from[CHUNK_PAGES] = {};
    for (int p = 0; p * PAGE < tokens; p++) from[p] = values[p] + d;
    with_count<VECTORS_AT_ONCE>((head_dim - d) / LANES, [&](auto some) {
      value_tile<Kv, Q, some.value>(weights, factors, from, tokens, head_dim, totals + d, stride);
    });
  }
}

INLINE float exp_of(float x) {
  // most often the largest score stays the largest
  if (x == 0.0f) return 1.0f;
  float v[LANES];
  store(v, exp(all(x)));
  return v[0];
}

// Scores of one query, [CHUNK_TOKENS], to weights; only tokens first <= t < last are seen. The factor for what was
// summed before is returned.
INLINE float soften(float* scores, int first, int last, float cap, float& maximum, float& weight_sum) {
  constexpr int VECTORS = CHUNK_TOKENS / LANES;
  F s[VECTORS];
  if (last <= first) {
    for (int v = 0; v < VECTORS; v++) store(scores + v * LANES, all(0.0f));
    return 1.0f;
  }
  if (cap > 0.0f) soft_cap(scores, CHUNK_TOKENS, cap);
  const bool whole = first <= 0 && last >= CHUNK_TOKENS;
  static const float lane_numbers[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int v = 0; v < VECTORS; v++) {
    s[v] = load(scores + v * LANES);
    if (whole) continue;
    const F token = add(load(lane_numbers), all((float)(v * LANES)));
    s[v] = select(less(token, all((float)last)), s[v], all(NOTHING));
    s[v] = select(less(token, all((float)first)), all(NOTHING), s[v]);
  }
  F most = s[0];
  for (int v = 1; v < VECTORS; v++) most = max(most, s[v]);
  const float best = largest(most), before = maximum;
  maximum = best > before ? best : before;
  F total = all(0.0f);
  for (int v = 0; v < VECTORS; v++) {
    const F weight = exp(sub(s[v], all(maximum)));
    store(scores + v * LANES, weight);
    total = add(total, weight);
  }
  const float factor = exp_of(before - maximum);
  weight_sum = __builtin_fmaf(weight_sum, factor, sum(total));
  return factor;
}

// Take one chunk of keys into the running sums of `count` queries.
template <class Kv>
static void attend_chunk(const float* const* queries, const int* first, const int* last, int count,
                         const typename Kv::Item* const* keys, const typename Kv::Item* const* values, int tokens,
                         const AttentionShape& shape, float* sums) {
  const int head_dim = shape.head_dim, stride = shape.state_floats(), pages = (tokens + PAGE - 1) / PAGE;
  alignas(64) float scores[QUERIES_AT_ONCE * CHUNK_TOKENS];
  float factors[QUERIES_AT_ONCE];
  for (int start = 0; start < count; start += QUERIES_AT_ONCE) {
    const int some = count - start < QUERIES_AT_ONCE ? count - start : QUERIES_AT_ONCE;
    float* state = sums + (size_t)start * stride;
    with_count<QUERIES_AT_ONCE>(some, [&](auto queries_here) {
      score_pages<Kv, queries_here.value>(queries + start, keys, pages, head_dim, scores);
    });
    int seen = 0;
    for (int q = 0; q < some; q++) {
      float* own = state + q * stride;
      const int from = first[start + q], to = last[start + q] < tokens ? last[start + q] : tokens;
      factors[q] = soften(scores + q * CHUNK_TOKENS, from, to, shape.soft_cap, own[0], own[1]);
      if (from < to && to > seen) seen = to;
      if constexpr (Kv::SCALED)
        for (int p = 0; p < pages; p++) {
          float* weights = scores + q * CHUNK_TOKENS + p * PAGE;
          store(weights, mul(load(weights), load(Kv::value_scales(values[p], head_dim))));
        }
    }
    with_count<QUERIES_AT_ONCE>(some, [&](auto queries_here) {
      add_values<Kv, queries_here.value>(scores, factors, values, seen, head_dim, state + STATE_HEAD, stride);
    });
  }
}

// One stretch of one block for one KV head, from nothing: states [rows x queries per KV head][state_floats].
template <class Kv>
static void attend_to(const AttentionShape& shape, const AttentionRow* rows, int row_count, int shared_chunks,
                      const uint8_t* layer_pages, int kv_head, int stretch, float* states) {
  const int per_row = shape.queries_per_head, count = row_count * per_row, stride = shape.state_floats();
  const float* queries[MOST_QUERIES];
  int first[MOST_QUERIES], last[MOST_QUERIES];
  for (int q = 0; q < count; q++) {
    float* state = states + (size_t)q * stride;
    state[0] = NOTHING;
    for (int i = 1; i < stride; i++) state[i] = 0.0f;
    queries[q] = rows[q / per_row].queries + (kv_head * per_row + q % per_row) * shape.head_dim;
  }
  const size_t part = part_bytes(Kv::TYPE, shape.head_dim), page = page_bytes(Kv::TYPE, shape.kv_heads, shape.head_dim);
  const uint8_t* parts = layer_pages + part * (size_t)kv_head;
  for (int chunk = stretch * STRETCH_CHUNKS; chunk < (stretch + 1) * STRETCH_CHUNKS; chunk++) {
    const int start = chunk * CHUNK_TOKENS;
    for (int r = 0; r < row_count;) {
      // the rows that read the same pages here
      int end = r + 1;
      while (end < row_count && (chunk < shared_chunks || rows[end].pages == rows[r].pages)) end++;
      int tokens = 0;
      for (int i = r; i < end; i++) {
        const int seen = rows[i].position + 1 - start;
        const int hidden = shape.window > 0 ? rows[i].position + 1 - shape.window - start : 0;
        for (int q = i * per_row; q < (i + 1) * per_row; q++) first[q] = hidden, last[q] = seen;
        if (seen > tokens && hidden < CHUNK_TOKENS) tokens = seen;
      }
      if (tokens > CHUNK_TOKENS) tokens = CHUNK_TOKENS;
      if (tokens > 0) {
        const typename Kv::Item *keys[CHUNK_PAGES] = {}, *values[CHUNK_PAGES] = {};
        for (int p = 0; p * PAGE < tokens; p++) {
          keys[p] = (const typename Kv::Item*)(parts + page * (size_t)rows[r].pages[chunk * CHUNK_PAGES + p]);
          values[p] = keys[p] + PAGE * shape.head_dim;
        }
        const int q = r * per_row;
        attend_chunk<Kv>(queries + q, first + q, last + q, (end - r) * per_row, keys, values, tokens, shape,
                         states + (size_t)q * stride);
      }
      r = end;
    }
  }
}

static void attend(const AttentionShape& shape, const AttentionRow* rows, int row_count, int shared_chunks,
                   const uint8_t* layer_pages, int kv_head, int stretch, float* states) {
  with_kv(shape.kv_type, [&](auto kv) {
    attend_to<decltype(kv)>(shape, rows, row_count, shared_chunks, layer_pages, kv_head, stretch, states);
  });
}

// Fold a stretch's state into the one before it.
static void fold(float* state, const float* next, int head_dim) {
  const float maximum = state[0] > next[0] ? state[0] : next[0];
  const float a = exp_of(state[0] - maximum), b = exp_of(next[0] - maximum);
  state[0] = maximum;
  state[1] = __builtin_fmaf(state[1], a, next[1] * b);
  for (int d = 0; d < head_dim; d += LANES) {
    float* to = state + STATE_HEAD + d;
    store(to, fma(load(to), all(a), mul(load(next + STATE_HEAD + d), all(b))));
  }
}

// out = weighted mean, [head_dim]
static void finish(const float* state, int head_dim, float* out) {
  const F weight_sum = all(state[1]);
  for (int d = 0; d < head_dim; d += LANES) store(out + d, div(load(state + STATE_HEAD + d), weight_sum));
}

}  // namespace LEVEL
}  // namespace trioserve
