// What this machine can do at most, and what the kernels make of it: compiled and run by cpu_kernels.py, which passes
// the flags of an instruction set level. Each line printed is "name threads value", in units of 1e9 a second.
//
// All threads do the same thing at once, each for itself; a figure is the sum over threads of the best of several runs.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "attention.h"
#include "matmul.h"
#include "memory.h"
#include "rows.h"
#include "sampler.h"

using namespace trioserve;
using namespace trioserve::LEVEL;

namespace {

constexpr int RUNS = 15;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The best rate of `amount` per call of work(thread), with all threads at it.
void measure(const char* name, int threads, double amount, const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::vector<double> best(threads, 1e9);
  const auto body = [&](int thread) {
    for (int run = 0; run < RUNS; run++) {
      ready.fetch_add(1);
      while (ready.load() < threads * (run + 1)) std::this_thread::yield();
      const double start = seconds();
      work(thread);
      best[thread] = std::min(best[thread], seconds() - start);
    }
  };
  std::vector<std::thread> team;
  for (int i = 1; i < threads; i++) team.emplace_back(body, i);
  body(0);
  for (std::thread& thread : team) thread.join();
  double rate = 0;
  for (double b : best) rate += amount / b;
  printf("%s %d %.6g\n", name, threads, rate * 1e-9);
}

void read_bandwidth(int threads) {
  constexpr size_t BYTES = size_t{96} << 20;
  std::vector<Buffer> buffers;
  for (int i = 0; i < threads; i++) {
    buffers.emplace_back(BYTES);
    memset(buffers.back().as<char>(), 1, BYTES);
  }
  measure("read_gigabytes", threads, (double)BYTES, [&](int thread) {
    const float* p = buffers[thread].as<float>();
    F sums[8];
    for (F& s : sums) s = all(0.0f);
    for (size_t i = 0; i < BYTES / sizeof(float); i += 8 * LANES)
      for (int j = 0; j < 8; j++) sums[j] = max(sums[j], load(p + i + j * LANES));
    for (F& s : sums) asm volatile("" : : "m"(s));
  });
}

// Multiply-adds of 8-bit integers, as many as the machine can start, from registers alone.
void integer_limit(int threads) {
  constexpr int ROUNDS = 200000, CHAINS = 10;
#if defined(__AVX512VNNI__)
  measure("int8_multiply_adds", threads, (double)ROUNDS * CHAINS * 64, [](int) {
    __m512i a[CHAINS], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
    for (__m512i& v : a) v = _mm512_setzero_si512();
    for (int i = 0; i < ROUNDS; i++) {
#define STEP(j) asm volatile("vpdpbusd %2, %1, %0" : "+v"(a[j]) : "v"(x), "v"(y));
      STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9)
#undef STEP
    }
    for (__m512i& v : a) asm volatile("" : : "v"(v));
  });
#elif defined(__AVX2__)
  measure("int8_multiply_adds", threads, (double)ROUNDS * CHAINS * 32, [](int) {
    __m256i a[CHAINS], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(5), t = x;
    for (__m256i& v : a) v = _mm256_setzero_si256();
    for (int i = 0; i < ROUNDS; i++) {
#define STEP(j) asm volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(a[j]), "=&x"(t) : "x"(x), "x"(y));
      STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9)
#undef STEP
    }
    for (__m256i& v : a) asm volatile("" : : "x"(v));
  });
#endif
}

void float_limit(int threads) {
  constexpr int ROUNDS = 200000, CHAINS = 10;
#if defined(__AVX2__)
#if defined(__AVX512F__)
  using Vector = __m512;
#else
  using Vector = __m256;
#endif
  measure("float_multiply_adds", threads, (double)ROUNDS * CHAINS * sizeof(Vector) / sizeof(float), [](int) {
    Vector a[CHAINS] = {}, x = {}, y = {};
    for (int i = 0; i < ROUNDS; i++) {
#define STEP(j) asm volatile("vfmadd231ps %2, %1, %0" : "+v"(a[j]) : "v"(x), "v"(y));
      STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9)
#undef STEP
    }
    for (Vector& v : a) asm volatile("" : : "v"(v));
  });
#endif
}

