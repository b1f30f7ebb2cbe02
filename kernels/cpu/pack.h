// Weights as their files store them, to panels.
//
// Owns: the block formats of GGUF files, and the choice of a panel's format. Must not know: models.
#pragma once

#include <cstdint>

#include "shapes.h"

namespace trioserve {

// The numbers are those of GGUF's tensor types.
enum class Kind : int32_t { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 8, Q4_K = 12, Q6_K = 14, BF16 = 30 };

bool is_known(int32_t kind);

// Bytes of a row of `width` values; 0 if the kind does not come in rows of that width.
size_t row_bytes(Kind kind, int width);

// What the kind is packed as: 4-bit kinds as INT4, with their values to within a float16's rounding of the scales; the
// others as INT8, of which Q8_0 exactly.
Format packed_format(Kind kind);

// How many bytes a matrix takes when it is packed.
size_t packed_bytes(Kind kind, int rows, int width);

// Values of one row.
void dequantise(Kind kind, const uint8_t* row, int width, float* out);

// Write panel number `panel` of a matrix of `rows` rows; what is beyond the last row is zero.
void pack_panel(Kind kind, const uint8_t* data, int rows, int width, int panel, uint8_t* out);

// One row of an INT8 panel, [width].
void unpack_int8_row(const uint8_t* panel, int width, int lane, float* out);

}  // namespace trioserve
