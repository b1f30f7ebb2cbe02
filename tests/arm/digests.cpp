// A digest of what every level of this machine computes: one line for each level and piece of work.
//
// All lines of a piece must have the same digest, on every machine: run.py compares them. A level that the library has
// but this machine can't run has no lines.
//
// The last piece is a whole decoder. Its angles come from the C library, and are equal where that is.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "decoder.h"
#include "level.h"
#include "pack.h"

using namespace trioserve;

extern "C" {
const char* trioserve_level(int i);
int trioserve_rms_norm(const char* level, const float* x, const float* weight, int width, float epsilon, float* out);
int trioserve_gate(const char* level, int activation, const float* gates, const float* ups, int count, float* out);
int trioserve_soft_cap(const char* level, float* x, int count, float cap);
int trioserve_store_halves(const char* level, const float* x, int count, uint16_t* halves);
int trioserve_attend(const char* level, int kv_type, int queries, int head_dim, float soft_cap, int window, int tokens,
                     const float* q, const float* keys, const float* values, int stale, float* out);
int trioserve_multiply(const char* level, int kind, const uint8_t* data, int rows, int width, const float* x,
                       int columns, float* out);
Decoder* trioserve_decoder_new(const Spec* spec, const double* frequencies, const uint8_t* has_window, int page_count,
                               int kv_type, int threads, const char* level, int* failure);
int trioserve_decoder_set(Decoder* decoder, const char* name, int layer, int kind, const uint8_t* data);
int trioserve_decoder_run(Decoder* decoder, const Step* step);
void trioserve_decoder_delete(Decoder* decoder);
size_t trioserve_row_bytes(int kind, int width);
}

namespace {

using Floats = std::vector<float>;

// Numbers that are the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint32_t word() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state_ >> 32);
  }
  // Between -size and size.
  float number(float size) { return ((float)(word() >> 8) * 0x1p-23f - 1.0f) * size; }
  Floats numbers(size_t count, float size) {
    Floats values(count);
    for (float& value : values) value = number(size);
    return values;
  }

 private:
  uint64_t state_;
};

// FNV-1a.
class Digest {
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(T); i++) value_ = (value_ ^ bytes[i]) * 0x100000001b3u;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

void check(bool succeeded) {
  if (!succeeded) {
    fputs("a call failed\n", stderr);
    exit(1);
  }
}

void rows(const char* level, Digest& digest) {
  Random random(1);
  for (int width : {1, 31, 33, 576}) {
    const size_t padded = (size_t)groups_of(width) * GROUP;
    Floats x = random.numbers(padded, 3.0f), weight = random.numbers(padded, 1.0f), out(padded);
    for (size_t i = (size_t)width; i < padded; i++) x[i] = weight[i] = 0.0f;
    check(!trioserve_rms_norm(level, x.data(), weight.data(), width, 1e-5f, out.data()));
    digest.add(out);
  }
  Floats x = random.numbers(4096, 100.0f), ups = random.numbers(4096, 2.0f), out(4096);
  for (int activation : {0, 2}) {
    check(!trioserve_gate(level, activation, x.data(), ups.data(), 4096, out.data()));
    digest.add(out);
  }
  check(!trioserve_soft_cap(level, out.data(), 4096, 30.0f));
  digest.add(out);
}

void halves(const char* level, Digest& digest) {
  Random random(2);
  std::vector<uint16_t> out(1 << 16);
  Floats x(out.size());
  for (float& value : x) {
    const int exponent = (int)(random.word() % 48) - 30;
    value = std::ldexp(random.number(1.0f), exponent);
  }
  check(!trioserve_store_halves(level, x.data(), (int)x.size(), out.data()));
  digest.add(out);
}

void attention(const char* level, Digest& digest) {
  Random random(3);
  for (int kv_type = 0; kv_type < KV_TYPES; kv_type++)
    for (int tokens : {1, 17, 64, 129, 300})
      for (int queries : {1, 3, 7, 24})
        for (int dim : {16, 48, 64}) {
          const Floats q = random.numbers((size_t)(queries * dim), 1.0f);
          const Floats keys = random.numbers((size_t)(tokens * dim), 1.0f);
          const Floats values = random.numbers((size_t)(tokens * dim), 1.0f);
          Floats out((size_t)(queries * dim));
          const float cap = queries == 3 ? 5.0f : 0.0f;
          const int window = queries == 7 ? 50 : 0;
          check(!trioserve_attend(level, kv_type, queries, dim, cap, window, tokens, q.data(), keys.data(),
                                  values.data(), 0xffff, out.data()));
          digest.add(out);
        }
}