void products(int threads, Format format, const char* name) {
  constexpr int GROUPS = 18;
  for (int width = 1; width <= WIDEST_TILE; width++) {
    std::vector<Buffer> panels, values, summaries;
    for (int i = 0; i < threads; i++) {
      panels.emplace_back(panel_bytes(format, GROUPS) + 8192);
      values.emplace_back(GROUP * GROUPS * 16);
      summaries.emplace_back(GROUPS * SUMMARIES * 16 * sizeof(float));
      for (size_t b = 0; b < panels[i].bytes(); b++) panels[i].as<uint8_t>()[b] = (uint8_t)(b * 7 % 60);
      for (int b = 0; b < GROUP * GROUPS * 16; b++) values[i].as<int8_t>()[b] = (int8_t)(b * 5);
    }
    char label[64];
    snprintf(label, sizeof label, "%s_%d", name, width);
    constexpr int CALLS = 1000;
    measure(label, threads, (double)CALLS * PANEL * GROUP * GROUPS * width, [&](int thread) {
      float out[16 * PANEL];
      for (int i = 0; i < CALLS; i++)
        product(format, panels[thread].as<uint8_t>(), GROUPS, values[thread].as<int8_t>(),
                summaries[thread].as<float>(), width, out);
      asm volatile("" : : "m"(out));
    });
  }
}

// One decoder head of `queries` queries over 64 pages of keys.
void attention(int threads, int queries, KvType kv_type, const char* name) {
  constexpr int PAGES = 64, HEAD_DIM = 64;
  const AttentionShape shape{1, HEAD_DIM, queries, 0.0f, 0, kv_type};
  std::vector<Buffer> pages;
  for (int i = 0; i < threads; i++) pages.emplace_back(PAGES * page_bytes(kv_type, 1, HEAD_DIM));
  std::vector<int32_t> table(PAGES);
  for (int p = 0; p < PAGES; p++) table[p] = p;
  std::vector<float> q((size_t)queries * HEAD_DIM, 0.1f);
  char label[64];
  snprintf(label, sizeof label, "attention_%s%d", name, queries);
  measure(label, threads, 2.0 * queries * PAGES * PAGE * HEAD_DIM, [&](int thread) {
    std::vector<float> states((size_t)queries * shape.state_floats());
    const AttentionRow row{q.data(), table.data(), PAGES * PAGE - 1};
    for (int stretch = 0; stretch < PAGES * PAGE / STRETCH_TOKENS; stretch++)
      attend(shape, &row, 1, 0, pages[thread].as<uint8_t>(), 0, stretch, states.data());
    asm volatile("" : : "m"(states[0]));
  });
}

void sampler(int threads) {
  constexpr int VOCABULARY = 49152;
  for (int filtered = 0; filtered < 2; filtered++) {
    std::vector<std::vector<float>> logits(threads, std::vector<float>(VOCABULARY));
    std::vector<std::vector<float>> scratch(threads, std::vector<float>(sampler_scratch(VOCABULARY) + 16));
    for (auto& row : logits)
      for (int i = 0; i < VOCABULARY; i++) row[i] = (float)(i * 7919 % 10007) * 1e-3f;
    measure(filtered ? "sampled_rows_top_p" : "sampled_rows", threads, 1, [&](int thread) {
      SamplerRow row{};
      row.seed = 1;
      row.temperature = 1.0;
      row.top_p = filtered ? 0.9 : 1.0;
      Drawn drawn;
      sample(logits[thread].data(), VOCABULARY, row, scratch[thread].data(), nullptr, &drawn, nullptr, nullptr);
      asm volatile("" : : "m"(drawn));
    });
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int most = count > 1 ? atoi(arguments[1]) : 1;
  for (int threads = 1; threads <= most; threads *= 2) {
    read_bandwidth(threads);
    integer_limit(threads);
    float_limit(threads);
    products(threads, Format::INT4, "int4");
    products(threads, Format::INT8, "int8");
    for (int queries : {1, 3, 6, 24}) attention(threads, queries, KvType::FLOAT16, "");
    for (int queries : {3, 24}) attention(threads, queries, KvType::FLOAT32, "float32_");
    for (int queries : {3, 24}) attention(threads, queries, KvType::INT8, "int8_");
    sampler(threads);
  }
}
