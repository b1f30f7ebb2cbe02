// What a step is cut into before it is computed.
//
// Owns: the check of a step, the order of its rows, and the blocks of attention. Must not know: weights, arithmetic.

#include <algorithm>
#include <climits>
#include <cstring>

#include "decoder.h"

namespace trioserve {

// Whatever numbers are in a step's arrays, no memory but the decoder's own is touched, and no page is read for
// another's.
bool Decoder::is_valid(const Step& step) const {
  const auto within = [](const int32_t* values, int count, int end) {
    return std::all_of(values, values + count, [&](int32_t v) { return v >= 0 && v < end; });
  };
  if (!within(step.copies, 2 * step.copy_count, page_count_) ||
      !within(step.tokens, step.token_count, spec_.vocab_size) || !has_valid_rows(step) || step.starts[0] != 0 ||
      step.page_starts[0] != 0 || step.starts[step.span_count] != step.token_count ||
      step.page_starts[step.span_count] != step.page_entry_count)
    return false;
  for (int s = 0; s < step.span_count; s++) {
    const int start = step.starts[s], count = step.starts[s + 1] - start;
    const int first_page = step.page_starts[s], pages = step.page_starts[s + 1] - first_page;
    if (count < 1 || step.starts[s + 1] > step.token_count || pages < 1 || pages > page_count_ ||
        step.page_starts[s + 1] > step.page_entry_count || !within(step.positions + start, count, pages * PAGE) ||
        !within(step.pages + first_page, pages, page_count_))
      return false;
  }
  for (int g = 0; g < step.group_count; g++) {
    const int first = step.shared[3 * g], count = step.shared[3 * g + 1], pages = step.shared[3 * g + 2];
    if (first < 0 || count < 0 || pages < 0 || first > step.span_count - count) return false;
    for (int s = first; s < first + count; s++) {
      const int32_t *table = step.pages + step.page_starts[s], *shared = step.pages + step.page_starts[first];
      if (step.page_starts[s + 1] - step.page_starts[s] < pages || !std::equal(table, table + pages, shared))
        return false;
    }
  }
  return true;
}

void Decoder::reserve(const Step& step) {
  x_.reserve((size_t)step.token_count * x_stride_ * sizeof(float));
  span_of_token_.resize((size_t)step.token_count);
  for (int s = 0; s < step.span_count; s++)
    for (int t = step.starts[s]; t < step.starts[s + 1]; t++) span_of_token_[(size_t)t] = s;
  wanted_.clear();
  first_draw_.clear();
  for (int r = 0; r < step.row_count; r++)
    if (wanted_.empty() || wanted_.back() != step.row_tokens[r]) {
      wanted_.push_back(step.row_tokens[r]);
      first_draw_.push_back(r);
    }
  first_draw_.push_back(step.row_count);
}

void Decoder::copy_pages(const Step& step) {
  for (int c = 0; c < step.copy_count; c++)
    for (int l = 0; l < spec_.layers; l++) {
      uint8_t* pages = layer_pages(l);
      memcpy(pages + page_bytes_ * (size_t)step.copies[2 * c + 1], pages + page_bytes_ * (size_t)step.copies[2 * c],
             page_bytes_);
    }
}

// Cut the tokens [first, first + count) into blocks: tokens of one span, or spans of a group with shared pages.
void Decoder::plan_blocks(const Step& step, int first, int count) {
  piece_first_ = first;
  piece_count_ = count;
  rows_.clear();
  blocks_.clear();
  block_of_row_.clear();
  most_stretches_ = 1;
  const int per_row = spec_.heads / spec_.kv_heads, most_rows = std::max(1, BLOCK_QUERIES / per_row);
  std::vector<std::pair<int, int>> group_of_span((size_t)step.span_count, {-1, 0});
  for (int g = 0; g < step.group_count; g++)
    for (int s = 0; s < step.shared[3 * g + 1]; s++)
      group_of_span[(size_t)(step.shared[3 * g] + s)] = {g, step.shared[3 * g + 2]};
  int last_span = -1;
  for (int i = 0; i < count; i++) {
    const int t = first + i, span = span_of_token_[(size_t)t];
    const int position = step.positions[t];
    rows_.push_back({q_.as<float>() + (size_t)i * q_stride_, step.pages + step.page_starts[span], position});
    const auto [group, shared_pages] = group_of_span[(size_t)span];
    const bool same_span = span == last_span;
    const bool same_group = last_span >= 0 && group >= 0 && group_of_span[(size_t)last_span].first == group;
    if (blocks_.empty() || blocks_.back().count == most_rows || !(same_span || same_group))
      blocks_.push_back({i, 0, INT32_MAX, 1});
    Block& block = blocks_.back();
    if (block.count && !same_span) block.shared_chunks = std::min(block.shared_chunks, shared_pages / CHUNK_PAGES);
    block.count++;
    block.stretches = std::max(block.stretches, position / STRETCH_TOKENS + 1);
    most_stretches_ = std::max(most_stretches_, block.stretches);
    block_of_row_.push_back((int)blocks_.size() - 1);
    last_span = span;
  }
  // too few items to keep all members busy: cut them further
  split_ = most_stretches_ > 1 && (int)blocks_.size() * spec_.kv_heads < 8 * team_.members();
  if (split_) {
    most_queries_ = 0;
    for (const Block& block : blocks_) most_queries_ = std::max(most_queries_, block.count * per_row);
    const size_t state = (size_t)(STATE_HEAD + spec_.head_dim) * (size_t)most_queries_;
    partials_.reserve(blocks_.size() * (size_t)spec_.kv_heads * (size_t)most_stretches_ * state * sizeof(float));
  }
}

}  // namespace trioserve
