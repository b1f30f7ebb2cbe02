// Memory for weights, pages and activations.
//
// Owns: allocation. Must not know: what lies in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trioserve {

// Zeroed memory from the operating system, in huge pages where it has them: weights are read a quarter faster so.
class Buffer {
 public:
  Buffer() = default;
  // Throws std::bad_alloc.
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

  // Make it at least this large; what was in it is lost if it grows.
  void reserve(size_t bytes) {
    if (bytes > bytes_) *this = Buffer(bytes + bytes / 2);
  }

 private:
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Memory for many things that are read one after the other, and all freed together: they lie in that order, so that
// the machine reads on from one into the next, and small ones are in huge pages too.
class Arena {
 public:
  // Zeroed, at a multiple of 64 bytes. Throws std::bad_alloc.
  uint8_t* take(size_t bytes);

 private:
  std::vector<Buffer> blocks_;
  size_t used_ = 0;
};

}  // namespace trioserve
