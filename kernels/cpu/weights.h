// The weights of a decoder, as panels.
//
// Owns: which weights there are, and their memory. Must not know: steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory.h"
#include "pack.h"
#include "pool.h"
#include "shapes.h"

namespace trioserve {

// A decoder's numbers; they are the fields of DecoderSpec in the Python package, whose docstrings say what they mean.
struct Spec {
  int32_t vocab_size, layers, heads, kv_heads, head_dim, embedding_dim, feed_forward_dim;
  int32_t rope_dim, rope_interleaved, activation, tied_head, sliding_window;
  float norm_eps, attention_scale, attention_soft_cap, logit_soft_cap;
  float embedding_scale, residual_scale, logit_scale;
};

struct Matrix {
  Format format = Format::INT8;
  int rows = 0, width = 0, groups = 0, panels = 0;
  const uint8_t* first = nullptr;  // panel
  size_t stride = 0;               // from one panel to the next, in bytes

  const uint8_t* panel(int i) const { return first + stride * (size_t)i; }
};

// A vector, padded with zeros to a multiple of GROUP; empty if the model has none.
using Vector = std::vector<float>;

struct LayerWeights {
  Vector attention_norm, feed_forward_norm, q_norm, k_norm;
  Vector q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
  Matrix q, k, v, o, gate, up, down;
  bool has_window = false;
};

class Weights {
 public:
  explicit Weights(const Spec& spec) : spec(spec), layers((size_t)spec.layers), halves_((size_t)spec.layers) {}

  // Pack one weight; `layer` is -1 for those of no layer. `data` need not outlive the call. Throws
  // std::invalid_argument if the model has no such weight or it has no such kind.
  void set(const std::string& name, int layer, Kind kind, const uint8_t* data, Team& team);

  // One token's row of the embedding, [embedding_dim].
  void embed(int token, float* out) const;

  size_t bytes() const { return bytes_; }

  const Spec spec;
  Vector final_norm;
  Matrix head;
  std::vector<LayerWeights> layers;

 private:
  Matrix pack(Kind kind, const uint8_t* data, int rows, int width, uint8_t* to, Team& team);
  void pack_half(int layer, bool is_up, Kind kind, const uint8_t* data, Team& team);
  uint8_t* take(size_t bytes);

  Arena arena_;
  // Gate and up are read by turns, a panel of each, so they are laid that way, as soon as both are here. [layers]
  struct Halves {
    Buffer gate, up;
  };
  std::vector<Halves> halves_;
  // As the file has it; empty if the head's panels hold the same values.
  Kind embedding_kind_ = Kind::F32;
  Buffer embedding_;
  size_t bytes_ = 0;
};

}  // namespace trioserve
