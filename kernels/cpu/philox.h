// Random numbers without state: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011).
//
// Owns: the function from (seed, position) to a uniform number, bit for bit that of kernels/reference/philox.py.
// Must not know: logits, tokens.
#pragma once

#include <cstdint>

namespace trioserve {
namespace LEVEL {

// A number in [0, 1), a multiple of 2 ** -53. The key is the seed, the counter is (position, 0); of the four words that
// Philox makes of them, the top 53 bits of the first two are the result.
inline double uniform(uint64_t seed, uint64_t position) {
  uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return (double)(((uint64_t)c1 << 32 | c0) >> 11) * 0x1p-53;
}

}  // namespace LEVEL
}  // namespace trioserve
