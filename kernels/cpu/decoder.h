// The forward pass of a decoder: a step's tokens in, tokens drawn out.
//
// Owns: the order of the work, the pages of keys and values, the activations. Must not know: instruction sets, and how
// a step was chosen.
//
// All members of the team run forward() side by side. Between two barriers they share out panels of weights, rows, or
// heads. What a token's numbers are does not depend on who computed them, nor on the other tokens: every function of a
// level gives a row the same bits in any company.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gate.h"
#include "level.h"
#include "memory.h"
#include "pool.h"
#include "weights.h"

namespace trioserve {

// How the logits of some rows are changed; the arrays are those of ChangeArrays in the Python package.
struct Changes {
  int32_t count, generated_count, prompt_count, bias_count, mask_count;
  const int32_t* rows;
  const double *presence_penalties, *frequency_penalties, *repetition_penalties;
  const int32_t *generated, *generated_starts, *prompts, *prompt_starts, *bias_ids, *bias_starts;
  const double* biases;
  // [count] which of the masks, [mask_count][(vocab_size + 31) / 32]; -1: none
  const int32_t* mask_indices;
  const uint32_t* masks;
  // what Decoder::masks_filled is told once the masks are there; they may be filled while the step runs
  int64_t mask_ticket;
};

// One step; the arrays are those of StepPlan in the Python package.
struct Step {
  int32_t copy_count, span_count, token_count, group_count, row_count, page_entry_count;
  const int32_t *copies, *tokens, *positions, *starts, *pages, *page_starts, *shared;
  const int32_t* row_tokens;
  const uint64_t *seeds, *counters;
  const double *temperatures, *top_ps, *min_ps;
  const int32_t *top_ks, *wants_log_probability;
  // null: all rows draw
  const int32_t* targets;
  // [row_count + 1]: row r wants the likeliest tokens, [top_starts[r], top_starts[r + 1]) of top_ids; null: none does.
  // Not checked: whoever gives room for the results counts them.
  const int32_t* top_starts;
  // null: none
  const Changes* changes;
  int32_t hidden_count;
  const int32_t* hidden_tokens;
  // results, [row_count]; logits [row_count][vocab_size] are given out only for a pointer that is not null
  int32_t* drawn;
  double* log_probabilities;
  int32_t* top_ids;
  double* top_log_probabilities;
  float* hidden;  // [hidden_count][embedding_dim]
  float* logits;
};

enum class Outcome : int32_t {
  DONE = 0,
  INTERRUPTED = 1,
  NO_TOKEN = 2,  // the logits of a row have no finite maximum
  NO_MEMORY = 3,
  BAD_STEP = 4,  // an id or a position is out of range; nothing was computed
  NO_MASKS = 5,
};

class Decoder {
 public:
  // `frequencies`: [rope_dim / 2], radians per position. Throws std::bad_alloc.
  Decoder(const Spec& spec, const double* frequencies, const uint8_t* has_window, int page_count, KvType kv_type,
          int threads, const Level& level);

  // Whether the kernels are made for heads of this shape.
  static bool supports(const Spec& spec);

  Weights& weights() { return weights_; }
  Team& team() { return team_; }

  // Throws std::bad_alloc.
  Outcome run(const Step& step);
  // May be called from any thread; for good.
  void interrupt() {
    interrupted_.store(true, std::memory_order_relaxed);
    masks_.shut();
  }
  // May be called from any thread: the masks of a step are there, or will never be.
  void masks_filled(int64_t ticket, bool ok) { masks_.tell(ticket, ok); }

 private:
  struct Tiles {
    Buffer values, summaries;
  };
  // Queries of a few tokens that are computed together, since they read the same pages up to `shared_chunks`.
  struct Block {
    int first, count, shared_chunks, stretches;
  };
  struct Own {  // what each member has for itself
    Buffer row, states, scratch, counts;
    Tiles tiles;
  };

  bool is_valid(const Step& step) const;
  bool has_valid_rows(const Step& step) const;
  void reserve(const Step& step);
  void plan_blocks(const Step& step, int first, int count);
  void copy_pages(const Step& step);
  void forward(const Step& step, int member);
  void embed(const Step& step, int member);
  void keys_and_values(const LayerWeights& weights, int index, int member);
  void attention(const LayerWeights& weights, int index, int member);
  const float* attended(int row, float* out) const;
  void feed_forward(const LayerWeights& weights, int member);
  void draw(const Step& step, int member);
  void draw_row(const Step& step, int row, const float* logits, int member);
  void give_hidden(const Step& step, int member);

  template <class Source>
  class Quantised;
  template <class Source>
  void add_product(const Matrix& matrix, const Vector& bias, Quantised<Source>& tiles, int member);
  template <class Each>
  void for_each_tile(const Tiles& tiles, int columns, int groups, Each each) const;
  template <class Take>
  void multiply(const Matrix& matrix, int first_panel, int panels, const Tiles& tiles, int columns, Take take) const;

  uint8_t* layer_pages(int index) const {
    return pages_.as<uint8_t>() + page_bytes_ * (size_t)page_count_ * (size_t)index;
  }
  float* hidden(int row) const { return x_.as<float>() + (size_t)row * x_stride_; }
  AttentionShape attention_shape(const LayerWeights& weights) const;

  const Level& level_;
  Team team_;
  Weights weights_;
  const Spec& spec_;
  const int page_count_;
  const KvType kv_type_;
  const size_t page_bytes_;
  const int x_stride_, q_stride_, h_stride_, logits_stride_;
  std::vector<double> frequencies_;
  Buffer pages_, x_, q_, mixed_, h_, partials_, angles_, logits_;
  Tiles tiles_;
  std::vector<std::unique_ptr<Own>> own_;
  // of the piece of the step that is being computed
  int piece_first_ = 0, piece_count_ = 0, most_stretches_ = 0, most_queries_ = 0;
  bool split_ = false;
  std::vector<AttentionRow> rows_;
  std::vector<Block> blocks_;
  std::vector<int> block_of_row_;
  std::vector<int> span_of_token_;
  std::vector<int> wanted_;      // tokens whose logits are wanted, in order
  std::vector<int> first_draw_;  // of each of them, and one more at the end
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> no_token_{false};
  std::atomic<bool> no_masks_{false};
  Gate masks_;
};

}  // namespace trioserve
