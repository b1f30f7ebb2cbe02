#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "floats.h"

namespace trioserve {

namespace {

// Tokens that go through the layers together: so many that weights are read seldom, so few that their activations
// stay in the second-level cache.
constexpr int PIECE = 256;
// Up to this many rows, every member quantises all of them for itself: that takes less time than to share them.
constexpr int FEW_ROWS = 12;
// Rows of logits in memory at a time.
constexpr int LOGIT_ROWS = 64;
constexpr int HEAD_PANELS_AT_ONCE = 4;

int padded(int width) { return groups_of(width) * GROUP; }

}  // namespace

Decoder::Decoder(const Spec& spec, const double* frequencies, const uint8_t* has_window, int page_count, KvType kv_type,
                 int threads, const Level& level)
    : level_(level),
      team_(threads),
      weights_(spec),
      spec_(weights_.spec),
      page_count_(page_count),
      kv_type_(kv_type),
      page_bytes_(page_bytes(kv_type, spec.kv_heads, spec.head_dim)),
      x_stride_(padded(spec.embedding_dim)),
      q_stride_(padded(spec.heads * spec.head_dim)),
      h_stride_(padded(spec.feed_forward_dim)),
      logits_stride_(panels_of(spec.vocab_size) * PANEL),
      frequencies_(frequencies, frequencies + spec.rope_dim / 2),
      pages_(page_bytes_ * (size_t)page_count * (size_t)spec.layers),
      q_((size_t)PIECE * q_stride_ * sizeof(float)),
      mixed_((size_t)PIECE * q_stride_ * sizeof(float)),
      h_((size_t)PIECE * h_stride_ * sizeof(float)),
      angles_((size_t)PIECE * spec.rope_dim * sizeof(float)),
      logits_((size_t)LOGIT_ROWS * logits_stride_ * sizeof(float)) {
  for (int i = 0; i < spec.layers; i++) weights_.layers[(size_t)i].has_window = has_window[i];
  const int widest = std::max({x_stride_, q_stride_, h_stride_});
  const auto tiles = [&](int columns) {
    return Tiles{Buffer((size_t)columns * widest),
                 Buffer((size_t)columns * (widest / GROUP) * SUMMARIES * sizeof(float))};
  };
  tiles_ = tiles(PIECE);
  const size_t state_floats = (size_t)(STATE_HEAD + spec.head_dim) * MOST_QUERIES;
  for (int i = 0; i < threads; i++) {
    own_.push_back(std::make_unique<Own>());
    own_.back()->row = Buffer((size_t)widest * sizeof(float));
    own_.back()->states = Buffer(2 * state_floats * sizeof(float));
    own_.back()->tiles = tiles(FEW_ROWS);
    own_.back()->scratch = Buffer((size_t)level.sampler_scratch(spec.vocab_size) * sizeof(float));
    own_.back()->counts = Buffer((size_t)spec.vocab_size * sizeof(int32_t));
  }
}

bool Decoder::supports(const Spec& spec) {
  return spec.head_dim % PANEL == 0 && spec.head_dim <= MOST_HEAD_DIM && spec.kv_heads > 0 &&
         spec.heads % spec.kv_heads == 0 && spec.heads / spec.kv_heads <= MOST_QUERIES;
}

Outcome Decoder::run(const Step& step) {
  if (interrupted_.load(std::memory_order_relaxed)) return Outcome::INTERRUPTED;
  if (!is_valid(step)) return Outcome::BAD_STEP;
  reserve(step);
  no_token_.store(false, std::memory_order_relaxed);
  no_masks_.store(false, std::memory_order_relaxed);
  copy_pages(step);
  // embed(); nine in a layer at most; give_hidden(); three in draw() for each batch of logits
  const int shares = 2 + 9 * spec_.layers + 3 * ((int)wanted_.size() / LOGIT_ROWS + 1);
  for (int first = 0; first < step.token_count; first += PIECE) {
    plan_blocks(step, first, std::min(PIECE, step.token_count - first));
    team_.run(shares, [&](int member) { forward(step, member); });
    if (interrupted_.load(std::memory_order_relaxed)) return Outcome::INTERRUPTED;
  }
  if (no_masks_.load(std::memory_order_relaxed)) return Outcome::NO_MASKS;
  return no_token_.load(std::memory_order_relaxed) ? Outcome::NO_TOKEN : Outcome::DONE;
}

void Decoder::forward(const Step& step, int member) {
  const StrictFloats strict;
  embed(step, member);
  for (int i = 0; i < spec_.layers; i++) {
    // Each member may see it at another time. Those that go on do the work of those that left.
    if (interrupted_.load(std::memory_order_relaxed)) return;
    const LayerWeights& weights = weights_.layers[(size_t)i];
    keys_and_values(weights, i, member);
    attention(weights, i, member);
    feed_forward(weights, member);
  }
  if (piece_first_ + piece_count_ < step.token_count) return;
  give_hidden(step, member);
  draw(step, member);
}

void Decoder::embed(const Step& step, int member) {
  const int half = spec_.rope_dim / 2;
  team_.share(member, piece_count_, [&](int row) {
    const int t = piece_first_ + row;
    float* x = hidden(t);
    weights_.embed(step.tokens[t], x);
    for (int i = 0; i < spec_.embedding_dim; i++) x[i] *= spec_.embedding_scale;
    // what is not finite in a row gets into its padding too, and must not stay there for the next row in this place
    for (int i = spec_.embedding_dim; i < x_stride_; i++) x[i] = 0.0f;
    float* angles = angles_.as<float>() + (size_t)row * spec_.rope_dim;
    for (int i = 0; i < half; i++) {
      const double angle = (double)step.positions[t] * frequencies_[(size_t)i];
      angles[i] = (float)std::cos(angle);
      angles[half + i] = (float)std::sin(angle);
    }
  });
}

// The rows of a product, quantised. source(row, scratch) gives a row, padded; it may use the scratch.
template <class Source>
class Decoder::Quantised {
 public:
  // Many rows are shared out now. Of few rows each member makes tiles of its own, when it gets an item that needs them:
  // that takes less time than to share them.
  Quantised(Decoder& decoder, int columns, int groups, int member, Source source)
      : decoder_(decoder), columns_(columns), groups_(groups), member_(member), source_(source) {
    if (columns <= FEW_ROWS) return;
    decoder.team_.share(member, columns, [&](int row) { quantise(row, decoder.tiles_); });
    tiles_ = &decoder.tiles_;
  }

