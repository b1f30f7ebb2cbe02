#include "pack.h"

#include <cmath>
#include <cstring>

#include "half.h"

namespace trioserve {

namespace {

uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

float read_half(const uint8_t* p) { return half_to_float(read_u16(p)); }

// A group of 32 values of a 4-bit kind: nibble * scale + minimum.
struct Group4 {
  uint8_t nibbles[GROUP];
  float scale, minimum;
};

// Q4_0 and Q4_1: the low nibbles are the first 16 values, the high nibbles the others.
void read_nibbles(const uint8_t* bytes, uint8_t* out) {
  for (int i = 0; i < GROUP / 2; i++) {
    out[i] = bytes[i] & 0x0f;
    out[i + GROUP / 2] = bytes[i] >> 4;
  }
}

Group4 read_q4_0(const uint8_t* row, int group) {
  const uint8_t* block = row + (size_t)group * 18;
  Group4 g;
  read_nibbles(block + 2, g.nibbles);
  g.scale = read_half(block);
  g.minimum = -8.0f * g.scale;
  return g;
}

Group4 read_q4_1(const uint8_t* row, int group) {
  const uint8_t* block = row + (size_t)group * 20;
  Group4 g;
  read_nibbles(block + 4, g.nibbles);
  g.scale = read_half(block);
  g.minimum = read_half(block + 2);
  return g;
}

// Q4_K: blocks of 256 values in 8 groups. Scales and minima are 6 bits each, packed in 12 bytes, times a float16 each.
Group4 read_q4_k(const uint8_t* row, int group) {
  const uint8_t* block = row + (size_t)(group / 8) * 144;
  const uint8_t* packed = block + 4;
  const int j = group % 8;
  int scale, minimum;
  if (j < 4) {
    scale = packed[j] & 63;
    minimum = packed[j + 4] & 63;
  } else {
    scale = (packed[j + 4] & 0x0f) | (packed[j - 4] >> 6) << 4;
    minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
  }
  Group4 g;
  const uint8_t* bytes = block + 16 + (j / 2) * GROUP;
  for (int i = 0; i < GROUP; i++) g.nibbles[i] = j % 2 ? bytes[i] >> 4 : bytes[i] & 0x0f;
  g.scale = read_half(block) * (float)scale;
  g.minimum = -read_half(block + 2) * (float)minimum;
  return g;
}

Group4 read_group4(Kind kind, const uint8_t* row, int group) {
  switch (kind) {
    case Kind::Q4_0:
      return read_q4_0(row, group);
    case Kind::Q4_1:
      return read_q4_1(row, group);
    default:
      return read_q4_k(row, group);
  }
}

// Q6_K: blocks of 256 values: 128 bytes of low nibbles, 64 of high pairs of bits, 16 int8 scales, a float16.
float read_q6_k(const uint8_t* row, int i) {
  const uint8_t* block = row + (size_t)(i / 256) * 210;
  const int half = i % 256 / 128, quarter = i % 128 / 32, l = i % 32;
  const uint8_t low = block[half * 64 + (quarter & 1) * 32 + l] >> (quarter >= 2 ? 4 : 0) & 0x0f;
  const uint8_t high = block[128 + half * 32 + l] >> 2 * quarter & 3;
  const int8_t scale = (int8_t)block[192 + i % 256 / 16];
  return read_half(block + 208) * (float)scale * (float)((low | high << 4) - 32);
}

float read_bf16(const uint8_t* p) {
  const uint32_t word = (uint32_t)read_u16(p) << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

// A group of 8-bit values from any kind: multiples of the largest magnitude / 127, the scale rounded to a float16
// first.
float quantise_group(const float* x, int count, int8_t* out) {
  float most = 0.0f;
  for (int i = 0; i < count; i++) most = std::fmax(most, std::fabs(x[i]));
  float scale = half_to_float(float_to_half(most / 127.0f));
  // rounded down, the scale could leave the largest value out of range
  if (scale * 127.5f < most) scale = half_to_float((uint16_t)(float_to_half(most / 127.0f) + 1));
  for (int i = 0; i < GROUP; i++) out[i] = i < count && scale > 0.0f ? (int8_t)std::lrintf(x[i] / scale) : (int8_t)0;
  return scale;
}

void pack_int4(Kind kind, const uint8_t* row, int groups, int lane, uint8_t* out) {
  for (int g = 0; g < groups; g++, out += INT4_GROUP_BYTES) {
    const Group4 group = read_group4(kind, row, g);
    for (int i = 0; i < CHUNKS / 2; i++)
      for (int k = 0; k < CHUNK; k++)
        out[64 * i + CHUNK * lane + k] =
            (uint8_t)(group.nibbles[2 * i * CHUNK + k] | group.nibbles[(2 * i + 1) * CHUNK + k] << 4);
    const uint16_t scale = float_to_half(group.scale), minimum = float_to_half(group.minimum);
    memcpy(out + 256 + 2 * lane, &scale, 2);
    memcpy(out + 288 + 2 * lane, &minimum, 2);
  }
}

void pack_int8(Kind kind, const uint8_t* row, int width, int groups, int lane, uint8_t* out) {
  const size_t block = row_bytes(kind, kind == Kind::Q6_K ? 256 : GROUP);
  for (int g = 0; g < groups; g++) {
    int8_t values[GROUP];
    uint16_t scale;
    if (kind == Kind::Q8_0) {
      const uint8_t* from = row + block * (size_t)g;
      scale = read_u16(from);
      memcpy(values, from + 2, sizeof values);
    } else {
      float x[GROUP] = {};
      const int count = width - g * GROUP < GROUP ? width - g * GROUP : GROUP;
      if (kind == Kind::Q6_K)
        for (int i = 0; i < count; i++) x[i] = read_q6_k(row, g * GROUP + i);
      else
        dequantise(kind, row + block * (size_t)g, count, x);
      scale = float_to_half(quantise_group(x, count, values));
    }
    uint8_t* to = out + int8_values(g) + CHUNK * lane;
    for (int i = 0; i < CHUNKS; i++) memcpy(to + 64 * i, values + CHUNK * i, CHUNK);
    memcpy(out + int8_scales(g) + 2 * lane, &scale, 2);
  }
}

}  // namespace

bool is_known(int32_t kind) { return row_bytes((Kind)kind, 256) != 0; }

size_t row_bytes(Kind kind, int width) {
  const size_t n = (size_t)width;
  switch (kind) {
    case Kind::F32:
      return 4 * n;
    case Kind::F16:
    case Kind::BF16:
      return 2 * n;
    case Kind::Q4_0:
      return n % 32 ? 0 : n / 32 * 18;
    case Kind::Q4_1:
      return n % 32 ? 0 : n / 32 * 20;
    case Kind::Q8_0:
      return n % 32 ? 0 : n / 32 * 34;
    case Kind::Q4_K:
      return n % 256 ? 0 : n / 256 * 144;
    case Kind::Q6_K:
      return n % 256 ? 0 : n / 256 * 210;
  }
  return 0;
}

Format packed_format(Kind kind) {
  return kind == Kind::Q4_0 || kind == Kind::Q4_1 || kind == Kind::Q4_K ? Format::INT4 : Format::INT8;
}

size_t packed_bytes(Kind kind, int rows, int width) {
  return panel_bytes(packed_format(kind), groups_of(width)) * (size_t)panels_of(rows);
}

void dequantise(Kind kind, const uint8_t* row, int width, float* out) {
  switch (kind) {
    case Kind::F32:
      memcpy(out, row, 4 * (size_t)width);
      return;
    case Kind::F16:
      for (int i = 0; i < width; i++) out[i] = read_half(row + 2 * i);
      return;
    case Kind::BF16:
      for (int i = 0; i < width; i++) out[i] = read_bf16(row + 2 * i);
      return;
    case Kind::Q8_0:
      for (int i = 0; i < width; i++) {
        const uint8_t* block = row + (size_t)(i / GROUP) * 34;
        out[i] = read_half(block) * (float)(int8_t)block[2 + i % GROUP];
      }
      return;
    case Kind::Q6_K:
      for (int i = 0; i < width; i++) out[i] = read_q6_k(row, i);
      return;
    default:
      for (int g = 0; g < width / GROUP; g++) {
        const Group4 group = read_group4(kind, row, g);
        for (int i = 0; i < GROUP; i++) out[g * GROUP + i] = group.scale * (float)group.nibbles[i] + group.minimum;
      }
  }
}

void pack_panel(Kind kind, const uint8_t* data, int rows, int width, int panel, uint8_t* out) {
  const int groups = groups_of(width);
  const Format format = packed_format(kind);
  memset(out, 0, panel_bytes(format, groups));
  for (int lane = 0; lane < PANEL && panel * PANEL + lane < rows; lane++) {
    const uint8_t* row = data + row_bytes(kind, width) * (size_t)(panel * PANEL + lane);
    if (format == Format::INT4)
      pack_int4(kind, row, groups, lane, out);
    else
      pack_int8(kind, row, width, groups, lane, out);
  }
}

void unpack_int8_row(const uint8_t* panel, int width, int lane, float* out) {
  for (int i = 0; i < width; i++) {
    const int group = i / GROUP, chunk = i % GROUP / CHUNK;
    const auto value = (int8_t)panel[int8_values(group) + 64 * chunk + CHUNK * lane + i % CHUNK];
    out[i] = read_half(panel + int8_scales(group) + 2 * lane) * (float)value;
  }
}

}  // namespace trioserve
