// How numbers lie in memory: what the packers write and the kernels read, the same at every level.
//
// Owns: panels of weights, tiles of activations, pages of keys and values. Must not know: instruction sets, threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "half.h"

namespace trioserve {

// Weights and activations are quantised in groups of this many values along the inner dimension.
constexpr int GROUP = 32;
// A panel is this many rows of a matrix, side by side.
constexpr int PANEL = 16;
// Four values along the inner dimension: what one lane of a dot product takes at a time.
constexpr int CHUNK = 4;
constexpr int CHUNKS = GROUP / CHUNK;
// Tokens per page of keys and values.
constexpr int PAGE = 16;
constexpr int MOST_HEAD_DIM = 256;

// How a panel stores its values.
//
// INT4, value = nibble * scale + minimum. For each group, 320 bytes:
//   4 x [16 rows][4 bytes]: a byte's low nibble is of chunk 2i, its high nibble of chunk 2i + 1
//   [16 rows] float16 scales, [16 rows] float16 minima
// INT8, value = byte * scale. For each two groups 1088 bytes, or 576 if the last one is alone:
//   2 x [16 rows] float16 scales
//   2 x 8 x [16 rows][4 bytes], signed
//
// Scales lie among the values so that a panel, and one panel after the other, is read in one go: with two streams, the
// machine foresees neither, and reads half as fast.
enum class Format : int32_t { INT4 = 0, INT8 = 1 };

constexpr size_t INT4_GROUP_BYTES = PANEL * GROUP / 2 + 2 * PANEL * sizeof(uint16_t);
constexpr size_t INT8_GROUP_BYTES = PANEL * GROUP;
constexpr size_t INT8_SCALE_BYTES = PANEL * sizeof(uint16_t);
constexpr size_t INT8_PAIR_BYTES = 2 * (INT8_GROUP_BYTES + INT8_SCALE_BYTES);

// Where a group's values and scales begin in an INT8 panel.
INLINE constexpr size_t int8_values(int group) {
  return INT8_PAIR_BYTES * (size_t)(group / 2) + 2 * INT8_SCALE_BYTES + INT8_GROUP_BYTES * (size_t)(group % 2);
}
INLINE constexpr size_t int8_scales(int group) {
  return INT8_PAIR_BYTES * (size_t)(group / 2) + INT8_SCALE_BYTES * (size_t)(group % 2);
}

INLINE constexpr size_t panel_bytes(Format format, int groups) {
  if (format == Format::INT4) return INT4_GROUP_BYTES * (size_t)groups;
  return INT8_GROUP_BYTES * (size_t)groups + 2 * INT8_SCALE_BYTES * (size_t)((groups + 1) / 2);
}

INLINE constexpr int groups_of(int width) { return (width + GROUP - 1) / GROUP; }
INLINE constexpr int panels_of(int rows) { return (rows + PANEL - 1) / PANEL; }

// Tokens are multiplied in tiles of at most `widest` columns, as even as possible.
//
// A tile of W columns stores its values as [groups][8 chunks][W][4] int8, and what belongs to each group as
// [groups][3][W]: float32 scales, float32 scale times sum of the values, int32 sum of the values.
struct Tiling {
  int columns, count, narrow, wide_count;

  INLINE Tiling(int columns_, int widest)
      : columns(columns_),
        count((columns_ + widest - 1) / widest),
        narrow(count ? columns_ / count : 0),
        wide_count(count ? columns_ % count : 0) {}

  INLINE int start(int tile) const { return tile * narrow + (tile < wide_count ? tile : wide_count); }
  INLINE int width(int tile) const { return narrow + (tile < wide_count); }
  INLINE int tile_of(int column) const {
    const int wide_columns = wide_count * (narrow + 1);
    return column < wide_columns ? column / (narrow + 1) : wide_count + (column - wide_columns) / narrow;
  }
};

constexpr int SUMMARIES = 3;
// No level's tiles are wider.
constexpr int MOST_TILE_COLUMNS = 12;

// How keys and values are stored. INT8: multiples of the largest magnitude / 127 of a token's key or value in its head,
// so that what is stored of a token depends on nothing but that token.
enum class KvType : int32_t { FLOAT16 = 0, FLOAT32 = 1, INT8 = 2 };
constexpr int KV_TYPES = 3;

// A page of one layer has a part for each KV head: keys as [head_dim][16 tokens], then values as [16 tokens][head_dim].
// With INT8 float32 scales follow, of the keys and of the values, [16 tokens] each.
INLINE constexpr size_t part_bytes(KvType type, int head_dim) {
  const size_t items = (size_t)2 * PAGE * head_dim;
  if (type == KvType::FLOAT16) return items * sizeof(uint16_t);
  if (type == KvType::FLOAT32) return items * sizeof(float);
  return items + 2 * PAGE * sizeof(float);
}
// Where those scales begin in a part.
INLINE constexpr size_t key_scales_at(int head_dim) { return (size_t)2 * PAGE * head_dim; }
INLINE constexpr size_t value_scales_at(int head_dim) { return key_scales_at(head_dim) + PAGE * sizeof(float); }
INLINE constexpr size_t page_bytes(KvType type, int kv_heads, int head_dim) {
  return (size_t)kv_heads * part_bytes(type, head_dim);
}

}  // namespace trioserve