  const Tiles& tiles() {
    if (!tiles_) {
      Tiles& own = decoder_.own_[(size_t)member_]->tiles;
      for (int row = 0; row < columns_; row++) quantise(row, own);
      tiles_ = &own;
    }
    return *tiles_;
  }

 private:
  void quantise(int row, Tiles& tiles) {
    const Tiling tiling(columns_, decoder_.level_.widest_tile);
    const int tile = tiling.tile_of(row), start = tiling.start(tile);
    decoder_.level_.quantise(source_(row, decoder_.own_[(size_t)member_]->row.as<float>()), groups_, row - start,
                             tiling.width(tile), tiles.values.as<int8_t>() + (size_t)start * groups_ * GROUP,
                             tiles.summaries.as<float>() + (size_t)start * groups_ * SUMMARIES);
  }

  Decoder& decoder_;
  const int columns_, groups_, member_;
  Source source_;
  const Tiles* tiles_ = nullptr;
};

// Call each(first column, width, values, summaries) for every tile.
template <class Each>
void Decoder::for_each_tile(const Tiles& tiles, int columns, int groups, Each each) const {
  const Tiling tiling(columns, level_.widest_tile);
  for (int tile = 0; tile < tiling.count; tile++) {
    const int start = tiling.start(tile);
    each(start, tiling.width(tile), tiles.values.as<int8_t>() + (size_t)start * groups * GROUP,
         tiles.summaries.as<float>() + (size_t)start * groups * SUMMARIES);
  }
}

// Multiply some panels with all columns. take(column, values) gets [panels x PANEL] of each column, as it is ready.
template <class Take>
void Decoder::multiply(const Matrix& matrix, int first_panel, int panels, const Tiles& tiles, int columns,
                       Take take) const {
  alignas(64) float products[MOST_HEAD_DIM / PANEL][MOST_TILE_COLUMNS * PANEL];
  alignas(64) float column[MOST_HEAD_DIM];
  for_each_tile(tiles, columns, matrix.groups, [&](int start, int width, const int8_t* values, const float* summaries) {
    for (int p = 0; p < panels; p++)
      level_.product(matrix.format, matrix.panel(first_panel + p), matrix.groups, values, summaries, width,
                     products[p]);
    for (int c = 0; c < width; c++) {
      for (int p = 0; p < panels; p++) memcpy(column + p * PANEL, products[p] + c * PANEL, PANEL * sizeof(float));
      take(start + c, column);
    }
  });
}

void Decoder::keys_and_values(const LayerWeights& weights, int index, int member) {
  Quantised tiles(*this, piece_count_, weights.q.groups, member, [&](int row, float* scratch) {
    level_.rms_norm(hidden(piece_first_ + row), weights.attention_norm.data(), spec_.embedding_dim, spec_.norm_eps,
                    scratch);
    return scratch;
  });
  const int d = spec_.head_dim, panels = d / PANEL, half = spec_.rope_dim / 2;
  uint8_t* pages = layer_pages(index);
  const auto add_bias = [&](const Vector& bias, int head, float* values) {
    if (!bias.empty()) level_.add_scaled(values, bias.data() + head * d, 1.0f, d);
  };
  const auto norm = [&](const Vector& norm, float* values) {
    if (norm.empty()) return;
    float padded_values[MOST_HEAD_DIM + GROUP] = {}, normed[MOST_HEAD_DIM + GROUP];
    memcpy(padded_values, values, d * sizeof(float));
    level_.rms_norm(padded_values, norm.data(), d, spec_.norm_eps, normed);
    memcpy(values, normed, d * sizeof(float));
  };
  const auto rotate = [&](int row, float* values) {
    const float* angles = angles_.as<float>() + (size_t)row * spec_.rope_dim;
    level_.rotate(values, angles, angles + half, spec_.rope_dim, spec_.rope_interleaved);
  };
  // what a token's page has of a head
  const auto part = [&](int row, int head) {
    const AttentionRow& r = rows_[(size_t)row];
    return pages + page_bytes_ * (size_t)r.pages[r.position / PAGE] + part_bytes(kv_type_, d) * (size_t)head;
  };
  team_.share(member, spec_.heads + 2 * spec_.kv_heads, [&](int item) {
    if (item < spec_.heads) {
      const int head = item;
      multiply(weights.q, head * panels, panels, tiles.tiles(), piece_count_, [&](int row, float* values) {
        add_bias(weights.q_bias, head, values);
        norm(weights.q_norm, values);
        rotate(row, values);
        float* q = q_.as<float>() + (size_t)row * q_stride_ + head * d;
        for (int i = 0; i < d; i++) q[i] = values[i] * spec_.attention_scale;
      });
    } else if (item < spec_.heads + spec_.kv_heads) {
      const int head = item - spec_.heads;
      multiply(weights.k, head * panels, panels, tiles.tiles(), piece_count_, [&](int row, float* values) {
        add_bias(weights.k_bias, head, values);
        norm(weights.k_norm, values);
        rotate(row, values);
        level_.store_key(kv_type_, values, d, rows_[(size_t)row].position % PAGE, part(row, head));
      });
    } else {
      const int head = item - spec_.heads - spec_.kv_heads;
      multiply(weights.v, head * panels, panels, tiles.tiles(), piece_count_, [&](int row, float* values) {
        add_bias(weights.v_bias, head, values);
        level_.store_value(kv_type_, values, d, rows_[(size_t)row].position % PAGE, part(row, head));
      });
    }
  });
}

AttentionShape Decoder::attention_shape(const LayerWeights& weights) const {
  return {spec_.kv_heads,
          spec_.head_dim,
          spec_.heads / spec_.kv_heads,
          spec_.attention_soft_cap,
          weights.has_window ? spec_.sliding_window : 0,
          kv_type_};
}

void Decoder::attention(const LayerWeights& weights, int index, int member) {
  const AttentionShape shape = attention_shape(weights);
  const int stride = shape.state_floats(), per_row = shape.queries_per_head, d = spec_.head_dim;
  const uint8_t* pages = layer_pages(index);
  const int blocks = (int)blocks_.size();
  if (split_) {
    // most items of a stretch are alike, so the stretch is the outer number
    team_.share(member, blocks * spec_.kv_heads * most_stretches_, [&](int item) {
      const int stretch = item / (blocks * spec_.kv_heads), pair = item % (blocks * spec_.kv_heads);
      const Block& block = blocks_[(size_t)(pair / spec_.kv_heads)];
      if (stretch >= block.stretches) return;
      float* states = partials_.as<float>() + ((size_t)pair * most_stretches_ + stretch) * most_queries_ * stride;
      level_.attend(shape, &rows_[(size_t)block.first], block.count, block.shared_chunks, pages, pair % spec_.kv_heads,
                    stretch, states);
    });
  } else {
    team_.share(member, blocks * spec_.kv_heads, [&](int item) {
      const Block& block = blocks_[(size_t)(item / spec_.kv_heads)];
      const int head = item % spec_.kv_heads, count = block.count * per_row;
      float* states = own_[(size_t)member]->states.as<float>();
      float* next = states + (size_t)MOST_QUERIES * stride;
      for (int stretch = 0; stretch < block.stretches; stretch++) {
        level_.attend(shape, &rows_[(size_t)block.first], block.count, block.shared_chunks, pages, head, stretch,
                      stretch ? next : states);
        for (int q = 0; stretch && q < count; q++)
          level_.fold(states + (size_t)q * stride, next + (size_t)q * stride, d);
      }
      for (int q = 0; q < count; q++)
        level_.finish(
            states + (size_t)q * stride, d,
            mixed_.as<float>() + (size_t)(block.first + q / per_row) * q_stride_ + (head * per_row + q % per_row) * d);
    });
  }
  Quantised tiles(*this, piece_count_, weights.o.groups, member,
                  [&](int row, float* scratch) { return attended(row, scratch); });
  add_product(weights.o, weights.o_bias, tiles, member);
}

// What attention made of one token, [heads x head_dim], padded.
const float* Decoder::attended(int row, float* out) const {
  if (!split_) return mixed_.as<float>() + (size_t)row * q_stride_;
  const int d = spec_.head_dim, stride = STATE_HEAD + d, per_row = spec_.heads / spec_.kv_heads;
  const int number = block_of_row_[(size_t)row];
  const Block& block = blocks_[(size_t)number];
  float total[STATE_HEAD + MOST_HEAD_DIM];
  for (int head = 0; head < spec_.heads; head++) {
    const size_t pair = (size_t)number * spec_.kv_heads + head / per_row;
    const int query = (row - block.first) * per_row + head % per_row;
    for (int stretch = 0; stretch < block.stretches; stretch++) {
      const float* state =
          partials_.as<float>() + ((pair * most_stretches_ + stretch) * most_queries_ + query) * stride;
      if (stretch)
        level_.fold(total, state, d);
      else
        memcpy(total, state, stride * sizeof(float));
    }
    level_.finish(total, d, out + head * d);
  }
  for (int i = spec_.heads * d; i < q_stride_; i++) out[i] = 0.0f;
  return out;
}

// x += residual_scale * (matrix x tiles + bias)
template <class Source>
void Decoder::add_product(const Matrix& matrix, const Vector& bias, Quantised<Source>& tiles, int member) {
  team_.share(member, matrix.panels, [&](int panel) {
    alignas(64) float products[MOST_TILE_COLUMNS * PANEL];
    const auto add = [&](int start, int width, const int8_t* values, const float* summaries) {
      level_.product(matrix.format, matrix.panel(panel), matrix.groups, values, summaries, width, products);
      level_.add_tile(hidden(piece_first_ + start) + panel * PANEL, (size_t)x_stride_, products,
                      bias.empty() ? nullptr : bias.data() + panel * PANEL, spec_.residual_scale, width);
    };
    for_each_tile(tiles.tiles(), piece_count_, matrix.groups, add);
  });
}

void Decoder::feed_forward(const LayerWeights& weights, int member) {
  Quantised tiles(*this, piece_count_, weights.gate.groups, member, [&](int row, float* scratch) {
    level_.rms_norm(hidden(piece_first_ + row), weights.feed_forward_norm.data(), spec_.embedding_dim, spec_.norm_eps,
                    scratch);
    return scratch;
  });
  const auto bias = [](const Vector& values, int panel) {
    return values.empty() ? nullptr : values.data() + panel * PANEL;
  };
  team_.share(member, weights.gate.panels, [&](int panel) {
    alignas(64) float gates[MOST_TILE_COLUMNS * PANEL], ups[MOST_TILE_COLUMNS * PANEL];
    const auto gate = [&](int start, int width, const int8_t* values, const float* summaries) {
      const Matrix &g = weights.gate, &u = weights.up;
      level_.product(g.format, g.panel(panel), g.groups, values, summaries, width, gates);
      level_.product(u.format, u.panel(panel), u.groups, values, summaries, width, ups);
      level_.gate_tile((Activation)spec_.activation, gates, ups, bias(weights.gate_bias, panel),
                       bias(weights.up_bias, panel), width, h_.as<float>() + (size_t)start * h_stride_ + panel * PANEL,
                       (size_t)h_stride_);
    };
    for_each_tile(tiles.tiles(), piece_count_, weights.gate.groups, gate);
  });
  Quantised down(*this, piece_count_, weights.down.groups, member,
                 [&](int row, float*) { return h_.as<float>() + (size_t)row * h_stride_; });
  add_product(weights.down, weights.down_bias, down, member);
}

void Decoder::draw(const Step& step, int member) {
  const int wanted = (int)wanted_.size(), panels = weights_.head.panels;
  for (int first = 0; first < wanted; first += LOGIT_ROWS) {
    const int count = std::min(LOGIT_ROWS, wanted - first);
    Quantised tiles(*this, count, weights_.head.groups, member, [&](int row, float* scratch) {
      level_.rms_norm(hidden(wanted_[(size_t)(first + row)]), weights_.final_norm.data(), spec_.embedding_dim,
                      spec_.norm_eps, scratch);
      return scratch;
    });
    team_.share(member, (panels + HEAD_PANELS_AT_ONCE - 1) / HEAD_PANELS_AT_ONCE, [&](int item) {
      const int panel = item * HEAD_PANELS_AT_ONCE, some = std::min(HEAD_PANELS_AT_ONCE, panels - panel);
      multiply(weights_.head, panel, some, tiles.tiles(), count, [&](int row, float* values) {
        float* to = logits_.as<float>() + (size_t)row * logits_stride_ + panel * PANEL;
        for (int i = 0; i < some * PANEL; i++) to[i] = values[i] * spec_.logit_scale;
        if (spec_.logit_soft_cap > 0.0f) level_.soft_cap(to, some * PANEL, spec_.logit_soft_cap);
      });
    });
    // all of them, before the first one draws: who has an item in hand must not keep the others polling
    if (step.changes && step.changes->mask_count && !masks_.wait(step.changes->mask_ticket)) {
      no_masks_.store(true, std::memory_order_relaxed);
      return;
    }
    const int from = first_draw_[(size_t)first], to = first_draw_[(size_t)(first + count)];
    team_.share(member, to - from, [&](int i) {
      int row = 0;
      while (first_draw_[(size_t)(first + row + 1)] <= from + i) row++;
      draw_row(step, from + i, logits_.as<float>() + (size_t)row * logits_stride_, member);
    });
  }
}

}  // namespace trioserve