// A matrix of random bits with scales that are ordinary numbers.
std::vector<uint8_t> blocks(Random& random, Kind kind, int rows, int width) {
  struct Layout {
    Kind kind;
    int bytes, scales[2];
  };
  constexpr Layout layouts[] = {{Kind::Q4_0, 18, {0, 0}},
                                {Kind::Q4_1, 20, {0, 2}},
                                {Kind::Q8_0, 34, {0, 0}},
                                {Kind::Q4_K, 144, {0, 2}},
                                {Kind::Q6_K, 210, {208, 208}}};
  std::vector<uint8_t> data((size_t)rows * trioserve_row_bytes((int)kind, width));
  if (kind == Kind::F32) {
    const Floats values = random.numbers((size_t)rows * (size_t)width, 1.0f);
    memcpy(data.data(), values.data(), data.size());
    return data;
  }
  if (kind == Kind::F16 || kind == Kind::BF16) {
    for (size_t i = 0; i < data.size(); i += 2) {
      const float value = random.number(1.0f);
      uint32_t word;
      memcpy(&word, &value, sizeof word);
      const uint16_t half = kind == Kind::F16 ? float_to_half(value) : (uint16_t)(word >> 16);
      memcpy(&data[i], &half, sizeof half);
    }
    return data;
  }
  for (uint8_t& byte : data) byte = (uint8_t)random.word();
  for (const Layout& layout : layouts)
    for (size_t i = 0; layout.kind == kind && i < data.size(); i += (size_t)layout.bytes)
      for (int at : layout.scales) {
        const uint16_t scale = float_to_half(random.number(0.03f));
        memcpy(&data[i + (size_t)at], &scale, sizeof scale);
      }
  return data;
}

void products(const char* level, Digest& digest) {
  Random random(4);
  for (Kind kind : {Kind::F32, Kind::F16, Kind::BF16, Kind::Q4_0, Kind::Q4_1, Kind::Q8_0, Kind::Q4_K, Kind::Q6_K})
    for (int columns : {1, 2, 3, 4, 5, 12, 13, 23}) {
      const int rows = 16 + columns, width = 768;
      const std::vector<uint8_t> data = blocks(random, kind, rows, width);
      const Floats x = random.numbers((size_t)(columns * width), 4.0f);
      Floats out((size_t)(columns * rows));
      check(!trioserve_multiply(level, (int)kind, data.data(), rows, width, x.data(), columns, out.data()));
      digest.add(out);
    }
}

struct Model {
  Spec spec{.vocab_size = 300,
            .layers = 2,
            .heads = 9,
            .kv_heads = 3,
            .head_dim = 32,
            .embedding_dim = 160,
            .feed_forward_dim = 352,
            .rope_dim = 32,
            .rope_interleaved = 0,
            .activation = 0,
            .tied_head = 0,
            .sliding_window = 150,
            .norm_eps = 1e-5f,
            .attention_scale = 0.2f,
            .attention_soft_cap = 20.0f,
            .logit_soft_cap = 30.0f,
            .embedding_scale = 4.0f,
            .residual_scale = 0.8f,
            .logit_scale = 2.0f};
  std::vector<double> frequencies;
  std::vector<uint8_t> windows{0, 1};

  Model() {
    for (int i = 0; i < 16; i++) frequencies.push_back(1.0 / (double)(1 << i));
  }

  void fill(Decoder* decoder) const {
    Random random(5);
    const auto set = [&](const char* name, int layer, Kind kind, int rows, int width) {
      std::vector<uint8_t> data = blocks(random, kind, rows, width);
      check(!trioserve_decoder_set(decoder, name, layer, (int)kind, data.data()));
    };
    const int e = spec.embedding_dim, f = spec.feed_forward_dim, q = spec.heads * 32, kv = spec.kv_heads * 32;
    set("embedding", -1, Kind::Q8_0, spec.vocab_size, e);
    set("head", -1, Kind::Q8_0, spec.vocab_size, e);
    set("final_norm", -1, Kind::F32, 1, e);
    for (int layer = 0; layer < spec.layers; layer++) {
      for (const char* name : {"attention_norm", "feed_forward_norm"}) set(name, layer, Kind::F32, 1, e);
      for (const char* name : {"q_norm", "k_norm"}) set(name, layer, Kind::F32, 1, 32);
      set("q", layer, Kind::Q4_1, q, e);
      set("k", layer, Kind::Q4_0, kv, e);
      set("v", layer, Kind::Q8_0, kv, e);
      set("o", layer, Kind::Q4_0, e, q);
      set("gate", layer, Kind::Q4_1, f, e);
      set("up", layer, Kind::Q4_1, f, e);
      set("down", layer, Kind::F16, e, f);
    }
  }
};

