// Sixteen float lanes on every machine: the vocabulary that all kernels are written in.
//
// Owns: the types F (16 float32), I (16 int32) and M (16 truth values), and what can be done with them at each level.
// Must not know: models, tokens, threads.
//
// Every operation rounds as IEEE 754 says, a multiply-add always rounds once, and sums over the lanes always go in the
// same order. So a kernel gives the same bits at every level, and the portable level is the oracle of the others.
//
// This file is compiled once for each level, with LEVEL set to the name of the level. Nothing in it, nor in any file
// that includes it, may be a function that the linker merges with the same function of another level: everything
// lives in a namespace of the level's name, and nothing here uses the standard library's templates.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(LEVEL_IS_NEON) || defined(LEVEL_IS_DOTPROD)
#include <arm_neon.h>
#define LEVEL_HAS_NEON
#endif

namespace trioserve {
namespace LEVEL {

constexpr int LANES = 16;

}  // namespace LEVEL
}  // namespace trioserve

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#elif defined(LEVEL_HAS_NEON)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

namespace trioserve {
namespace LEVEL {

// e ** a, within 2 units in the last place for a in [-87, 88]; 0 below -87, and what is above 88 counts as
// 88. A NaN stays one.
//
// e ** a = 2 ** n * e ** r with n the integer nearest to a / ln 2; |r| <= ln 2 / 2, where the Taylor series to the
// seventh power is exact to float32. r is formed with ln 2 in two parts (Cody and Waite).
INLINE F exp(F a) {
  const M tiny = less(a, all(-87.0f));
  const F x = max(all(-87.0f), min(all(88.0f), a));
  const I n = to_int(mul(x, all(1.44269504f)));
  const F whole = to_float(n);
  const F r = fma(whole, all(2.12194440e-4f), fma(whole, all(-0.693359375f), x));
  F p = all(1.98412698e-4f);
  p = fma(p, r, all(1.38888889e-3f));
  p = fma(p, r, all(8.33333333e-3f));
  p = fma(p, r, all(4.16666667e-2f));
  p = fma(p, r, all(0.166666667f));
  p = fma(p, r, all(0.5f));
  p = fma(p, r, all(1.0f));
  p = fma(p, r, all(1.0f));
  return select(tiny, all(0.0f), mul(p, power_of_2(n)));
}

}  // namespace LEVEL
}  // namespace trioserve
