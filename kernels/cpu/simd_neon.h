// Sixteen lanes in four registers of NEON, on 64-bit ARM.
//
// Owns: F, I and M, and their functions. Must not know: what is computed with them. A part of simd.h, for it alone to
// include; simd_portable.h says what each function does.
#pragma once

namespace trioserve {
namespace LEVEL {

struct F {
  float32x4_t a, b, c, d;
};
struct I {
  int32x4_t a, b, c, d;
};
struct M {
  uint32x4_t a, b, c, d;
};

INLINE F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
INLINE void store(float* p, F x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
INLINE F all(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
INLINE F add(F x, F y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)}; }
INLINE F sub(F x, F y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)}; }
INLINE F mul(F x, F y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)}; }
INLINE F div(F x, F y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)}; }
INLINE F fma(F x, F y, F z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
INLINE M less(F x, F y) { return {vcltq_f32(x.a, y.a), vcltq_f32(x.b, y.b), vcltq_f32(x.c, y.c), vcltq_f32(x.d, y.d)}; }
INLINE F select(M m, F x, F y) {
  return {vbslq_f32(m.a, x.a, y.a), vbslq_f32(m.b, x.b, y.b), vbslq_f32(m.c, x.c, y.c), vbslq_f32(m.d, x.d, y.d)};
}
// vmaxq and vminq would make a NaN of a NaN, whichever side it is on
INLINE float32x4_t max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
INLINE F max(F x, F y) { return {max(x.a, y.a), max(x.b, y.b), max(x.c, y.c), max(x.d, y.d)}; }
INLINE F min(F x, F y) { return select(less(x, y), x, y); }
INLINE F abs(F x) { return {vabsq_f32(x.a), vabsq_f32(x.b), vabsq_f32(x.c), vabsq_f32(x.d)}; }
INLINE uint32_t bits(M m) {
  const uint16x8_t low = vcombine_u16(vmovn_u32(m.a), vmovn_u32(m.b));
  const uint16x8_t high = vcombine_u16(vmovn_u32(m.c), vmovn_u32(m.d));
  const uint8x8_t weights = vcreate_u8(0x8040201008040201);
  return (uint32_t)vaddv_u8(vand_u8(vmovn_u16(low), weights)) | (uint32_t)vaddv_u8(vand_u8(vmovn_u16(high), weights))
                                                                    << 8;
}
INLINE I to_int(F x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b), vcvtnq_s32_f32(x.c), vcvtnq_s32_f32(x.d)}; }
INLINE F to_float(I x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)}; }
INLINE I load(const int32_t* p) { return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}; }
INLINE void store(int32_t* p, I x) {
  vst1q_s32(p, x.a);
  vst1q_s32(p + 4, x.b);
  vst1q_s32(p + 8, x.c);
  vst1q_s32(p + 12, x.d);
}
INLINE I all(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
INLINE I add(I x, I y) { return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b), vaddq_s32(x.c, y.c), vaddq_s32(x.d, y.d)}; }
INLINE float32x4_t power_of_2(int32x4_t x) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(x, vdupq_n_s32(127)), 23));
}
INLINE F power_of_2(I x) { return {power_of_2(x.a), power_of_2(x.b), power_of_2(x.c), power_of_2(x.d)}; }
INLINE float32x4_t load_4_halves(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE F load_half(const uint16_t* p) {
  return {load_4_halves(p), load_4_halves(p + 4), load_4_halves(p + 8), load_4_halves(p + 12)};
}
INLINE void store_4_halves(uint16_t* p, float32x4_t x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
INLINE void store_half(uint16_t* p, F x) {
  store_4_halves(p, x.a);
  store_4_halves(p + 4, x.b);
  store_4_halves(p + 8, x.c);
  store_4_halves(p + 12, x.d);
}
INLINE I load_bytes(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)};
}
INLINE void store_bytes(int8_t* p, I x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

INLINE float sum(F x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

INLINE float largest(F x) {
  float v[4];
  vst1q_f32(v, max(max(x.a, x.b), max(x.c, x.d)));
  const float low = v[0] > v[1] ? v[0] : v[1], high = v[2] > v[3] ? v[2] : v[3];
  return low > high ? low : high;
}

INLINE int32_t sum(I x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }

}  // namespace LEVEL
}  // namespace trioserve
