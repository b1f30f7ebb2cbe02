// The table of one level. Compiled once for each, with LEVEL and the compiler's flags set.

#include "level.h"

// A flag from outside must not put a level's instructions into another.
#if (defined(LEVEL_IS_AVX512) != defined(__AVX512F__)) ||                          \
    ((defined(LEVEL_IS_AVX2) || defined(LEVEL_IS_AVX512)) != defined(__AVX2__)) || \
    (defined(LEVEL_IS_DOTPROD) && !defined(__ARM_FEATURE_DOTPROD))
#error "the compiler's flags are not those of this level"
#endif

#include "attention.h"
#include "matmul.h"
#include "rows.h"
#include "sampler.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

namespace trioserve {

extern const Level JOIN(level_, LEVEL) = {
    .name = TEXT(LEVEL),
    .widest_tile = LEVEL::WIDEST_TILE,
    .product = LEVEL::product,
    .rms_norm = LEVEL::rms_norm,
    .quantise = LEVEL::quantise,
    .gate = LEVEL::gate,
    .gate_tile = LEVEL::gate_tile,
    .add_tile = LEVEL::add_tile,
    .soft_cap = LEVEL::soft_cap,
    .add_scaled = LEVEL::add_scaled,
    .rotate = LEVEL::rotate,
    .store_key = LEVEL::store_key,
    .store_value = LEVEL::store_value,
    .attend = LEVEL::attend,
    .fold = LEVEL::fold,
    .finish = LEVEL::finish,
    .sampler_scratch = LEVEL::sampler_scratch,
    .sample = LEVEL::sample,
};

}  // namespace trioserve