// A prompt of 290 tokens, and then six continuations of it that share its pages.
void decoder(const char* level, Digest& digest) {
  const Model model;
  constexpr int PROMPT = 290, PROMPT_PAGES = 19, CHOICES = 6;
  for (int kv_type = 0; kv_type < KV_TYPES; kv_type++) {
    int failure = 0;
    Decoder* decoder = trioserve_decoder_new(&model.spec, model.frequencies.data(), model.windows.data(), 64, kv_type,
                                             2, level, &failure);
    check(decoder);
    model.fill(decoder);
    std::vector<int32_t> tokens, positions, table, row_tokens, drawn(CHOICES);
    std::vector<double> log_probabilities(CHOICES);
    Floats logits((size_t)(CHOICES * model.spec.vocab_size));
    const std::vector<uint64_t> seeds{1, 2, 3, 4, 5, 6}, counters(CHOICES, PROMPT);
    const std::vector<double> temperatures{0.0, 1.0, 1.5, 0.7, 2.0, 1.0}, top_ps{1.0, 1.0, 0.9, 1.0, 1.0, 0.5};
    const std::vector<double> min_ps{0.0, 0.0, 0.0, 0.1, 0.0, 0.0};
    const std::vector<int32_t> top_ks{0, 0, 0, 0, 5, 0}, wanted(CHOICES, 1);
    const auto run = [&](int spans, const std::vector<int32_t>& starts, const std::vector<int32_t>& page_starts,
                         const std::vector<int32_t>& shared, const std::vector<int32_t>& copies) {
      Step step{};
      step.copy_count = (int32_t)copies.size() / 2, step.span_count = spans;
      step.token_count = (int32_t)tokens.size(), step.group_count = (int32_t)shared.size() / 3;
      step.row_count = CHOICES, step.page_entry_count = (int32_t)table.size();
      step.copies = copies.data(), step.tokens = tokens.data(), step.positions = positions.data();
      step.starts = starts.data(), step.pages = table.data(), step.page_starts = page_starts.data();
      step.shared = shared.data(), step.row_tokens = row_tokens.data(), step.seeds = seeds.data();
      step.counters = counters.data(), step.temperatures = temperatures.data(), step.top_ps = top_ps.data();
      step.min_ps = min_ps.data(), step.top_ks = top_ks.data(), step.wants_log_probability = wanted.data();
      step.drawn = drawn.data(), step.log_probabilities = log_probabilities.data(), step.logits = logits.data();
      check(trioserve_decoder_run(decoder, &step) == (int)Outcome::DONE);
      digest.add(logits);
      digest.add(drawn);
      digest.add(log_probabilities);
    };
    for (int t = 0; t < PROMPT; t++) tokens.push_back(t * 37 % 300), positions.push_back(t);
    for (int p = 0; p < PROMPT_PAGES; p++) table.push_back(p);
    row_tokens.assign(CHOICES, PROMPT - 1);
    run(1, {0, PROMPT}, {0, PROMPT_PAGES}, {}, {});
    tokens = drawn;
    positions.assign(CHOICES, PROMPT);
    table.clear();
    std::vector<int32_t> starts{0}, page_starts{0}, copies;
    for (int c = 0; c < CHOICES; c++) {
      row_tokens[(size_t)c] = c;
      for (int p = 0; p < PROMPT_PAGES - 1; p++) table.push_back(p);
      table.push_back(PROMPT_PAGES + c);
      copies.insert(copies.end(), {PROMPT_PAGES - 1, PROMPT_PAGES + c});
      starts.push_back(c + 1);
      page_starts.push_back((int32_t)table.size());
    }
    run(CHOICES, starts, page_starts, {0, CHOICES, PROMPT_PAGES - 1}, copies);
    trioserve_decoder_delete(decoder);
  }
}

}  // namespace

int main() {
  const std::pair<const char*, std::function<void(const char*, Digest&)>> pieces[] = {
      {"rows", rows}, {"halves", halves}, {"attention", attention}, {"products", products}, {"decoder", decoder}};
  for (int i = 0; const char* level = trioserve_level(i); i++)
    for (const auto& [name, work] : pieces) {
      Digest digest;
      work(level, digest);
      printf("%s %s %016llx\n", level, name, (unsigned long long)digest.value());
      fflush(stdout);
    }
}
