// Keys and values in pages: the types that they may be stored as.
//
// Owns: how a token's key and value are written, and how they are read 16 at a time. Must not know: what is done with
// them.
//
// A type is a class of which there are no objects. What a SCALED one stores are multiples of a scale that a token's
// key, and its value, has of its own.
#pragma once

#include "rows.h"
#include "shapes.h"
#include "simd.h"

namespace trioserve {
namespace LEVEL {

struct Float16 {
  using Item = uint16_t;
  static constexpr KvType TYPE = KvType::FLOAT16;
  static constexpr bool SCALED = false;

  static INLINE F load(const Item* p) { return load_half(p); }
  static INLINE void write(const float* x, int count, Item* out) {
    for (int i = 0; i < count; i += LANES) store_half(out + i, LEVEL::load(x + i));
  }
};

struct Float32 {
  using Item = float;
  static constexpr KvType TYPE = KvType::FLOAT32;
  static constexpr bool SCALED = false;

  static INLINE F load(const Item* p) { return LEVEL::load(p); }
  static INLINE void write(const float* x, int count, Item* out) { memcpy(out, x, (size_t)count * sizeof *out); }
};

struct Int8 {
  using Item = int8_t;
  static constexpr KvType TYPE = KvType::INT8;
  static constexpr bool SCALED = true;

  static INLINE F load(const Item* p) { return to_float(load_bytes(p)); }
  // Returns the scale.
  static INLINE float write(const float* x, int count, Item* out) {
    F most = all(0.0f);
    uint32_t finite = 0xffff;
    for (int i = 0; i < count; i += LANES) {
      const F magnitude = abs(LEVEL::load(x + i));
      most = max(most, magnitude);
      finite &= bits(less(magnitude, all(__builtin_inff())));
    }
    const Steps steps = steps_to(largest(most), finite == 0xffff);
    for (int i = 0; i < count; i += LANES) store_bytes(out + i, steps.of(LEVEL::load(x + i)));
    return steps.size;
  }
  // [PAGE], of the page that these keys or values begin
  static INLINE const float* key_scales(const Item* keys, int head_dim) {
    return (const float*)(keys + key_scales_at(head_dim));
  }
  static INLINE const float* value_scales(const Item* values, int head_dim) {
    return (const float*)(values + value_scales_at(head_dim) - PAGE * head_dim);
  }
};

// call(Kv()) with the class of a type
template <class Call>
INLINE void with_kv(KvType type, Call call) {
  if (type == KvType::FLOAT16) return call(Float16());
  if (type == KvType::FLOAT32) return call(Float32());
  call(Int8());
}

// Store one token's key, [head_dim], in column `offset` of the keys of a part.
static void store_key(KvType type, const float* key, int head_dim, int offset, uint8_t* part) {
  with_kv(type, [&](auto kv) {
    using Kv = decltype(kv);
    typename Kv::Item items[MOST_HEAD_DIM], *keys = (typename Kv::Item*)part;
    if constexpr (Kv::SCALED)
      ((float*)(part + key_scales_at(head_dim)))[offset] = Kv::write(key, head_dim, items);
    else
      Kv::write(key, head_dim, items);
    for (int d = 0; d < head_dim; d++) keys[d * PAGE + offset] = items[d];
  });
}

// Store one token's value, [head_dim], in row `offset` of the values of a part.
static void store_value(KvType type, const float* value, int head_dim, int offset, uint8_t* part) {
  with_kv(type, [&](auto kv) {
    using Kv = decltype(kv);
    typename Kv::Item* to = (typename Kv::Item*)part + (PAGE + offset) * head_dim;
    if constexpr (Kv::SCALED)
      ((float*)(part + value_scales_at(head_dim)))[offset] = Kv::write(value, head_dim, to);
    else
      Kv::write(value, head_dim, to);
  });
}

}  // namespace LEVEL
}  // namespace trioserve
