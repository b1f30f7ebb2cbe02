// What comes out of a step: tokens drawn or scored, and hidden states.
//
// Owns: which entries of a step's arrays are a row's. Must not know: how logits are made, or how one is drawn.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "decoder.h"

namespace trioserve {

namespace {

// Whether `starts` cuts `total` items into `count` parts.
bool cuts(const int32_t* starts, int count, int total) {
  return starts[0] == 0 && starts[count] == total && std::is_sorted(starts, starts + count + 1);
}

bool within(const int32_t* values, int count, int first, int end) {
  return std::all_of(values, values + count, [=](int32_t v) { return v >= first && v < end; });
}

bool is_valid_change(const Changes& changes, int row_count, int vocab) {
  return within(changes.rows, changes.count, 0, row_count) &&
         std::is_sorted(changes.rows, changes.rows + changes.count) &&
         cuts(changes.generated_starts, changes.count, changes.generated_count) &&
         cuts(changes.prompt_starts, changes.count, changes.prompt_count) &&
         cuts(changes.bias_starts, changes.count, changes.bias_count) &&
         within(changes.generated, changes.generated_count, 0, vocab) &&
         within(changes.prompts, changes.prompt_count, 0, vocab) &&
         within(changes.bias_ids, changes.bias_count, 0, vocab) &&
         within(changes.mask_indices, changes.count, -1, changes.mask_count);
}

void apply(const Changes& changes, int row, int vocab, SamplerRow& how) {
  const int32_t* found = std::lower_bound(changes.rows, changes.rows + changes.count, row);
  const int c = (int)(found - changes.rows);
  if (c == changes.count || *found != row) return;
  how.presence_penalty = changes.presence_penalties[c];
  how.frequency_penalty = changes.frequency_penalties[c];
  how.repetition_penalty = changes.repetition_penalties[c];
  how.generated = changes.generated + changes.generated_starts[c];
  how.generated_count = changes.generated_starts[c + 1] - changes.generated_starts[c];
  how.prompt = changes.prompts + changes.prompt_starts[c];
  how.prompt_count = changes.prompt_starts[c + 1] - changes.prompt_starts[c];
  how.bias_ids = changes.bias_ids + changes.bias_starts[c];
  how.biases = changes.biases + changes.bias_starts[c];
  how.bias_count = changes.bias_starts[c + 1] - changes.bias_starts[c];
  const int mask = changes.mask_indices[c];
  if (mask >= 0) how.mask = changes.masks + (size_t)mask * (size_t)((vocab + 31) / 32);
}

}  // namespace

// As is_valid, for what is wanted of the tokens.
bool Decoder::has_valid_rows(const Step& step) const {
  const int vocab = spec_.vocab_size;
  if (!within(step.row_tokens, step.row_count, 0, step.token_count) ||
      !within(step.hidden_tokens, step.hidden_count, 0, step.token_count))
    return false;
  if (step.targets && !within(step.targets, step.row_count, -1, vocab)) return false;
  return !step.changes || is_valid_change(*step.changes, step.row_count, vocab);
}

void Decoder::draw_row(const Step& step, int row, const float* logits, int member) {
  SamplerRow how{};
  how.seed = step.seeds[row];
  how.counter = step.counters[row];
  how.temperature = step.temperatures[row];
  how.top_p = step.top_ps[row];
  how.min_p = step.min_ps[row];
  how.top_k = step.top_ks[row];
  how.wants_log_probability = step.wants_log_probability[row];
  const int top = step.top_starts ? step.top_starts[row] : 0;
  how.alternatives = step.top_starts ? step.top_starts[row + 1] - top : 0;
  if (step.targets) how.target = step.targets[row];
  if (step.changes) apply(*step.changes, row, spec_.vocab_size, how);
  Own& own = *own_[(size_t)member];
  Drawn drawn;
  level_.sample(logits, spec_.vocab_size, how, own.scratch.as<float>(), own.counts.as<int32_t>(), &drawn,
                step.top_ids + top, step.top_log_probabilities + top);
  if (drawn.status == DrawStatus::NOT_FINITE) no_token_.store(true, std::memory_order_relaxed);
  step.drawn[row] = drawn.token;
  const double log_probability = drawn.status == DrawStatus::NOTHING_LEFT ? -INFINITY : drawn.log_probability;
  step.log_probabilities[row] = how.wants_log_probability ? log_probability : NAN;
  if (step.logits)
    memcpy(step.logits + (size_t)row * spec_.vocab_size, logits, (size_t)spec_.vocab_size * sizeof(float));
}

void Decoder::give_hidden(const Step& step, int member) {
  if (!step.hidden_count) return;
  team_.share(member, step.hidden_count, [&](int i) {
    float* normed = own_[(size_t)member]->row.as<float>();
    level_.rms_norm(hidden(step.hidden_tokens[i]), weights_.final_norm.data(), spec_.embedding_dim, spec_.norm_eps,
                    normed);
    memcpy(step.hidden + (size_t)i * spec_.embedding_dim, normed, (size_t)spec_.embedding_dim * sizeof(float));
  });
}

}  // namespace trioserve
