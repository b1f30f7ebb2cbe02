// The C interface of the library: what Python calls.
//
// Owns: the boundary. No exception leaves it, and nothing here is C++ to the caller. Must not know: how a step is
// computed.

#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "decoder.h"
#include "level.h"
#include "pack.h"

using namespace trioserve;

namespace {

#if defined(__x86_64__)
// Not all compilers know this one by name.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c & 1u << 29;
}
#endif

#if defined(TRIOSERVE_DOTPROD)
bool has_dotprod() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
  return true;  // every Mac with an ARM processor
#else
  return false;
#endif
}
#endif

// Those that this machine can run, the fastest first.
const Level* levels[3];

int find_levels() {
  int count = 0;
#if defined(TRIOSERVE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    levels[count++] = &level_avx512;
#endif
#if defined(TRIOSERVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) levels[count++] = &level_avx2;
#endif
#if defined(TRIOSERVE_DOTPROD)
  if (has_dotprod()) levels[count++] = &level_dotprod;
#endif
#if defined(TRIOSERVE_NEON)
  levels[count++] = &level_neon;
#endif
  levels[count++] = &level_portable;
  return count;
}

const int level_count = find_levels();

enum Failure { INVALID = 1, NO_MEMORY = 2, NO_THREADS = 3 };

int failure_of_current_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  } catch (const std::system_error&) {
    return NO_THREADS;
  } catch (...) {
    return INVALID;
  }
}

}  // namespace

const Level* trioserve::find_level(const char* name) {
  for (int i = 0; i < level_count; i++)
    if (!strcmp(levels[i]->name, name)) return levels[i];
  return nullptr;
}

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// The name of the i-th level that this machine can run, the fastest first; null past the last.
EXPORT const char* trioserve_level(int i) { return i >= 0 && i < level_count ? levels[i]->name : nullptr; }

// A decoder without weights; null if it can't be made, and why is in `failure`.
EXPORT Decoder* trioserve_decoder_new(const Spec* spec, const double* frequencies, const uint8_t* has_window,
                                      int page_count, int kv_type, int threads, const char* level, int* failure) {
  try {
    const Level* found = find_level(level);
    if (!found || !Decoder::supports(*spec) || kv_type < 0 || kv_type >= KV_TYPES)
      throw std::invalid_argument("no such level, heads, or type");
    return new Decoder(*spec, frequencies, has_window, page_count, (KvType)kv_type, threads, *found);
  } catch (...) {
    *failure = failure_of_current_exception();
    return nullptr;
  }
}

EXPORT void trioserve_decoder_delete(Decoder* decoder) { delete decoder; }

// Returns 0, or a Failure: INVALID if the model has no such weight, or not of this kind.
EXPORT int trioserve_decoder_set(Decoder* decoder, const char* name, int layer, int kind, const uint8_t* data) {
  try {
    decoder->weights().set(name, layer, (Kind)kind, data, decoder->team());
    return 0;
  } catch (...) {
    return failure_of_current_exception();
  }
}

EXPORT size_t trioserve_decoder_weight_bytes(const Decoder* decoder) {
  return const_cast<Decoder*>(decoder)->weights().bytes();
}

// Bytes of a page of keys and values in one layer.
EXPORT size_t trioserve_page_bytes(int kv_type, int kv_heads, int head_dim) {
  return page_bytes((KvType)kv_type, kv_heads, head_dim);
}

EXPORT int trioserve_decoder_run(Decoder* decoder, const Step* step) {
  try {
    return (int)decoder->run(*step);
  } catch (...) {
    return (int)Outcome::NO_MEMORY;
  }
}

EXPORT void trioserve_decoder_interrupt(Decoder* decoder) { decoder->interrupt(); }

EXPORT void trioserve_decoder_masks_filled(Decoder* decoder, int64_t ticket, int ok) {
  decoder->masks_filled(ticket, ok != 0);
}

// Bytes of a row of `width` values of a kind; 0 if there is no such kind or no such row.
EXPORT size_t trioserve_row_bytes(int kind, int width) { return row_bytes((Kind)kind, width); }

// Bytes that a matrix takes when it is packed.
EXPORT size_t trioserve_packed_bytes(int kind, int rows, int width) { return packed_bytes((Kind)kind, rows, width); }

}  // extern "C"
