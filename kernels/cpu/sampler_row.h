// What one row of logits is drawn with, and what comes out: plain data, the same for all levels and across the C ABI.
#pragma once

#include <cstdint>

namespace trioserve {

// All ids are in 0 to vocab - 1.
struct SamplerRow {
  // key and counter of the random number
  uint64_t seed, counter;
  // 0 is greedy. top_p 1, min_p 0 and top_k 0 (or less) keep all.
  double temperature, top_p, min_p;
  int32_t top_k;
  int32_t wants_log_probability;
  // how many of the most likely tokens to report with their log-probabilities, vocab at most
  int32_t alternatives;
  // the token to score instead of drawing one; -1: draw
  int32_t target = -1;

  // What changes the logits, in the order in which it is applied. The log-probabilities are of the logits before it.
  // Tokens generated so far, each as often as it was: logit -= presence_penalty + frequency_penalty * how often.
  const int32_t* generated;
  int32_t generated_count;
  // Those and the tokens of the prompt: a positive logit is divided by repetition_penalty, any other multiplied.
  int32_t prompt_count;
  const int32_t* prompt;
  // 0, 0, 1: off
  double presence_penalty, frequency_penalty, repetition_penalty = 1.0;
  // logit += bias; each id once
  const int32_t* bias_ids;
  const double* biases;
  int32_t bias_count;
  // bit i % 32 of word i / 32: token i is allowed; null: all are
  const uint32_t* mask;
};

enum class DrawStatus : int32_t {
  FINE = 0,
  // the logits have no finite maximum: one is NaN or +inf, or all are -inf
  NOT_FINITE = 1,
  // the changed logits have none, most likely because all tokens are excluded; alternatives are reported all the same
  NOTHING_LEFT = 2,
};

struct Drawn {
  // -1 if the status isn't FINE
  int32_t token;
  DrawStatus status;
  // 0 if it wasn't wanted or there is no token
  double log_probability;
};

}  // namespace trioserve
