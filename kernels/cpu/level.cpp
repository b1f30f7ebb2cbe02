// The table of one level. Compiled once for each, with LEVEL and the compiler's flags set.

#include "level.h"

#include "matmul.h"
#include "rows.h"
// needs rows.h
#include "attention.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

namespace trioserve {

extern const Level JOIN(level_, LEVEL) = {
    TEXT(LEVEL),        LEVEL::WIDEST_TILE, LEVEL::product, LEVEL::rms_norm,  LEVEL::quantise,
    LEVEL::gate,        LEVEL::soft_cap,    LEVEL::add_scaled, LEVEL::rotate, LEVEL::store_key,
    LEVEL::store_value, LEVEL::attend,      LEVEL::fold,    LEVEL::finish,
};

}  // namespace trioserve
