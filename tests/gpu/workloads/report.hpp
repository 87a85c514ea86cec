// What every device workload prints: on its last line, one JSON object with a digest of all results and
// the totals that a probe on every kernel has to find.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  unsigned long long volume() const { return 1ull * x * y * z; }
};

class Report {
 public:
  // Thread-safe: the launching threads share one report.
  void launched(const std::string &kernel, Extent grid, Extent block, unsigned long long times = 1) {
    std::lock_guard<std::mutex> hold(mutex_);
    Totals &totals = kernels_[kernel];
    totals.launches += times;
    totals.blocks += times * grid.volume();
    totals.threads += times * grid.volume() * block.volume();
  }

  // FNV-1a; call it in a fixed order only.
  void result(const void *bytes, size_t size) {
    const unsigned char *byte = static_cast<const unsigned char *>(bytes);
    for (size_t i = 0; i < size; ++i) digest_ = (digest_ ^ byte[i]) * 0x100000001b3ull;
  }

  void expect(bool right, const char *what) {
    if (right) return;
    std::printf("WRONG: %s\n", what);
    wrong_ += 1;
  }

  // Prints the last line; gives the exit code.
  int finish(FILE *out = stdout) {
    std::fprintf(out, "{\"digest\": \"%016llx\", \"wrong\": %d, \"kernels\": {",
                 static_cast<unsigned long long>(digest_), wrong_);
    const char *comma = "";
    for (const auto &[kernel, totals] : kernels_) {
      std::fprintf(out, "%s\"%s\": {\"launches\": %llu, \"blocks\": %llu, \"threads\": %llu}", comma,
                   kernel.c_str(), totals.launches, totals.blocks, totals.threads);
      comma = ", ";
    }
    std::fputs("}}\n", out);
    std::fflush(out);
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  struct Totals {
    unsigned long long launches = 0, blocks = 0, threads = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Totals> kernels_;
  std::uint64_t digest_ = 0xcbf29ce484222325ull;
  int wrong_ = 0;
};
