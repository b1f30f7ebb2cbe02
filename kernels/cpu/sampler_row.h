// What one row of logits is drawn with, and what comes out: plain data, the same for all levels and across the C ABI.
#pragma once

#include <cstdint>

namespace trioserve {

// All ids are in 0 to vocab - 1, and each occurs once in its list.
struct SamplerRow {
  // key and counter of the random number
  uint64_t seed, counter;
  // 0 is greedy. top_p 1, min_p 0 and top_k 0 (or less) keep all.
  double temperature, top_p, min_p;
  int32_t top_k;
  int32_t wants_log_probability;
  // how many of the most likely tokens to report with their log-probabilities
  int32_t alternatives;

  // What changes the logits, in the order in which it is applied. The log-probabilities are of the logits before it.
  // Tokens generated so far and how often: logit -= presence_penalty + frequency_penalty * count.
  const int32_t* counted_ids;
  const int32_t* counts;
  int32_t counted;
  // Tokens of the prompt and of the answer: a positive logit is divided by repetition_penalty, any other multiplied.
  const int32_t* seen_ids;
  int32_t seen;
  // 0, 0, 1: off
  double presence_penalty, frequency_penalty, repetition_penalty;
  // logit += bias
  const int32_t* bias_ids;
  const float* biases;
  int32_t biased;
  // bit i % 32 of word i / 32: token i is allowed; null: all are
  const uint32_t* mask;
};

struct Drawn {
  // -1 if none could be drawn
  int32_t token;
  // 0: fine; 1: the logits have no finite maximum (one is NaN or +inf, or nothing is left to draw from)
  int32_t status;
  // 0 if it wasn't wanted or there is no token
  double log_probability;
};

}  // namespace trioserve
