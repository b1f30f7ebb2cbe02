// Draws one token from one row of logits: what kernels/reference/sampler.py says, without sorting the row.
//
// Owns: the order of changes, filters and sums, and so the bits of the result.
// Must not know: other rows, threads, who asks.
//
// min_p, top_k and top_p each keep the logits from some value up. min_p's is known in advance, those of top_k and top_p
// are found by `reach`: the value at which the number or the weights of the logits from it up reach a target. So
// filters compare logits where the reference compares their weights in float64: the same, unless different logits have
// the same weight. Ties are kept or dropped together, exactly; only top_p's sums are rounded.
//
// Weights are float32. They are added within a block of 128 in float32, by a tree, and from there on in float64. The
// place of a token in the cumulative distribution is within 1e-6 of the exact one, a log-probability too.
#pragma once

#include "philox.h"
#include "sampler_row.h"
#include "simd.h"

namespace trioserve {
namespace LEVEL {

constexpr int BLOCK_VECTORS = 8;
constexpr int BLOCK = BLOCK_VECTORS * LANES;
// into how many parts `reach` cuts a range
constexpr int PARTS = 8;
// how many values `reach` sorts
constexpr int CANDIDATES = 128;
constexpr float INFINITE = __builtin_inff();
constexpr float LARGEST_FLOAT = 3.40282347e38f;

INLINE int whole_blocks(int32_t vocab) { return (vocab + BLOCK - 1) / BLOCK * BLOCK; }

// How many floats of scratch `sample` needs.
inline int64_t sampler_scratch(int32_t vocab) {
  const int64_t size = whole_blocks(vocab);
  return size / BLOCK * 2 + 2 * size;  // a double for each block, changed logits, weights
}

// The largest value; NaN if there is a NaN or +inf.
INLINE float peak(const float* values, int size) {
  F largest_yet = all(-INFINITE), strange = all(0.0f);
  for (int i = 0; i < size; i += LANES) {
    const F x = load(values + i);
    largest_yet = max(x, largest_yet);
    strange = select(less(x, all(INFINITE)), strange, all(1.0f));
  }
  return largest(strange) > 0.0f ? __builtin_nanf("") : largest(largest_yet);
}

INLINE int first_at(const float* values, float value) {
  for (int i = 0;; i += LANES) {
    const uint32_t below = bits(less(load(values + i), all(value)));
    if (below != 0xffff) return i + __builtin_ctz(~below);
  }
}

// Divided or multiplied, so that it gets less likely if the penalty is above 1. A penalty near 0 leaves it finite.
INLINE float repeated(double logit, double penalty) {
  const double changed = logit > 0.0 ? logit / penalty : logit * penalty;
  return changed > LARGEST_FLOAT ? LARGEST_FLOAT : (float)changed;
}

// Applies the penalties. counts: [vocab], all 0 before and after, so that nothing of a row's vocabulary is cleared.
INLINE void penalise(float* values, const SamplerRow& row, int32_t* counts) {
  constexpr int32_t DONE = -1;
  for (int i = 0; i < row.generated_count; i++) counts[row.generated[i]]++;
  for (int i = 0; i < row.generated_count; i++) {
    int32_t& count = counts[row.generated[i]];
    if (count == DONE) continue;
    float& value = values[row.generated[i]];
    value = (float)((double)value - (row.presence_penalty + row.frequency_penalty * count));
    value = repeated(value, row.repetition_penalty);
    count = DONE;
  }
  for (int i = 0; i < row.prompt_count; i++) {
    int32_t& count = counts[row.prompt[i]];
    if (count == DONE) continue;
    float& value = values[row.prompt[i]];
    value = repeated(value, row.repetition_penalty);
    count = DONE;
  }
  for (int i = 0; i < row.generated_count; i++) counts[row.generated[i]] = 0;
  for (int i = 0; i < row.prompt_count; i++) counts[row.prompt[i]] = 0;
}

// Applies penalties, bias and mask. Whether there were any.
INLINE bool change(float* values, int32_t vocab, const SamplerRow& row, int32_t* counts) {
  const bool penalised = row.generated_count > 0 || row.prompt_count > 0;
  if (penalised) penalise(values, row, counts);
  for (int i = 0; i < row.bias_count; i++) {
    float& value = values[row.bias_ids[i]];
    value = (float)((double)value + row.biases[i]);
  }
  if (row.mask)
    for (int start = 0; start < vocab; start += 32) {
      const uint32_t allowed = row.mask[start / 32];
      // the values are padded with -inf to whole blocks, so a last word may go on past the vocabulary
      for (int bit = 0; bit < 32; bit++) {
        const float value = values[start + bit];
        values[start + bit] = allowed >> bit & 1 ? value : -INFINITE;
      }
    }
  return penalised || row.bias_count > 0 || row.mask;
}

// The sum of the lanes in float64, halves first.
INLINE double wide_sum(const double* lanes) {
  double v[LANES];
  memcpy(v, lanes, sizeof v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

// The sum of a block of weights: its vectors by a tree in float32, then the lanes in float64.
INLINE double block_sum(const F* weights) {
  F v[BLOCK_VECTORS];
  for (int j = 0; j < BLOCK_VECTORS; j++) v[j] = weights[j];
  for (int half = BLOCK_VECTORS / 2; half; half /= 2)
    for (int j = 0; j < half; j++) v[j] = add(v[j], v[j + half]);
  float narrow[LANES];
  store(narrow, v[0]);
  double lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = narrow[i];
  return wide_sum(lanes);
}

// weights: e ** ((value - most) * scale), 0 for values below `floor`; sums: that of each block. Returns the whole sum.
INLINE double weigh(const float* values, int size, float most, float scale, float floor, float* weights, double* sums) {
  double whole = 0.0;
  for (int start = 0; start < size; start += BLOCK) {
    F w[BLOCK_VECTORS];
    for (int j = 0; j < BLOCK_VECTORS; j++) {
      const F x = load(values + start + j * LANES);
      w[j] = select(less(x, all(floor)), all(0.0f), exp(mul(sub(x, all(most)), all(scale))));
      store(weights + start + j * LANES, w[j]);
    }
    whole += sums[start / BLOCK] = block_sum(w);
  }
  return whole;
}

// Makes the weights of values below `floor` 0, and the sums new. Returns the whole sum.
INLINE double drop_below(const float* values, int size, float floor, float* weights, double* sums) {
  double whole = 0.0;
  for (int start = 0; start < size; start += BLOCK) {
    F w[BLOCK_VECTORS];
    for (int j = 0; j < BLOCK_VECTORS; j++) {
      const int i = start + j * LANES;
      w[j] = select(less(load(values + i), all(floor)), all(0.0f), load(weights + i));
      store(weights + i, w[j]);
    }
    whole += sums[start / BLOCK] = block_sum(w);
  }
  return whole;
}

// A null `weights` means 1 for each value.
INLINE F weight_at(const float* weights, int i) { return weights ? load(weights + i) : all(1.0f); }

struct Candidate {
  float value, weight;
};

// Collects the values in [low, high). Returns how many there are, or CANDIDATES + 1 as soon as they are too many.
INLINE int collect(const float* values, const float* weights, int size, float low, float high, Candidate* candidates) {
  int count = 0;
  for (int i = 0; i < size; i += LANES) {
    const F x = load(values + i);
    for (uint32_t inside = bits(less(x, all(high))) & ~bits(less(x, all(low))); inside; inside &= inside - 1) {
      if (count == CANDIDATES) return CANDIDATES + 1;
      const int at = i + __builtin_ctz(inside);
      candidates[count++] = {values[at], weights ? weights[at] : 1.0f};
    }
  }
  return count;
}

// Goes through the candidates from the largest down: the first at which the sum, `above` to begin with, reaches target.
INLINE float settle(Candidate* candidates, int count, double above, double target) {
  for (int i = 1; i < count; i++) {
    const Candidate moved = candidates[i];
    int at = i;
    for (; at > 0 && candidates[at - 1].value < moved.value; at--) candidates[at] = candidates[at - 1];
    candidates[at] = moved;
  }
  int last = 0;
  for (double sum = above + candidates[0].weight; sum < target && last < count - 1; sum += candidates[last].weight)
    last++;
  return candidates[last].value;
}

struct Range {
  float least, most;
};

// The smallest and the largest of the values in [low, high), of which there are some.
INLINE Range range_within(const float* values, int size, float low, float high) {
  F least = all(INFINITE), most = all(-INFINITE);
  for (int i = 0; i < size; i += LANES) {
    const F x = load(values + i);
    // what is `high` or more is more than the least, and what is below `low` less than the most
    least = min(select(less(x, all(low)), all(INFINITE), x), least);
    most = max(select(less(x, all(high)), x, all(-INFINITE)), most);
  }
  return {-largest(sub(all(0.0f), least)), largest(most)};
}

// For each bound: the sum of the weights of the values from it up.
INLINE void sums_from(const float* values, const float* weights, int size, const float* bounds, double* sums) {
  double lanes[PARTS][LANES] = {};
  for (int start = 0; start < size; start += BLOCK) {
    F block[PARTS];
    for (int p = 0; p < PARTS; p++) block[p] = all(0.0f);
    for (int i = start; i < start + BLOCK; i += LANES) {
      const F x = load(values + i), w = weight_at(weights, i);
      for (int p = 0; p < PARTS; p++) block[p] = add(block[p], select(less(x, all(bounds[p])), all(0.0f), w));
    }
    for (int p = 0; p < PARTS; p++) {
      float narrow[LANES];
      store(narrow, block[p]);
      for (int i = 0; i < LANES; i++) lanes[p][i] += narrow[i];
    }
  }
  for (int p = 0; p < PARTS; p++) sums[p] = wide_sum(lanes[p]);
}

// The largest value such that the weights of the values from it up sum to `target`; if all from `low` (finite) up are
// not enough, the least of those. A null `weights` counts the values.
//
// The answer is in [low, high), of which PARTS bounds leave one part each time, until what is left can be sorted.
INLINE float reach(const float* values, const float* weights, int size, float low, double target) {
  float high = INFINITE;
  double above = 0.0;  // the sum from `high` up
  for (;;) {
    Candidate candidates[CANDIDATES];
    const int count = collect(values, weights, size, low, high, candidates);
    if (count <= CANDIDATES) return settle(candidates, count, above, target);
    const Range range = range_within(values, size, low, high);
    float bounds[PARTS];
    double sums[PARTS];
    const double width = (double)range.most - range.least;
    for (int p = 0; p < PARTS - 1; p++) bounds[p] = (float)(range.least + width * (p + 1) / PARTS);
    bounds[PARTS - 1] = range.most;
    sums_from(values, weights, size, bounds, sums);
    int reached = PARTS - 1;  // the sums fall from each bound to the next, the rounded ones too
    while (reached >= 0 && sums[reached] < target) reached--;
    if (reached == PARTS - 1) return range.most;
    low = reached < 0 ? range.least : bounds[reached];
    high = bounds[reached + 1];
    above = sums[reached + 1];
    if (low == high) return low;
  }
}

// The smallest float that is not less.
INLINE float round_up(double x) {
  const float near = (float)x;
  if (!(near < x)) return near;
  int32_t word;
  memcpy(&word, &near, sizeof word);
  word = near == 0.0f ? 1 : near > 0.0f ? word + 1 : word - 1;
  float next;
  memcpy(&next, &word, sizeof next);
  return next;
}

INLINE float round_down(double x) { return -round_up(-x); }

// Inverts the cumulative distribution in vocabulary order. Some weight is above 0.
INLINE int pick(const float* weights, const double* sums, double whole, double u) {
  // u is at most 1 - 2 ** -53, so u * whole rounds to less than whole and a block is found
  const double target = u * whole;
  double running = 0.0;
  int block = 0;
  while (running + sums[block] <= target) running += sums[block++];
  int token = -1;
  for (int i = block * BLOCK; i < (block + 1) * BLOCK && running <= target; i++)
    if (weights[i] > 0.0f) {
      running += weights[i];
      token = i;  // the last one, if the sum of the block was rounded up
    }
  return token;
}

INLINE int draw(const float* values, int32_t vocab, float most, const SamplerRow& row, float* weights, double* sums) {
  if (row.temperature == 0.0) return first_at(values, most);
  const int size = whole_blocks(vocab);
  // within float32, so that neither 0 * inf nor inf * 0 can arise
  const double temperature = row.temperature < 1e-38 ? 1e-38 : row.temperature > 1e38 ? 1e38 : row.temperature;
  // what is further down has weight 0
  const double bottom = most - 87.5 * temperature;
  float floor = bottom < -LARGEST_FLOAT ? -LARGEST_FLOAT : round_down(bottom);
  if (row.min_p > 0.0) {
    const float least = round_up(most + temperature * __builtin_log(row.min_p));
    floor = least > floor ? least : floor;
  }
  if (0 < row.top_k && row.top_k < vocab) floor = reach(values, nullptr, size, floor, row.top_k);
  double whole = weigh(values, size, most, (float)(1.0 / temperature), floor, weights, sums);
  if (row.top_p < 1.0) {
    // tokens of less than this weight can't make up the rest, not even all together; less 1% for rounding
    const float spare = round_down(most + temperature * __builtin_log((1.0 - row.top_p) * whole / size * 0.99));
    floor = spare > floor ? spare : floor;
    floor = reach(values, weights, size, floor, row.top_p * whole);
    whole = drop_below(values, size, floor, weights, sums);
  }
  return pick(weights, sums, whole, uniform(row.seed, row.counter));
}

// The most likely of `vocab` tokens, of equal ones the lower id first; count: vocab at most.
INLINE void most_likely(const float* values, int32_t vocab, double log_whole, int32_t count, int32_t* ids,
                        double* scores) {
  if (count <= 0) return;
  for (int i = 0; i < count; i++) ids[i] = -1, scores[i] = -INFINITE;
  for (int i = 0; i < vocab; i += LANES)
    for (uint32_t better = bits(less(all((float)scores[count - 1]), load(values + i))); better; better &= better - 1) {
      const int id = i + __builtin_ctz(better);
      const double score = values[id];
      int at = count - 1;
      if (score <= scores[at]) continue;  // it was better than the last one before this vector
      for (; at > 0 && scores[at - 1] < score; at--) scores[at] = scores[at - 1], ids[at] = ids[at - 1];
      scores[at] = score;
      ids[at] = id;
    }
  int found = 0;
  while (found < count && ids[found] >= 0) found++;
  for (int id = 0; found < count; id++)
    if (!(values[id] > -INFINITE)) ids[found++] = id;
  for (int i = 0; i < count; i++) scores[i] -= log_whole;
}

// Draws one token, or scores one.
//
// logits: [vocab]. scratch: sampler_scratch(vocab) floats, aligned to 8 bytes. counts: [vocab], all 0 before and after;
// null if the row has no penalties. alternative_ids and alternative_log_probabilities: [row.alternatives], from the
// most likely token down, of equal ones the lower id first. They mean nothing if the logits are NOT_FINITE.
inline void sample(const float* logits, int32_t vocab, const SamplerRow& row, float* scratch, int32_t* counts,
                   Drawn* drawn, int32_t* alternative_ids, double* alternative_log_probabilities) {
  const int size = whole_blocks(vocab);
  double* sums = (double*)scratch;
  float* values = scratch + size / BLOCK * 2;
  float* weights = values + size;
  memcpy(values, logits, (size_t)vocab * sizeof(float));
  for (int i = vocab; i < size; i++) values[i] = -INFINITE;

  *drawn = {-1, DrawStatus::NOT_FINITE, 0.0};
  float most = peak(values, size);
  if (!(most > -INFINITE)) return;  // so that NaN is refused
  double log_whole = 0.0;
  if (row.wants_log_probability || row.alternatives > 0) {
    log_whole = most + __builtin_log(weigh(values, size, most, 1.0f, -INFINITE, weights, sums));
    most_likely(values, vocab, log_whole, row.alternatives, alternative_ids, alternative_log_probabilities);
  }
  int token = row.target;
  if (token < 0) {
    if (change(values, vocab, row, counts)) most = peak(values, size);
    drawn->status = DrawStatus::NOTHING_LEFT;
    if (!(most > -INFINITE)) return;
    token = draw(values, vocab, most, row, weights, sums);
  }
  *drawn = {token, DrawStatus::FINE, row.wants_log_probability ? logits[token] - log_whole : 0.0};
}

}  // namespace LEVEL
}  // namespace trioserve
