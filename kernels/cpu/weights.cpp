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

Matrix Weights::pack(Kind kind, const uint8_t* data, int rows, int width, Team& team) {
  Matrix matrix;
  matrix.format = packed_format(kind);
  matrix.rows = rows;
  matrix.width = width;
  matrix.groups = groups_of(width);
  matrix.panels = panels_of(rows);
  const size_t size = panel_bytes(matrix.format, matrix.groups);
  // what is beyond the end is prefetched, never used
  matrix.memory = Buffer(size * (size_t)matrix.panels);
  uint8_t* out = matrix.memory.as<uint8_t>();
  team.run([&](int member) {
    team.share(member, matrix.panels, [&](int i) { pack_panel(kind, data, rows, width, i, out + size * (size_t)i); });
  });
  bytes_ += matrix.memory.bytes();
  return matrix;
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
    if (name == "head" || spec.tied_head) head = pack(kind, data, spec.vocab_size, e, team);
    if (name == "embedding" && !(spec.tied_head && kind == Kind::Q8_0)) {
      embedding_kind_ = kind;
      embedding_ = Buffer(row_bytes(kind, e) * (size_t)spec.vocab_size);
      memcpy(embedding_.as<uint8_t>(), data, embedding_.bytes());
      bytes_ += embedding_.bytes();
    }
    return;
  }
  const auto* place = std::find_if(std::begin(places), std::end(places), [&](const Place& p) { return name == p.name; });
  if (place == std::end(places) || layer < 0 || layer >= spec.layers) throw std::invalid_argument("no such weight");
  if (!row_bytes(kind, place->width)) throw std::invalid_argument("rows of no such width");
  LayerWeights& weights = layers[(size_t)layer];
  if (place->matrix)
    weights.*place->matrix = pack(kind, data, place->rows, place->width, team);
  else
    weights.*place->vector = read_vector(kind, data, place->width);
}

void Weights::embed(int token, float* out) const {
  const int e = spec.embedding_dim;
  if (embedding_.bytes())
    dequantise(embedding_kind_, embedding_.as<uint8_t>() + row_bytes(embedding_kind_, e) * (size_t)token, e, out);
  else
    unpack_int8_row(head.panel(token / PANEL), e, token % PANEL, out);
}

}  // namespace trioserve
