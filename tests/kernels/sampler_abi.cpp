// The sampler of one level behind a C ABI, for the tests of the sampler alone.
#include "sampler.h"

extern "C" {

int64_t sampler_scratch(int32_t vocab) { return trioserve::LEVEL::sampler_scratch(vocab); }

double uniform(uint64_t seed, uint64_t position) { return trioserve::LEVEL::uniform(seed, position); }

void sample(const float* logits, int32_t vocab, const trioserve::SamplerRow* row, float* scratch, int32_t* counts,
            trioserve::Drawn* drawn, int32_t* alternative_ids, double* alternative_log_probabilities) {
  trioserve::LEVEL::sample(logits, vocab, *row, scratch, counts, drawn, alternative_ids, alternative_log_probabilities);
}
}
