#include "weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace trioserve {

namespace {

Vector read_vector(Kind kind, const uint8_t* data, int count) {
  Vector values((size_t)groups_of(count) * GROUP, 0.0f);
  dequantise(kind, data, count, values.data());
  return values;
}

}  // namespace

uint8_t* Weights::take(size_t bytes) {
  bytes_ += bytes;
  return arena_.take(bytes);
}

Matrix Weights::pack(Kind kind, const uint8_t* data, int rows, int width, uint8_t* to, Team& team) {
  Matrix matrix;
  matrix.format = packed_format(kind);
  matrix.rows = rows;
  matrix.width = width;
  matrix.groups = groups_of(width);
  matrix.panels = panels_of(rows);
  matrix.first = to;
  matrix.stride = panel_bytes(matrix.format, matrix.groups);
  team.run(1, [&](int member) {
    team.share(member, matrix.panels,
               [&](int i) { pack_panel(kind, data, rows, width, i, to + matrix.stride * (size_t)i); });
  });
  return matrix;
}

void Weights::pack_half(int layer, bool is_up, Kind kind, const uint8_t* data, Team& team) {
  const int rows = spec.feed_forward_dim, width = spec.embedding_dim;
  LayerWeights& weights = layers[(size_t)layer];
  Halves& halves = halves_[(size_t)layer];
  Buffer& half = is_up ? halves.up : halves.gate;
  half = Buffer(packed_bytes(kind, rows, width));
  (is_up ? weights.up : weights.gate) = pack(kind, data, rows, width, half.as<uint8_t>(), team);
  if (!halves.gate.bytes() || !halves.up.bytes()) return;
  Matrix &gate = weights.gate, &up = weights.up;
  const size_t stride = gate.stride + up.stride;
  uint8_t* out = take(stride * (size_t)gate.panels);
  team.run(1, [&](int member) {
    team.share(member, gate.panels, [&](int i) {
      memcpy(out + stride * (size_t)i, gate.panel(i), gate.stride);
      memcpy(out + stride * (size_t)i + gate.stride, up.panel(i), up.stride);
    });
  });
  up.first = out + gate.stride;
  gate.first = out;
  gate.stride = up.stride = stride;
  halves = Halves();
}

void Weights::set(const std::string& name, int layer, Kind kind, const uint8_t* data, Team& team) {
  const int e = spec.embedding_dim, f = spec.feed_forward_dim, d = spec.head_dim;
  const int q = spec.heads * d, kv = spec.kv_heads * d;
  struct Place {
    const char* name;
    Matrix LayerWeights::* matrix;
    Vector LayerWeights::* vector;
    int rows, width;
  };
  const Place places[] = {
      {"q", &LayerWeights::q, nullptr, q, e},
      {"k", &LayerWeights::k, nullptr, kv, e},
      {"v", &LayerWeights::v, nullptr, kv, e},
      {"o", &LayerWeights::o, nullptr, e, q},
      {"gate", &LayerWeights::gate, nullptr, f, e},
      {"up", &LayerWeights::up, nullptr, f, e},
      {"down", &LayerWeights::down, nullptr, e, f},
      {"attention_norm", nullptr, &LayerWeights::attention_norm, 1, e},
      {"feed_forward_norm", nullptr, &LayerWeights::feed_forward_norm, 1, e},
      {"q_norm", nullptr, &LayerWeights::q_norm, 1, d},
      {"k_norm", nullptr, &LayerWeights::k_norm, 1, d},
      {"q_bias", nullptr, &LayerWeights::q_bias, 1, q},
      {"k_bias", nullptr, &LayerWeights::k_bias, 1, kv},
      {"v_bias", nullptr, &LayerWeights::v_bias, 1, kv},
      {"o_bias", nullptr, &LayerWeights::o_bias, 1, e},
      {"gate_bias", nullptr, &LayerWeights::gate_bias, 1, f},
      {"up_bias", nullptr, &LayerWeights::up_bias, 1, f},
      {"down_bias", nullptr, &LayerWeights::down_bias, 1, e},
  };
  if (!is_known((int32_t)kind)) throw std::invalid_argument("unknown kind");
  if (layer < 0 && name == "final_norm") {
    final_norm = read_vector(kind, data, e);
    return;
  }
  if (layer < 0 && (name == "embedding" || name == "head")) {
    if (!row_bytes(kind, e)) throw std::invalid_argument("rows of no such width");
    if (name == "head" || spec.tied_head)
      head = pack(kind, data, spec.vocab_size, e, take(packed_bytes(kind, spec.vocab_size, e)), team);
    if (name == "embedding" && !(spec.tied_head && kind == Kind::Q8_0)) {
      embedding_kind_ = kind;
      embedding_ = Buffer(row_bytes(kind, e) * (size_t)spec.vocab_size);
      memcpy(embedding_.as<uint8_t>(), data, embedding_.bytes());
      bytes_ += embedding_.bytes();
    }
    return;
  }
  const auto* place =
      std::find_if(std::begin(places), std::end(places), [&](const Place& p) { return name == p.name; });
  if (place == std::end(places) || layer < 0 || layer >= spec.layers) throw std::invalid_argument("no such weight");
  if (!row_bytes(kind, place->width)) throw std::invalid_argument("rows of no such width");
  LayerWeights& weights = layers[(size_t)layer];
  const bool is_up = place->matrix == &LayerWeights::up;
  if (!place->matrix)
    weights.*place->vector = read_vector(kind, data, place->width);
  else if (is_up || place->matrix == &LayerWeights::gate)
    pack_half(layer, is_up, kind, data, team);
  else
    weights.*place->matrix =
        pack(kind, data, place->rows, place->width, take(packed_bytes(kind, place->rows, place->width)), team);
}

void Weights::embed(int token, float* out) const {
  const int e = spec.embedding_dim;
  if (embedding_.bytes())
    dequantise(embedding_kind_, embedding_.as<uint8_t>() + row_bytes(embedding_kind_, e) * (size_t)token, e, out);
  else
    unpack_int8_row(head.panel(token / PANEL), e, token % PANEL, out);
}

}  // namespace trioserve
